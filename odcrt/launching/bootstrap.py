"""Runs in every rank, before the user's script: `python bootstrap.py SCRIPT ARGS...` (or `-m MODULE ARGS...`).

It makes the process end with its launcher, whatever ends that; and where the script ends by an error it leaves a report
for the launcher, which must tell the rank that failed from those that failed because of it.

Needs nothing but the standard library: the script decides what is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

REPORT_VARIABLE = "ODCRT_END_REPORT"
LAUNCHER_VARIABLE = "ODCRT_LAUNCHER_PID"

_PR_SET_PDEATHSIG = 1

# Errors of a rank that follow from another rank's, by class and module.
_FOLLOWERS = {
    ("odcrt.errors", "PeerFailed"),
    ("odcrt.errors", "RankLost"),
    ("odcrt.errors", "DeadlineExceeded"),
    ("torch.distributed", "DistNetworkError"),
    ("torch.distributed", "DistStoreError"),
}
# What gloo says of a peer that is no more, in errors of no class of their own.
_GONE = ("connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "timed out")


def _end_with_launcher() -> None:
    """Have the kernel kill this process when the launcher is no more; Linux alone can."""
    launcher = os.environ.pop(LAUNCHER_VARIABLE, "")
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if launcher and os.getppid() != int(launcher):  # it ended before the kernel was told
        os._exit(1)


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and those that it came from."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def is_follower(error: BaseException) -> bool:
    """Whether an error follows from that of another rank."""
    for link in _chain(error):
        if any((kind.__module__, kind.__name__) in _FOLLOWERS for kind in type(link).__mro__):
            return True
        text = str(link).lower()
        if isinstance(link, RuntimeError) and "gloo" in text and any(gone in text for gone in _GONE):
            return True
    return False


def _write_report(path: str, error: BaseException, text: str) -> None:
    report = {
        "at_s": time.monotonic(),
        "error": type(error).__name__,
        "message": str(error),
        "is_follower": is_follower(error),
        "traceback": text,
    }
    temporary = Path(f"{path}.part")
    with contextlib.suppress(OSError):  # nobody reads it any more, or the disk is full
        temporary.write_text(json.dumps(report), encoding="utf-8")
        temporary.replace(path)


def _traceback_of(error: BaseException) -> str:
    """The traceback, from the script on."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>", runpy.__file__}:
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, inner))


def main() -> None:
    """Run the script as Python would, with a report if it fails."""
    report = os.environ.pop(REPORT_VARIABLE, "")
    _end_with_launcher()
    # A crash shows where it happened; so does a rank that hangs, when the launcher asks it by this signal.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    del sys.argv[0]
    is_module = sys.argv[0] == "-m"
    if is_module:
        del sys.argv[0]
    target = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = "" if is_module else str(Path(target).resolve().parent)
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except SystemExit as error:
        if error.code not in {None, 0}:
            _write_report(report, error, f"{error.code}\n" if isinstance(error.code, str) else "")
        raise
    except KeyboardInterrupt:
        # Every rank gets it at once; their tracebacks would tell nothing.
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is reported
        text = _traceback_of(error)
        _write_report(report, error, text)
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.exit(1)


if __name__ == "__main__":
    main()
