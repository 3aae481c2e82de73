"""Locks between processes that the kernel takes back from a process that dies.

POSIX record locks on bytes of a shared file. They belong to a process, not to a thread: only one thread of a process
may use them. A process keeps its locks until it lets go of them, ends, or closes any descriptor of the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["hold_for_life", "is_held_by_other", "locked"]

# A lock is held for the time of an addition: first try again at once, then let others run.
_EAGER_TRIES = 20
_LONGEST_PAUSE_S = 0.001


def _try(file: int, byte: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte, os.SEEK_SET)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return False
        raise
    return True


def _release(file: int, byte: int) -> None:
    fcntl.lockf(file, fcntl.LOCK_UN, 1, byte, os.SEEK_SET)


@contextmanager
def locked(file: int, byte: int, *, deadline_s: float, late: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock on one byte of a file.

    Args:
        file: descriptor.
        byte: which lock.
        deadline_s: longest wait.
        late: called now and then while waiting, with the seconds waited so far; it raises to end the wait.
    """
    tries, pause_s, start_s = 0, 2e-5, 0.0
    while not _try(file, byte):
        tries += 1
        if tries <= _EAGER_TRIES:
            os.sched_yield()
            continue
        start_s = start_s or time.monotonic()
        waited_s = time.monotonic() - start_s
        late(waited_s)
        if waited_s > deadline_s:
            raise TimeoutError(f"a lock was not free within {deadline_s:g} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    try:
        yield
    finally:
        _release(file, byte)


def hold_for_life(file: int, byte: int) -> None:
    """Take a lock that nobody else wants, until this process ends: the sign that it lives."""
    if not _try(file, byte):
        raise RuntimeError(f"the sign of life on byte {byte} is held by another process")


def is_held_by_other(file: int, byte: int) -> bool:
    """Whether another process holds a lock."""
    if not _try(file, byte):
        return True
    _release(file, byte)
    return False
