"""Peak memory of a rank, as the operating system counts it. Bytes."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["MemoryWatch"]


class MemoryWatch:
    """Peak memory of this process by part; from /proc, so zeros where there is none.

    What the process has when the watch is made is its own; what comes later is training's. Shared memory is counted
    apart: a rank's pages hold that of all ranks which it has touched.
    """

    def __init__(self) -> None:
        now = _status_bytes()
        self._process_bytes = now["VmRSS"] - now["RssShmem"]

    def restart(self) -> None:
        """Forget the peak so far."""
        gc.collect()
        if sys.platform == "linux":
            # Memory that an earlier case has left with the allocator would count as this one's.
            getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self, *, ranks: int) -> dict[str, float]:
        """By part: the process itself, what training added to it, and this rank's share of shared memory."""
        now = _status_bytes()
        return {
            "process": self._process_bytes,
            "training": max(now["VmHWM"] - now["RssShmem"] - self._process_bytes, 0.0),
            "shared_memory": _shared_bytes() / ranks,
        }


def _status_bytes() -> dict[str, float]:
    names = ("VmHWM", "VmRSS", "RssShmem")
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return dict.fromkeys(names, 0.0)
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, flags=re.MULTILINE))
    return {name: 1024.0 * int(found.get(name, 0)) for name in names}


def _shared_bytes() -> float:
    """Shared memory of all ranks, which this one has mapped."""
    sizes = {}
    try:
        descriptors = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return 0.0
    for descriptor in descriptors:
        try:
            if str(descriptor.readlink()).startswith("/memfd:odcrt"):
                status = descriptor.stat()
                sizes[status.st_ino] = status.st_blocks * 512.0
        except OSError:
            continue  # closed meanwhile
    return sum(sizes.values())
