"""Where a rank's time went, from its spans. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from odcsim.trace_format import TraceSpan

__all__ = ["RankShares", "shares_of"]

# Of what goes on at one moment, the first of these counts.
_PARTS = ("compute", "optimizer", "waiting", "transfer")
_PART_OF = {"forward": 0, "backward": 0, "optimizer": 1, "wait": 2, "gather": 3, "scatter_accumulate": 3}


@dataclass(frozen=True)
class RankShares:
    """One rank's time, from its first span to the end of its last.

    Attributes:
        seconds: of it in all. The others are shares of it, and sum up to 1.
        compute: forward and backward.
        waiting: for other ranks.
        transfer: in which nothing was computed.
        optimizer: its steps.
        other: what no span tells of.
    """

    seconds: float
    compute: float
    waiting: float
    transfer: float
    optimizer: float
    other: float


def shares_of(spans: Iterable[TraceSpan]) -> RankShares:
    """Divide a rank's time; where spans overlap, compute comes before waiting, and waiting before transfer."""
    edges = sorted(
        edge
        for span in spans
        if span.end_s > span.start_s and span.name in _PART_OF
        for edge in ((span.start_s, 1, _PART_OF[span.name]), (span.end_s, -1, _PART_OF[span.name]))
    )
    assert edges, "a rank without spans"
    open_ones = [0] * len(_PARTS)
    totals_s = [0.0] * (len(_PARTS) + 1)
    before_s = edges[0][0]
    for at_s, change, part in edges:
        going_on = next((index for index, count in enumerate(open_ones) if count), len(_PARTS))
        totals_s[going_on] += at_s - before_s
        open_ones[part] += change
        before_s = at_s
    seconds = before_s - edges[0][0]
    shares = dict(zip((*_PARTS, "other"), (total_s / seconds for total_s in totals_s), strict=True))
    return RankShares(seconds=seconds, **shares)
