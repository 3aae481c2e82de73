"""Who pulls what: the rank of every microbatch of plans whose microbatches are pulled. Times in seconds.

A rank that is through with a microbatch takes the next of the queue; of several that are through at once, the one with
the lowest number goes first. A rank's m-th microbatch takes as long as the schedule's chain of visits does for it
alone, transfers included, at the rank's own stretch for its m-th. From then on the plan is like any other: engines run
it, and need not know how it came about.

Legend: N minibatches, D ranks, K microbatches of the longest queue, M microbatches of a rank, X different stretches, R
microbatches looked at together, F factors, V visits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.engines import find_engine
from odcsim.plan import Plan
from odcsim.policies import MinibatchPlan
from odcsim.schedule import Schedule, Work

__all__ = ["Queues", "StretchOf", "pull", "ranks_of_pulled"]

StretchOf = Callable[[int], FloatArray]
"""For M, how many times longer a rank's m-th microbatch takes than on a rank of speed 1, shape (N, D, M). A larger M
only adds to what a smaller one gives."""

# Up to so many different stretches, every microbatch is timed at each of them, all at once, before anything is pulled.
_FEW_STRETCHES = 8


@dataclass(frozen=True)
class Queues:
    """The microbatches of N minibatches that D ranks pull.

    Attributes:
        ranks: D.
        counts_N: microbatches of each minibatch's queue; K is the largest.
        factors_NKF: squared tokens, tokens, and one; zeros beyond a queue's count.
    """

    ranks: int
    counts_N: IntArray
    factors_NKF: FloatArray

    @classmethod
    def of(cls, planned: Sequence[MinibatchPlan]) -> Queues:
        """What the plans of minibatches leave to be pulled."""
        counts_N = np.array([len(minibatch.plan.pulled) for minibatch in planned], dtype=np.int64)
        factors_NKF = np.zeros((len(planned), int(counts_N.max(initial=0)), 3))
        for position, minibatch in enumerate(planned):
            # As one rank would run them all.
            loads = Plan(ranks=(minibatch.plan.pulled,)).loads(minibatch.lengths_S)
            factors_NKF[position, : counts_N[position]] = np.stack(
                [loads.squared_tokens_DM[0], loads.tokens_DM[0], np.ones(counts_N[position])], axis=-1
            )
        return cls(len(planned[0].plan.ranks), counts_N, factors_NKF)


def ranks_of_pulled(
    planned: Sequence[MinibatchPlan], schedule: Schedule, coefficients_FV: FloatArray, *, stretch_of: StretchOf
) -> list[tuple[int, ...]]:
    """For each of N minibatches, the ranks that pull the microbatches of its plan: what `Plan.assigned` takes.

    Args:
        planned: on the same ranks; of a plan that leaves nothing to be pulled, no rank pulls anything.
        schedule: under `odc`; links that transfers share are taken as if each had them to itself.
        coefficients_FV: seconds of a visit per squared token, token and microbatch.
        stretch_of: how many times longer they take.
    """
    if not any(minibatch.plan.pulled for minibatch in planned):
        return [()] * len(planned)
    queues = Queues.of(planned)
    rank_of_NK = pull(queues, schedule, coefficients_FV, stretch_of=stretch_of)
    return [
        tuple(rank_of_K[:count].tolist()) for rank_of_K, count in zip(rank_of_NK, queues.counts_N.tolist(), strict=True)
    ]


def pull(queues: Queues, schedule: Schedule, coefficients_FV: FloatArray, *, stretch_of: StretchOf) -> IntArray:
    """The rank that pulls each microbatch, shape (N, K); -1 beyond a queue's count. See `ranks_of_pulled`."""
    longest = queues.factors_NKF.shape[1]
    # As many as a rank is likely to pull: stretches of all K would take D times the memory of everything else.
    most = min(longest, 2 * -(-longest // queues.ranks) + 2)
    while True:
        found_NK = _pull(queues, _AloneTimes(queues, coefficients_FV, schedule, stretch_of(most)))
        if found_NK is not None:
            return found_NK
        most = min(2 * most, longest)


def _pull(queues: Queues, alone: _AloneTimes) -> IntArray | None:
    """See `pull`; None where a rank pulls more microbatches than stretches are known of."""
    minibatches, longest, _ = queues.factors_NKF.shape
    rank_of_NK = np.full((minibatches, longest), -1, dtype=np.int64)
    free_s_ND = np.zeros((minibatches, queues.ranks))
    pulled_ND = np.zeros((minibatches, queues.ranks), dtype=np.int64)
    for place in range(longest):
        rows_R = np.flatnonzero(queues.counts_N > place)
        # The first of the smallest: of ranks that are free at once, the one with the lowest number.
        ranks_R = free_s_ND[rows_R].argmin(axis=1)
        positions_R = pulled_ND[rows_R, ranks_R]
        if int(positions_R.max(initial=0)) >= alone.most:
            return None
        rank_of_NK[rows_R, place] = ranks_R
        free_s_ND[rows_R, ranks_R] += alone.of(place, rows_R, ranks_R, positions_R)
        pulled_ND[rows_R, ranks_R] += 1
    return rank_of_NK


class _AloneTimes:
    """How long microbatches take a rank that runs each of them alone.

    Attributes:
        most: microbatches of a rank whose stretches are known.
    """

    def __init__(
        self, queues: Queues, coefficients_FV: FloatArray, schedule: Schedule, stretch_NDM: FloatArray
    ) -> None:
        assert schedule.sync == "odc", f"under {schedule.sync} ranks run microbatches together, and nobody pulls"
        self.most = stretch_NDM.shape[2]
        self._factors_NKF = queues.factors_NKF
        self._coefficients_FV = coefficients_FV
        # The microbatch and nothing else.
        self._schedule = replace(schedule, publish_s=0.0, settle_s=0.0, fixed_s=0.0, optimizer_s=0.0, shared_links=None)
        self._stretch_NDM = stretch_NDM
        self._time_s_XNK: FloatArray | None = None
        stretches_X, kinds = np.unique(stretch_NDM, return_inverse=True)
        if stretches_X.size <= _FEW_STRETCHES:
            self._kind_NDM = kinds.reshape(stretch_NDM.shape)
            factors_XNKF = stretches_X[:, None, None, None] * queues.factors_NKF
            self._time_s_XNK = self._time_s(factors_XNKF.reshape(-1, 3)).reshape(factors_XNKF.shape[:3])

    def of(self, place: int, minibatches_R: IntArray, ranks_R: IntArray, positions_R: IntArray) -> FloatArray:
        """Seconds of the queues' microbatch at a place, which a rank of each minibatch runs at some position."""
        if self._time_s_XNK is not None:
            kinds_R = self._kind_NDM[minibatches_R, ranks_R, positions_R]
            looked_up_s_R: FloatArray = self._time_s_XNK[kinds_R, minibatches_R, place]
            return looked_up_s_R
        stretch_R = self._stretch_NDM[minibatches_R, ranks_R, positions_R]
        return self._time_s(self._factors_NKF[minibatches_R, place] * stretch_R[:, None])

    def _time_s(self, factors_RF: FloatArray) -> FloatArray:
        """Seconds of each of R microbatches, as a minibatch of one rank that runs it alone."""
        counts_R1 = np.ones((len(factors_RF), 1), dtype=np.int64)
        work = Work(counts_R1, factors_RF[:, None, None, :], self._coefficients_FV)
        return find_engine("recurrence")(work, self._schedule).minibatch_s_N
