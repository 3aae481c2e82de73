"""Peak memory of a rank, as the operating system counts it. Bytes."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from pathlib import Path

__all__ = ["MemoryWatch", "give_back_at_once"]

# glibc's name of the size from which an allocation is a mapping of its own, and that size: activations of a few tokens.
_M_MMAP_THRESHOLD = -3
_MAPPED_FROM_BYTES = 32 * 1024


def give_back_at_once() -> None:
    """Have the C library return large allocations to the operating system as soon as they are freed.

    By itself it keeps what was freed and cuts later allocations out of it, so the peak of a process depends on the
    order of sizes, by a tenth and differently in every run; what is meant by peak memory is what training holds. Each
    large tensor costs its page faults then. Without effect where the C library is not glibc.
    """
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)


class MemoryWatch:
    """Peak memory of this process by part; from /proc, so zeros where there is none.

    What the process has when the watch is made is its own; what comes later is training's. Shared memory is counted
    apart: a rank's pages hold that of all ranks which it has touched.
    """

    def __init__(self) -> None:
        now = _status_bytes()
        self._process_bytes = now["VmRSS"] - now["RssShmem"]
        self._has_restarted = False
        self._running_peak_bytes = 0

    def restart(self) -> None:
        """Forget the peak so far."""
        self._running_peak_bytes = 0
        gc.collect()
        if sys.platform == "linux":
            # Memory that an earlier case has left with the allocator would count as this one's.
            getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            self._has_restarted = False
        else:
            self._has_restarted = True

    def running_peak_bytes(self) -> int | None:
        """What training added to the process at most since the restart; it never falls. None where nobody tells.

        The kernel's peak includes the shared memory of its moment, which only the present figure is known of. As shared
        memory grows, a later reading may take off too much; so the largest one counts.
        """
        now = _status_bytes()
        if not self._has_restarted or now["VmHWM"] == 0:
            return None
        beyond_bytes = now["VmHWM"] - now["RssShmem"] - self._process_bytes
        self._running_peak_bytes = max(self._running_peak_bytes, int(beyond_bytes))
        return self._running_peak_bytes

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
