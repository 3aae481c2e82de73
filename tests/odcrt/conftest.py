"""Shared by the runtime's tests: nothing may stay behind, neither in shared memory nor as a process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

_SHARED = Path("/dev/shm")  # noqa: S108 - the very folder that must stay empty


def _named_memory():
    return {path.name for path in _SHARED.iterdir()} if _SHARED.is_dir() else set()


def _descendants():
    """Processes below this one, dead ones that nobody has waited for included; but for Python's own servers."""
    children, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        children.setdefault(int(after_name[1]), []).append(int(folder.name))
    servers = {child for child in children.get(os.getpid(), []) if "multiprocessing." in commands[child]}
    found, open_ones = [], [os.getpid(), *servers]
    while open_ones:
        for child in children.get(open_ones.pop(), []):
            if child not in servers:
                found.append(f"{child} {commands[child] or 'a zombie'}")
                open_ones.append(child)
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No file appears in shared memory, and no process is left."""
    if not sys.platform.startswith("linux"):
        yield
        return
    before = _named_memory()
    yield
    until_s = time.monotonic() + 2.0
    while (left := (sorted(_named_memory() - before), _descendants())) != ([], []):
        assert time.monotonic() < until_s, f"left behind: files in {_SHARED} {left[0]}, processes {left[1]}"
        time.sleep(0.02)
