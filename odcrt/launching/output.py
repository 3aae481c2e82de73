"""What ranks print: forwarded line by line as it comes, and kept in a log file a rank.

Lines of different ranks never mix. A line that has not ended yet is shown after a moment all the same where it carries
no prefix: a prompt, or a progress bar.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

__all__ = ["Prefix", "RankOutput", "standard_streams"]

_IDLE_S = 0.25
_LONGEST_LINE_BYTES = 1 << 16
_KEPT_LINES = 20


class Prefix(StrEnum):
    """Whose lines begin with `[rank N]`."""

    OTHERS = "others"
    ALL = "all"
    NONE = "none"

    def of(self, rank: int) -> bytes:
        """What a rank's lines begin with."""
        shown = self is Prefix.ALL or (self is Prefix.OTHERS and rank > 0)
        return f"[rank {rank}] ".encode() if shown else b""


def standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard output and standard error as bytes."""
    return sys.stdout.buffer, sys.stderr.buffer


class _Line:
    """One stream of a rank: what has come since the last whole line."""

    def __init__(self, target: BinaryIO, prefix: bytes) -> None:
        self._target = target
        self._prefix = prefix
        self._pending = b""
        self._since_s = 0.0
        self._is_continued = False

    def feed(self, data: bytes) -> None:
        self._pending += data
        self._since_s = time.monotonic()
        end = max(self._pending.rfind(b"\n"), self._pending.rfind(b"\r")) + 1
        if end == 0 and len(self._pending) > _LONGEST_LINE_BYTES:
            end = len(self._pending)
        if end:
            self._show(self._pending[:end])
            self._pending = self._pending[end:]

    def show_unfinished(self, *, all_of_it: bool) -> None:
        if not self._pending or not (all_of_it or (not self._prefix and time.monotonic() - self._since_s > _IDLE_S)):
            return
        self._show(self._pending + (b"\n" if all_of_it and self._prefix else b""))
        self._pending = b""

    def _show(self, data: bytes) -> None:
        if self._prefix:
            data = b"".join(
                (b"" if number == 0 and self._is_continued else self._prefix) + line
                for number, line in enumerate(data.splitlines(keepends=True))
            )
        self._is_continued = not data.endswith((b"\n", b"\r"))
        self._target.write(data)
        self._target.flush()


class RankOutput:
    """Both streams of one rank.

    Args:
        rank: whose.
        prefix: which ranks' lines get one.
        streams: where standard output and standard error go.
        log: file for both, in the order of arrival.
    """

    def __init__(self, rank: int, *, prefix: Prefix, streams: tuple[BinaryIO, BinaryIO], log: Path) -> None:
        self._lines = tuple(_Line(stream, prefix.of(rank)) for stream in streams)
        self._log = log.open("wb", buffering=0)
        self._latest: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._latest_part = b""

    def feed(self, stream: int, data: bytes) -> None:
        """Take what the rank wrote to standard output (0) or standard error (1)."""
        self._log.write(data)
        *whole, self._latest_part = (self._latest_part + data).split(b"\n")
        self._latest_part = self._latest_part[-_LONGEST_LINE_BYTES:]
        self._latest.extend(whole)
        self._lines[stream].feed(data)

    def show_unfinished(self, *, all_of_it: bool = False) -> None:
        """Show lines without an end, if nothing has come for a while; or whatever there is."""
        for line in self._lines:
            line.show_unfinished(all_of_it=all_of_it)

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines of both streams."""
        lines = [*self._latest, *([self._latest_part] if self._latest_part else [])]
        return tuple(line.decode("utf-8", errors="replace").rstrip() for line in lines[-_KEPT_LINES:])

    def close(self) -> None:
        """Close the log."""
        self._log.close()
