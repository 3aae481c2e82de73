"""What no plan can beat: fewest microbatches, and the least time of the busiest rank.

Every bound here is one, for each way of assigning samples to ranks and packing them under the cap, up to the rounding
of floating-point sums. None of them is always reached.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost

__all__ = ["compute_lower_bound_s", "count_fewest_microbatches"]


def count_fewest_microbatches(tokens_S: Sequence[int], *, cap_tokens: int) -> int:
    """Microbatches that samples need at least, whoever packs them.

    The largest of ceil(tokens / cap) and, for each i, ceil(i / m), where m = floor(cap / tokens of the i-th longest) is
    how many of the i longest can share a microbatch at most. A sample over the cap counts as one of cap tokens: either
    is alone.

    Args:
        tokens_S: lengths, at least 1.
        cap_tokens: most tokens of a microbatch, at least 1.
    """
    capped = sorted([min(tokens, cap_tokens) for tokens in tokens_S], reverse=True)
    fewest = -(-sum(capped) // cap_tokens)
    for place, tokens in enumerate(capped, start=1):
        fewest = max(fewest, -(-place // (cap_tokens // tokens)))
    return fewest


def compute_lower_bound_s(
    lengths_S: IntArray, *, cost: TokenCost, cap_tokens: int, speeds_D: Sequence[float] | FloatArray
) -> float:
    """Seconds that the busiest rank computes at least, under any plan.

    The largest of three bounds; time on a rank is cost / speed, and c is the constant of a microbatch.
    1. All samples, spread evenly over the j fastest ranks: (cost + c x microbatches) / (sum of their speeds), with at
       least one microbatch a rank, for the best j. With D ranks of one speed: cost / D + c x microbatches / D.
    2. The same for the i longest samples alone, i = 1..D, which use at most i ranks. For i = 1 this is the longest
       sample's time on the fastest rank.
    3. Of the m D + 1 longest samples, some rank gets m + 1: at best the fastest rank gets the shortest m + 1 of them.

    Args:
        lengths_S: lengths as they are run, in tokens; those of 0 tokens (dropped) are left out.
        cost: time of a microbatch at speed 1; coefficients not negative.
        cap_tokens: most tokens of a microbatch; a longer sample has a microbatch of its own.
        speeds_D: speed of each rank, relative to `cost`; positive.

    Returns:
        0.0 where there is no sample.
    """
    tokens_S = np.sort(lengths_S[lengths_S > 0])[::-1]
    speeds = np.sort(np.asarray(speeds_D, dtype=np.float64))[::-1]
    assert speeds.size > 0, "no rank"
    assert speeds[-1] > 0, f"a rank's speed is {speeds[-1]}; speeds are positive"
    if tokens_S.size == 0:
        return 0.0
    costs_S = cost.sample_costs_S(tokens_S)
    all_tokens = count_fewest_microbatches(tokens_S.tolist(), cap_tokens=cap_tokens)
    return max(
        _spread_bound_s(costs_S, constant=cost.constant, fewest=all_tokens, speeds=speeds),
        _pigeonhole_bound_s(costs_S, tokens_S, cap_tokens=cap_tokens, constant=cost.constant, speeds=speeds),
    )


def _spread_bound_s(costs_S: FloatArray, *, constant: float, fewest: int, speeds: FloatArray) -> float:
    """Bounds 1 and 2. `costs_S` and `speeds` descend."""
    usable = min(costs_S.size, speeds.size)
    ranks_J = np.arange(1, usable + 1)
    speed_J = np.cumsum(speeds[:usable])
    whole = float(np.min((costs_S.sum() + constant * np.maximum(fewest, ranks_J)) / speed_J))
    longest_I = np.cumsum(costs_S[:usable])
    # One more rank, of speed s, shortens the time of a load L on the j fastest, (L + j c) / S, while c / s is below it:
    # while L > c (S / s - j), which grows with j. So the best number of ranks is found by bisection, and is at most i.
    gains_until_J = constant * ((speed_J - speeds[:usable]) / speeds[:usable] - (ranks_J - 1))
    best_I = np.clip(np.searchsorted(gains_until_J, longest_I, side="left"), 1, ranks_J)
    time_I = (longest_I + constant * best_I) / speed_J[best_I - 1]
    return max(whole, float(time_I.max()))


def _pigeonhole_bound_s(
    costs_S: FloatArray, tokens_S: IntArray, *, cap_tokens: int, constant: float, speeds: FloatArray
) -> float:
    """Bound 3; 0.0 where there are no more samples than ranks. `costs_S`, `tokens_S` and `speeds` descend."""
    mates_M = np.arange(1, (costs_S.size - 1) // speeds.size + 1)
    if mates_M.size == 0:
        return 0.0
    last_M = mates_M * speeds.size
    first_M = last_M - mates_M

    def summed_M(values_S: FloatArray) -> FloatArray:
        before: FloatArray = np.concatenate([[0.0], np.cumsum(values_S)])
        summed: FloatArray = before[last_M + 1] - before[first_M]
        return summed

    capped_S = np.minimum(tokens_S, cap_tokens).astype(np.float64)
    microbatches_M = np.ceil(summed_M(capped_S) / cap_tokens)
    return float(np.max((summed_M(costs_S) + constant * microbatches_M) / speeds[0]))
