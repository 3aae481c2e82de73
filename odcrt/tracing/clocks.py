"""One time for all ranks of a run. Times in seconds.

Processes of one host read the same clock (`time.perf_counter` is CLOCK_MONOTONIC on Linux). Clocks of several hosts
differ by an offset, which barriers reveal: nobody leaves a barrier before everybody has entered it.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from operator import sub
from typing import Any

from odcsim.trace_format import ClockInfo

__all__ = ["align_clocks"]


def align_clocks(
    barrier: Callable[[], object],
    exchange: Callable[[Any], Sequence[Any]],
    *,
    rounds: int = 15,
    timer: Callable[[], float] = time.perf_counter,
    host: str | None = None,
) -> ClockInfo:
    """Estimate each rank's offset from rank 0 by the moments at which they leave barriers. Collective.

    In every round, rank r leaves after rank 0 has entered, and rank 0 after rank r. So the offset lies between
    (r enters - 0 leaves) and (r leaves - 0 enters), whatever the barrier takes, and the tightest of these bounds over
    all rounds hold. The estimate is the median of (r leaves - 0 leaves), brought within the bounds; the uncertainty is
    its distance from the farther bound. Clocks are taken to run at one rate for the few milliseconds that this lasts.

    A rank on rank 0's host whose bounds allow an offset of 0 is given 0: they read one clock.

    Args:
        barrier: returns once all ranks have called it.
        exchange: takes one object of each rank, and returns those of all, in the order of ranks.
        rounds: barriers to measure.
        timer: the clock.
        host: where this rank runs; its name by default.

    Returns:
        The same on every rank. Its origin is the moment at which rank 0 left the last barrier.
    """
    assert rounds >= 1, "no rounds, no offsets"
    barrier()  # the first one may be slow
    entered_s, left_s = [], []
    for _ in range(rounds):
        entered_s.append(timer())
        barrier()
        left_s.append(timer())
    (first_host, *first_s), *others = exchange((host or socket.gethostname(), entered_s, left_s))
    first_entered_s, first_left_s = first_s
    offsets_s, uncertainty_s = [0.0], 0.0
    for rank_host, rank_entered_s, rank_left_s in others:
        least_s = max(map(sub, rank_entered_s, first_left_s))
        most_s = min(map(sub, rank_left_s, first_entered_s))
        median_s = statistics.median(map(sub, rank_left_s, first_left_s))
        same_clock = rank_host == first_host and least_s <= 0.0 <= most_s
        offset_s = 0.0 if same_clock else min(max(median_s, least_s), most_s)
        offsets_s.append(offset_s)
        uncertainty_s = max(uncertainty_s, offset_s - least_s, most_s - offset_s)
    return ClockInfo(
        name="perf_counter" if timer is time.perf_counter else getattr(timer, "__name__", "custom"),
        alignment="barriers" if any(offsets_s) else "shared",
        offsets_s=tuple(offsets_s),
        uncertainty_s=uncertainty_s,
        origin_s=first_left_s[-1],
    )
