"""Where a rank's time goes: the sums of its spans. Durations in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from odcrt.tracing.recorder import Recorder
from odcsim.engines.timeline import SpanName

__all__ = ["TimeAccount"]


@dataclass
class TimeAccount:
    """Takes a rank's spans, passes them on to its recorder, and adds them up since the last `clear`.

    Attributes:
        recorder: keeps the spans.
        keeps_collectives: whether the duration of every transfer is kept.
        transfer_s: gathers and scatter-accumulates.
        wait_s: waits.
        publish_s: publishing.
        settle_s: settling.
        collectives_s: of every transfer, in order.
    """

    recorder: Recorder
    keeps_collectives: bool = False
    transfer_s: float = 0.0
    wait_s: float = 0.0
    publish_s: float = 0.0
    settle_s: float = 0.0
    collectives_s: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Start anew."""
        self.transfer_s = self.wait_s = self.publish_s = self.settle_s = 0.0
        self.collectives_s = []

    def span(self, name: SpanName, unit: int, start_s: float, end_s: float, moved_bytes: int, /) -> None:
        """See `odcrt.tracing.spans.SpanSink`."""
        self.recorder.span(name, unit, start_s, end_s, moved_bytes)
        duration_s = end_s - start_s
        if name == "wait":
            self.wait_s += duration_s
        elif name in {"gather", "scatter_accumulate"}:
            self.transfer_s += duration_s
            if self.keeps_collectives:
                self.collectives_s.append(duration_s)
        elif name == "publish":
            self.publish_s += duration_s
        elif name == "settle":
            self.settle_s += duration_s

    def away_s(self) -> float:
        """Time in which nothing was computed because of other ranks' data."""
        return self.transfer_s + self.wait_s
