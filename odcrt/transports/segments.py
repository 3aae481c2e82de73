"""Shared memory without names: nothing stays behind, however a process ends.

On Linux a segment is a memfd: an anonymous file that lives as long as some process holds it open or mapped. Others open
it by way of /proc/PID/fd/N while its maker runs. Elsewhere it is a file in the temporary folder, which the maker
removes once all have opened it; a maker that is killed before that leaves the file behind.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Address", "Segment"]

_PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class Address:
    """Where other processes of this host find a segment."""

    path: str
    size_bytes: int


class Segment:
    """A piece of shared memory, mapped into this process.

    Attributes:
        file: descriptor of the file behind it; also holds the segment's locks.
        memory: all of it, as bytes.
    """

    def __init__(self, file: int, size_bytes: int, *, path: str, removes: bool) -> None:
        self.file = file
        self._path = path
        self._removes = removes
        self._size_bytes = size_bytes
        self._mapping: mmap.mmap | None = mmap.mmap(file, size_bytes)
        self.memory = torch.frombuffer(self._mapping, dtype=torch.uint8)

    @classmethod
    def create(cls, size_bytes: int) -> Segment:
        """A new segment of at least `size_bytes`, zeroed."""
        size_bytes = max(_PAGE, -(-size_bytes // _PAGE) * _PAGE)
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("odcrt", os.MFD_CLOEXEC)
            path, removes = f"/proc/{os.getpid()}/fd/{file}", False
        else:  # pragma: no cover - not Linux
            file, path = tempfile.mkstemp(prefix="odcrt-")
            removes = True
        os.ftruncate(file, size_bytes)
        return cls(file, size_bytes, path=path, removes=removes)

    @classmethod
    def attach(cls, address: Address) -> Segment:
        """The segment of another process of this host."""
        file = os.open(address.path, os.O_RDWR | os.O_CLOEXEC)
        return cls(file, address.size_bytes, path=address.path, removes=False)

    @property
    def address(self) -> Address:
        """For `attach` in other processes."""
        return Address(self._path, self._size_bytes)

    def all_attached(self) -> None:
        """Every process that needs the segment has attached: its name can go."""
        if self._removes:  # pragma: no cover - not Linux
            Path(self._path).unlink(missing_ok=True)
            self._removes = False

    def close(self) -> None:
        """Let go of the segment. Its memory is unmapped once no tensor refers to it any more."""
        if self._mapping is None:
            return
        self.all_attached()
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._mapping = None
        os.close(self.file)
