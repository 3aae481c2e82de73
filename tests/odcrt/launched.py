"""Runs the `odcrt` program: as a user does, in a process of its own, which never outlives its test; or right here.

Right here (`odcrt_here`), the ranks of a scenario are forked, see `ranks.run_program`: for tests of what ranks measure,
and not of how they are started, watched and ended.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from odcrt.cli import main
from odcrt.launching import Ending, RankRun

__all__ = ["Launched", "forked_ranks", "is_alive", "odcrt", "odcrt_here", "started_odcrt", "wait_for"]

# What pytest and torchrun's users have set must not decide what is tested.
_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {"OMP_NUM_THREADS", "RANK", "WORLD_SIZE", "PYTHONUNBUFFERED", "FORCE_COLOR"}
}


@dataclass(frozen=True)
class Launched:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def _command(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-c", "from odcrt.cli import main; main()", *map(str, arguments)]


def odcrt(*arguments: object, folder: Path, timeout_s: float = 60.0, **environment: str) -> Launched:
    """Run a command in a folder until it ends."""
    with started_odcrt(*arguments, folder=folder, **environment) as process:
        out, err = process.communicate(timeout=timeout_s)
        return Launched(process.returncode, out, err)


def forked_ranks(program: Sequence[object], *, ranks: int, **_: object) -> RankRun:
    """In place of the launcher's `run_ranks`: its ranks all succeed, or the test fails."""
    from ranks import run_program

    run_program(program, ranks=ranks)
    return RankRun(tuple(Ending(rank, code=0, at_s=0.0) for rank in range(ranks)), stopped_by=0)


def odcrt_here(*arguments: object, folder: Path) -> Launched:
    """Run a command on a scenario in this process, with forked ranks."""
    from odcrt.launch import scenario

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        patch.setattr(sys, "argv", ["odcrt", *map(str, arguments)])
        patch.setattr(scenario, "run_ranks", forked_ranks)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return Launched(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@contextmanager
def started_odcrt(*arguments: object, folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs on; it is interrupted, and then killed, if it still does at the end."""
    process = subprocess.Popen(
        _command(arguments),
        cwd=folder,
        env={**_ENVIRONMENT, "COLUMNS": "120", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(condition, *, what: str, timeout_s: float = 20.0):
    """The condition's first value that holds."""
    until_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < until_s, f"still waiting for {what}"
        time.sleep(0.02)
    return value
