"""Where the output of ranks is kept, and what is told of a failure.

The last thing on the screen is the traceback of the rank that failed first; its exit code is the launcher's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odcrt.launching import RankRun, explain_failure
from odcrt.launching.endings import name_signal
from odcsim.files import require_output_folder

__all__ = ["GRACE_BEYOND_DEADLINE_S", "LogFiles", "log_files", "report_failure"]

GRACE_BEYOND_DEADLINE_S = 5.0
"""Seconds by which the grace for other ranks exceeds the deadline of their waits."""


class LogFiles:
    """Where the output of ranks is kept.

    Attributes:
        folder: of the log files.
        keep: whether it stays.
    """

    def __init__(self, folder: Path, *, keep: bool) -> None:
        self.folder = folder
        self.keep = keep


@contextmanager
def log_files(folder: Path | None) -> Iterator[LogFiles]:
    """The user's folder for log files; or a temporary one, which goes unless it turns out to be needed.

    Raises:
        InputError: the user's cannot be made or written to.
    """
    if folder is not None:
        require_output_folder(folder, key="--log-dir")
        folder.mkdir(parents=True, exist_ok=True)
        yield LogFiles(folder, keep=True)
        return
    logs = LogFiles(Path(tempfile.mkdtemp(prefix="odcrt-logs-")), keep=False)
    try:
        yield logs
    finally:
        if not logs.keep:
            shutil.rmtree(logs.folder, ignore_errors=True)


def report_failure(run: RankRun, logs: LogFiles) -> int:
    """Tell what went wrong on standard error, the culprit's traceback last; the exit code, 0 if nothing did."""
    if run.stopped_by:
        print(f"odcrt: stopped by {name_signal(run.stopped_by)}", file=sys.stderr)
        return 128 + run.stopped_by
    failure = explain_failure(run.endings)
    if failure is None:
        return 0
    logs.keep = True
    sys.stdout.flush()
    sys.stderr.write(f"odcrt: output of all ranks: {logs.folder}/rank-N.log\n")
    sys.stderr.write(f"odcrt: error: {failure.headline}\n{failure.details}")
    sys.stderr.flush()
    return failure.exit_code
