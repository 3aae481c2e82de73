"""The best plan of a handful of samples, proven: what policies can be measured against.

A *place* holds a set of samples: a rank's share under `odc`, a step's under `fsdp`. What a set takes at best in a place
is tabulated for every set (`SampleSets`):
    odc   its cost, and the constant for each of the fewest microbatches that hold it
    fsdp  its costliest microbatch, split over D ranks in the best way, and the constant once
What is left is to choose sets that hold every sample once, for the least of the largest time over ranks, or of the sum
over steps. That is a set partitioning problem, given to HiGHS as a mixed-integer program: a binary variable for every
set and kind of place. Places are told apart by speed alone, so it has no symmetries that would have to be broken. Sets
that take longer than a plan already known, or leave too much to the other places, are left out.

Times are of compute alone, in seconds. Legend: S samples, D ranks, P places, K kinds of places (speeds), C sets, V
variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcsim.arrays import BoolArray, FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds import compute_lower_bound_s, lockstep_lower_bound_s
from odcsim.partition.exact_sets import SampleSets, members_of
from odcsim.plan import Plan
from odcsim.schedule import Sync

__all__ = ["MOST_SAMPLES", "ExactAnswer", "compute_plan_s", "solve_exactly"]

MOST_SAMPLES = 12
"""Samples that `solve_exactly` takes at most: their sets are tabulated in a fraction of a second."""

# Two times are one where they differ by less than this share; HiGHS itself tells no more apart (its feasibility
# tolerance is 1e-6, and times are scaled to about 1).
_TOLERANCE = 1e-6
# HiGHS may look at plans that are slower than the known one by this share: its rounding must not rule out that one.
_SLACK = 1e-4


@dataclass(frozen=True)
class ExactAnswer:
    """The best plan found.

    Attributes:
        plan: for `fsdp`, with padding microbatches where ranks have fewer than others.
        time_s: its time, as `compute_plan_s` has it.
        is_proven: whether no plan is faster by more than two millionths of the time.
        bound_s: no plan is faster than this.
    """

    plan: Plan
    time_s: float
    is_proven: bool
    bound_s: float


def compute_plan_s(
    plan: Plan, lengths_S: IntArray, *, cost: TokenCost, sync: Sync, speeds_D: Sequence[float] | FloatArray
) -> float:
    """Seconds of a plan, if all else but compute is free; a microbatch takes its samples' cost and the constant.

    Under `odc` the largest over ranks of the sum of its microbatches' times, divided by its speed. Under `fsdp` the sum
    over steps (the k-th microbatches of all ranks) of the longest; ranks must be of one speed.
    """
    loads = plan.loads(lengths_S)
    cost_DM = cost.quadratic * loads.squared_tokens_DM + cost.linear * loads.tokens_DM
    speed_D = np.asarray(speeds_D, dtype=np.float64)
    if sync == "odc":
        return float(((cost_DM.sum(axis=1) + cost.constant * loads.counts_D) / speed_D).max())
    assert (speed_D == speed_D[0]).all(), f"speeds {speed_D.tolist()} under fsdp; one speed is expected"
    return float((cost_DM.max(axis=0).sum() + cost.constant * cost_DM.shape[1]) / speed_D[0])


def solve_exactly(
    lengths_S: IntArray,
    *,
    ranks: int,
    cap_tokens: int,
    cost: TokenCost,
    sync: Sync,
    speeds_D: Sequence[float] | FloatArray | None = None,
    time_limit_s: float = 60.0,
) -> ExactAnswer:
    """The plan of least compute time; see `compute_plan_s`. Proven in less than a second mostly, in seconds at worst.

    Args:
        lengths_S: samples' lengths in tokens, at least 1; at most `MOST_SAMPLES` of them.
        ranks: number of ranks, at least 1.
        cap_tokens: most tokens of a microbatch; a longer sample has a microbatch of its own.
        cost: time of a microbatch at speed 1; coefficients not negative.
        sync: `fsdp`: ranks meet after every microbatch, and have as many each; `odc`: at the end only.
        speeds_D: speed of each rank, relative to `cost`, positive; None: 1. All alike under `fsdp`.
        time_limit_s: how long HiGHS may take.
    """
    lengths_S = np.asarray(lengths_S, dtype=np.int64)
    speeds = np.ones(ranks) if speeds_D is None else np.asarray(speeds_D, dtype=np.float64)
    assert ranks >= 1, f"{ranks} ranks"
    assert speeds.shape == (ranks,), f"speeds of shape {speeds.shape} for {ranks} ranks"
    assert (speeds > 0).all(), f"speeds {speeds.tolist()}; all must be positive"
    assert lengths_S.size <= MOST_SAMPLES, f"{lengths_S.size} samples; plans are proven for {MOST_SAMPLES} at most"
    assert (lengths_S > 0).all(), f"lengths {lengths_S.tolist()}; all must be positive"
    if lengths_S.size == 0:
        return ExactAnswer(Plan(ranks=((),) * ranks), time_s=0.0, is_proven=True, bound_s=0.0)
    make_problem = _ranks_to_fill if sync == "odc" else _steps_to_fill
    problem = make_problem(lengths_S, speeds=speeds, cap_tokens=cap_tokens, cost=cost)

    chosen_P = _fill_one_by_one(problem)
    most_s, least_s = problem.time_s(chosen_P), problem.bound_s
    if least_s < most_s * (1 - _TOLERANCE):
        better_P, least_s = _fill_by_highs(problem, most_s=most_s, time_limit_s=time_limit_s)
        if better_P is not None and problem.time_s(better_P) < most_s:
            chosen_P = better_P
    plan = (_plan_of_ranks if sync == "odc" else _plan_of_steps)(problem, chosen_P, ranks=ranks)
    plan.check(np.minimum(lengths_S, cap_tokens), ranks=ranks, cap_tokens=cap_tokens)
    time_s = compute_plan_s(plan, lengths_S, cost=cost, sync=sync, speeds_D=speeds)
    return ExactAnswer(plan, time_s, is_proven=least_s >= time_s * (1 - 2 * _TOLERANCE), bound_s=min(least_s, time_s))


@dataclass(frozen=True)
class _Problem:
    """Sets to be chosen for places.

    Attributes:
        sets: all sets of the samples.
        work_C: seconds that a place of speed 1 takes for a set; 0 for the empty one.
        least_work_C: seconds of places of speed 1, added up, that a set takes at least, however many places share it.
        microbatches_C: into how many at most a place splits a set.
        speeds_P: of each place.
        fewest_places: that are not empty.
        is_summed: whether times of places add up, rather than the longest counting.
        bound_s: known to be no more than the best.
    """

    sets: SampleSets
    work_C: FloatArray
    least_work_C: FloatArray
    microbatches_C: IntArray
    speeds_P: FloatArray
    fewest_places: int
    is_summed: bool
    bound_s: float

    @property
    def samples(self) -> int:
        """How many there are."""
        return int(self.sets.are_members_SC.shape[0])

    @cached_property
    def kinds(self) -> tuple[FloatArray, IntArray]:
        """The different speeds, and how many places have each."""
        return np.unique(self.speeds_P, return_counts=True)

    def time_s(self, chosen_P: Sequence[int]) -> float:
        """What is to be small, for a set in each place."""
        time_P = self.work_C[list(chosen_P)] / self.speeds_P
        return float(time_P.sum() if self.is_summed else time_P.max())

    def microbatches(self, chosen: int) -> list[int]:
        """The microbatches of a set, the costliest first."""
        parts = self.sets.split(chosen, microbatches=int(self.microbatches_C[chosen]))
        return sorted(parts, key=lambda part: (-self.sets.costs_C[part], part))


def _ranks_to_fill(lengths_S: IntArray, *, speeds: FloatArray, cap_tokens: int, cost: TokenCost) -> _Problem:
    sets = SampleSets.of(cost.sample_costs_S(lengths_S), lengths_S, cap_tokens=cap_tokens)
    fewest_C = sets.fewest_microbatches_C()
    work_C = sets.costs_C + cost.constant * fewest_C
    return _Problem(
        sets=sets,
        work_C=work_C,
        least_work_C=work_C,  # Dividing a set saves no microbatch.
        microbatches_C=fewest_C,
        speeds_P=speeds,
        fewest_places=1,
        is_summed=False,
        bound_s=compute_lower_bound_s(lengths_S, cost=cost, cap_tokens=cap_tokens, speeds_D=speeds),
    )


def _steps_to_fill(lengths_S: IntArray, *, speeds: FloatArray, cap_tokens: int, cost: TokenCost) -> _Problem:
    assert (speeds == speeds[0]).all(), f"speeds {speeds.tolist()} under fsdp; one speed is expected"
    samples = lengths_S.size
    usable = min(speeds.size, samples)
    costs_S = cost.sample_costs_S(lengths_S)
    sets = SampleSets.of(costs_S, lengths_S, cap_tokens=cap_tokens)
    work_C = sets.heights_CB[:, usable] + cost.constant
    work_C[0] = 0.0
    # Heights add up to an even spread at least, and to the costliest sample.
    costliest_C = np.max(sets.are_members_SC * costs_S[:, np.newaxis], axis=0)
    steps_C = -(-sets.fewest_microbatches_C() // usable)
    least_work_C = np.maximum(sets.costs_C / usable, costliest_C) + cost.constant * steps_C
    bound_s = lockstep_lower_bound_s(lengths_S, cost=cost, cap_tokens=cap_tokens, ranks=speeds.size)
    return _Problem(
        sets=sets,
        work_C=work_C,
        least_work_C=least_work_C,
        microbatches_C=np.full(work_C.size, usable),
        speeds_P=np.full(samples, speeds[0]),
        fewest_places=int(steps_C[-1]),
        is_summed=True,
        bound_s=bound_s / float(speeds[0]),
    )


def _fill_one_by_one(problem: _Problem) -> list[int]:
    """A fair start: each sample, the costliest first, where it adds least."""
    chosen_P = [0] * problem.speeds_P.size
    costs_S = problem.sets.costs_C[1 << np.arange(problem.samples)]
    for sample in np.argsort(-costs_S, kind="stable").tolist():
        options = []
        for place, before in enumerate(chosen_P):
            chosen_P[place] = before | 1 << sample
            place_s = problem.work_C[chosen_P[place]] / problem.speeds_P[place]
            options.append((problem.time_s(chosen_P), place_s, place))
            chosen_P[place] = before
        chosen_P[min(options)[-1]] |= 1 << sample
    return chosen_P


def _fill_by_highs(problem: _Problem, *, most_s: float, time_limit_s: float) -> tuple[list[int] | None, float]:
    """The best choice that HiGHS finds within the limit, if any, and a bound on every choice."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    speeds_K, places_K = problem.kinds
    kind_V, set_V = np.nonzero(_may_be_best_KC(problem, most_s=most_s))
    # Times are scaled to about 1, which HiGHS's absolute tolerances are made for. The last variable is what is small.
    time_V = problem.work_C[set_V] / speeds_K[kind_V] / most_s
    holds_SV = problem.sets.are_members_SC[:, set_V].astype(np.float64)
    # No two of the chosen sets hold one sample, so each of these sums is the time of one rank.
    late_RV = time_V[np.newaxis] if problem.is_summed else holds_SV * time_V
    is_of_kind_KV = (kind_V == np.arange(speeds_K.size)[:, np.newaxis]).astype(np.float64)

    def with_last(rows_RV: FloatArray, value: float) -> FloatArray:
        return np.concatenate([rows_RV, np.full((rows_RV.shape[0], 1), value)], axis=1)

    answer = milp(
        c=np.append(np.zeros(set_V.size), 1.0),
        integrality=np.append(np.ones(set_V.size), 0.0),
        bounds=Bounds(
            lb=np.append(np.zeros(set_V.size), problem.bound_s / most_s),
            ub=np.append(np.ones(set_V.size), 1.0 + _SLACK),
        ),
        constraints=[
            LinearConstraint(with_last(holds_SV, 0.0), lb=1.0, ub=1.0),
            LinearConstraint(with_last(is_of_kind_KV, 0.0), ub=places_K),
            LinearConstraint(with_last(np.ones((1, set_V.size)), 0.0), lb=problem.fewest_places),
            LinearConstraint(with_last(late_RV, -1.0), lb=0.0 if problem.is_summed else -np.inf, ub=0.0),
        ],
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    found_s = 0.0 if answer.mip_dual_bound is None else float(answer.mip_dual_bound) * most_s
    least_s = max(problem.bound_s, found_s)
    if answer.x is None:
        return None, least_s
    chosen_P = [0] * problem.speeds_P.size
    free_of_kind = [np.flatnonzero(problem.speeds_P == speed).tolist() for speed in speeds_K]
    for variable in np.flatnonzero(answer.x[:-1] > 0.5):
        chosen_P[free_of_kind[kind_V[variable]].pop(0)] = int(set_V[variable])
    return chosen_P, least_s


def _may_be_best_KC(problem: _Problem, *, most_s: float) -> BoolArray:
    """Whether a set can be in a place of a kind, and the other samples in others, within `most_s` altogether."""
    speeds_K, _ = problem.kinds
    time_KC = problem.work_C / speeds_K[:, np.newaxis]
    most_s *= 1 + _TOLERANCE
    others_work_C = problem.least_work_C[::-1]  # The set of all samples but those of set c is number C - 1 - c.
    if problem.is_summed:
        may_be_KC = time_KC + others_work_C / speeds_K[:, np.newaxis] <= most_s
    else:
        others_most_K = most_s * (problem.speeds_P.sum() - speeds_K)
        may_be_KC = (time_KC <= most_s) & (others_work_C <= others_most_K[:, np.newaxis])
    may_be_KC[:, 0] = False
    return may_be_KC


def _plan_of_ranks(problem: _Problem, chosen_P: Sequence[int], *, ranks: int) -> Plan:
    del ranks  # Places are the ranks.
    return Plan(ranks=tuple(tuple(map(members_of, problem.microbatches(chosen))) for chosen in chosen_P))


def _plan_of_steps(problem: _Problem, chosen_P: Sequence[int], *, ranks: int) -> Plan:
    """All steps' microbatches, costliest first, dealt to the ranks in turn: no step is higher than it was."""
    microbatches = [part for chosen in chosen_P for part in problem.microbatches(chosen)]
    microbatches.sort(key=lambda part: (-problem.sets.costs_C[part], part))
    parts_D = [tuple(map(members_of, microbatches[rank::ranks])) for rank in range(ranks)]
    return Plan(ranks=tuple(parts_D)).padded()
