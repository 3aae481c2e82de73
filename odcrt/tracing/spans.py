"""Where transfers and waits are told to: a recorder, or nobody."""

from __future__ import annotations

import time
from typing import Protocol

from odcsim.engines.timeline import SpanName

__all__ = ["NO_SPANS", "SpanSink", "now_s"]

# One clock for all ranks of a host (CLOCK_MONOTONIC on Linux).
now_s = time.perf_counter


class SpanSink(Protocol):
    """Takes the spans of one rank."""

    def span(self, name: SpanName, unit: int, start_s: float, end_s: float, moved_bytes: int, /) -> None:
        """Something that the rank did, by `now_s`; `unit` is -1 where it belongs to none."""
        ...


class _Nobody:
    def span(self, name: SpanName, unit: int, start_s: float, end_s: float, moved_bytes: int, /) -> None:
        pass


NO_SPANS: SpanSink = _Nobody()
