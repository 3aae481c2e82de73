"""Runs the `odcrt` program as a user does, in a process of its own, which never outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Launched", "is_alive", "odcrt", "started_odcrt", "wait_for"]

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
