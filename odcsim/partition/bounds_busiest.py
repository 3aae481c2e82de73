"""The least time of the busiest rank, under any plan.

Legend: S samples, longest first; D ranks, fastest first; I = 1, 2, ..., so many of the longest samples; J = 1, 2, ...,
so many of the fastest ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds_samples import SortedSamples

__all__ = ["busiest_rank_s", "compute_lower_bound_s"]

_ROUNDING = 1e-12
_HALVINGS = 50


def compute_lower_bound_s(
    lengths_S: IntArray, *, cost: TokenCost, cap_tokens: int, speeds_D: Sequence[float] | FloatArray
) -> float:
    """Seconds that the busiest rank computes at least, under any plan.

    The largest of seven bounds; time on a rank is cost / speed, and c is the constant of a microbatch.
    1. All samples, spread evenly over the j fastest ranks: (cost + c x microbatches) / (sum of their speeds), with at
       least one microbatch a rank, for the best j. With D ranks of one speed: cost / D + c x microbatches / D.
    2. The same for the i longest samples alone, i = 1..D, which use at most i ranks. For i = 1 this is the longest
       sample's time on the fastest rank.
    3. Of the m D + 1 longest samples, some rank gets m + 1: at best the fastest rank gets the shortest m + 1 of them.
    4. Let p be the cost of the i-th longest, its share of a microbatch's constant included: c / floor(cap / length). In
       T seconds a rank runs at most floor(T x speed / p) of the i longest, and these must add up to i. The same holds
       for the fewest microbatches in place of the i longest, each of the shortest sample's cost and c at least.
    5. For i < D and j > i, the lesser of two times. Either two of the j longest share a rank, one of them among the i
       longest: the fastest rank runs the i-th and the j-th. Or the i longest have i ranks for themselves, as far as the
       j longest go, and the j - i others are spread evenly over the D - i fastest.
    6. Some rank has its share of all cost, speed / (sum of speeds), or more. It takes that long, and c for each of the
       microbatches that are needed to hold so much (`SortedSamples.most_held_S`).
    7. In T seconds a rank runs k microbatches, of at most k x cap tokens, none of which costs less than the cheapest
       sample's r a token: at most (T x speed - k c) / r tokens. With the best k for each, ranks must hold all tokens.

    Args:
        lengths_S: lengths as they are run, in tokens; those of 0 tokens (dropped) are left out.
        cost: time of a microbatch at speed 1; coefficients not negative.
        cap_tokens: most tokens of a microbatch; a longer sample has a microbatch of its own.
        speeds_D: speed of each rank, relative to `cost`; positive.

    Returns:
        0.0 where there is no sample.
    """
    speeds = np.asarray(speeds_D, dtype=np.float64)
    assert speeds.size > 0, "no rank"
    assert speeds.min() > 0, f"a rank's speed is {speeds.min()}; speeds are positive"
    samples = SortedSamples.of(lengths_S, cost=cost, cap_tokens=cap_tokens)
    return busiest_rank_s(samples, constant=cost.constant, speeds_D=speeds)


def busiest_rank_s(samples: SortedSamples, *, constant: float, speeds_D: FloatArray) -> float:
    """`compute_lower_bound_s` for samples that are sorted already; `constant` is of a microbatch, in seconds."""
    if samples.count == 0:
        return 0.0
    case = _Case(samples, constant=constant, speeds_D=np.sort(speeds_D)[::-1])
    bound_s = max(_spread_s(case), _pigeonhole_s(case), _counting_s(case), _lone_s(case), _fair_share_s(case))
    return _room_s(case, bound_s)


@dataclass(frozen=True, eq=False)
class _Case:
    """What the bounds are of: samples by descending length, ranks by descending speed."""

    samples: SortedSamples
    constant: float
    speeds_D: FloatArray

    @cached_property
    def speed_J(self) -> FloatArray:
        """Speed of so many of the fastest ranks together."""
        return np.cumsum(self.speeds_D)

    @cached_property
    def _gains_until_J(self) -> FloatArray:
        """Up to which load the j-th rank is better left alone.

        One more rank, of speed s, shortens the time of a load L on the j fastest, (L + j c) / S, while c / s is below
        it: while L > c (S / s - j), which grows with j.
        """
        before_J = self.speed_J - self.speeds_D
        return self.constant * (before_J / self.speeds_D - np.arange(self.speeds_D.size))

    def evenly_s(self, load_I: FloatArray, ranks_I: IntArray) -> FloatArray:
        """Loads spread evenly over the best number of the fastest ranks, at most `ranks_I`, a microbatch on each."""
        best_I = np.searchsorted(self._gains_until_J, load_I, side="left")
        best_I = np.minimum(np.maximum(best_I, 1), ranks_I)
        time_I: FloatArray = (load_I + self.constant * best_I) / self.speed_J[best_I - 1]
        return time_I


def _spread_s(case: _Case) -> float:
    """Bounds 1 and 2."""
    samples = case.samples
    usable = min(samples.count, case.speeds_D.size)
    ranks_J = np.arange(1, usable + 1)
    microbatches_J = np.maximum(samples.fewest_microbatches, ranks_J)
    whole_J = (samples.cost + case.constant * microbatches_J) / case.speed_J[:usable]
    longest_I = case.evenly_s(samples.cost_S1[1 : usable + 1], ranks_J)
    return max(float(whole_J.min()), float(longest_I.max()))


def _pigeonhole_s(case: _Case) -> float:
    """Bound 3; 0.0 where there are no more samples than ranks."""
    samples, ranks = case.samples, case.speeds_D.size
    mates_M = np.arange(1, (samples.count - 1) // ranks + 1)
    if mates_M.size == 0:
        return 0.0
    last_M = mates_M * ranks
    first_M = last_M - mates_M
    cost_M = samples.cost_S1[last_M + 1] - samples.cost_S1[first_M]
    tokens_M = samples.tokens_S1[last_M + 1] - samples.tokens_S1[first_M]
    microbatches_M = -(-tokens_M // samples.cap_tokens)
    return float(np.max((cost_M + case.constant * microbatches_M) / case.speeds_D[0]))


def _counting_s(case: _Case) -> float:
    """Bound 4: the i-th smallest of the multiples of the ranks' 1 / speed is when they have run i pieces of cost 1."""
    samples = case.samples
    # By (samples + ranks) / (sum of speeds) all ranks together have run as many pieces as there are samples.
    end = (samples.count + case.speeds_D.size) / case.speed_J[-1]
    runs_D = np.ceil(end * case.speeds_D).astype(np.int64)
    place_R = np.arange(1, runs_D.sum() + 1) - np.repeat(np.cumsum(runs_D) - runs_D, runs_D)
    run_at_S = np.sort(place_R / np.repeat(case.speeds_D, runs_D))[: samples.count]
    costs_S = samples.costs_S + case.constant / (samples.cap_tokens // samples.capped_S)
    microbatches_s = run_at_S[samples.fewest_microbatches - 1] * (samples.costs_S[-1] + case.constant)
    return max(float(np.max(run_at_S * costs_S)), float(microbatches_s))


def _lone_s(case: _Case) -> float:
    """Bound 5. For each i, the first time falls with j and the second rises: the best j is where they cross."""
    samples, count, ranks = case.samples, case.samples.count, case.speeds_D.size
    lone_I = np.arange(1, min(ranks, count))
    if lone_I.size == 0:
        return 0.0
    others_I = ranks - lone_I
    speed_I = case.speed_J[others_I - 1]
    cost_I, tokens_I = samples.costs_S[lone_I - 1], samples.capped_S[lone_I - 1]
    lone_cost_I, lone_tokens_I = samples.cost_S1[lone_I], samples.tokens_S1[lone_I]

    def together_I(last_I: IntArray) -> FloatArray:
        are_apart_I = tokens_I + samples.capped_S[last_I - 1] > samples.cap_tokens
        work_I = cost_I + samples.costs_S[last_I - 1] + case.constant * (1 + are_apart_I)
        time_I: FloatArray = work_I / case.speeds_D[0]
        return time_I

    def apart_I(last_I: IntArray) -> FloatArray:
        load_I = samples.cost_S1[last_I] - lone_cost_I
        microbatches_I = (samples.tokens_S1[last_I] - lone_tokens_I) / samples.cap_tokens
        filled_I = (load_I + case.constant * microbatches_I) / speed_I
        time_I: FloatArray = np.maximum(filled_I, case.evenly_s(load_I, others_I))
        return time_I

    # The first j, from i + 1 on, at which the second time is no longer the lesser; count + 1 where there is none.
    first_I, end_I = lone_I + 1, np.full_like(lone_I, count + 1)
    while (first_I < end_I).any():
        middle_I = np.minimum((first_I + end_I) // 2, count)
        has_crossed_I = apart_I(middle_I) >= together_I(middle_I)
        end_I = np.where(has_crossed_I, middle_I, end_I)
        first_I = np.where(has_crossed_I, first_I, middle_I + 1)
    before_I = np.where(end_I > lone_I + 1, apart_I(end_I - 1), 0.0)
    after_I = np.where(end_I <= count, together_I(np.minimum(end_I, count)), 0.0)
    return float(np.maximum(before_I, after_I).max())


def _fair_share_s(case: _Case) -> float:
    """Bound 6."""
    fair_s = case.samples.cost / float(case.speed_J[-1])
    microbatches_D = case.samples.fewest_to_hold_N(fair_s * case.speeds_D)
    return float(fair_s + case.constant * np.min(microbatches_D / case.speeds_D))


def _room_s(case: _Case, bound_s: float) -> float:
    """Bound 7 where it is above another bound, and else that one."""
    samples, constant, cap_tokens = case.samples, case.constant, case.samples.cap_tokens
    rate = float(np.min(samples.costs_S / samples.capped_S))
    if rate == 0 or constant == 0:
        return bound_s
    # Rounding must not ask for a token that there is not.
    tokens = float(samples.tokens_S1[-1]) * (1 - _ROUNDING)

    def is_enough(time_s: float) -> bool:
        # Room by the cap rises with k, room by time falls: the best k is next to where they meet.
        meet_D = time_s * case.speeds_D / (rate * cap_tokens + constant)
        by_cap_D = np.floor(meet_D) * cap_tokens
        by_time_D = (time_s * case.speeds_D - constant * np.ceil(meet_D)) / rate
        return float(np.maximum(by_cap_D, by_time_D).sum()) >= tokens

    if is_enough(bound_s):
        return bound_s
    low_s, high_s = bound_s, 2 * bound_s
    while not is_enough(high_s):
        low_s, high_s = high_s, 2 * high_s
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if is_enough(middle_s) else (middle_s, high_s)
    return low_s
