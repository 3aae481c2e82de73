"""`lockstep`: for collectives, where ranks meet after every microbatch: the least sum over steps of the longest one.

The number of steps and what every rank runs in each are chosen together. Steps are filled from the longest sample down
(`odcsim.partition.lockstep`). The best of these arrangements, and of those of published policies, are improved by
exchanges between microbatches (`odcsim.partition.step_exchanges`), and the best of all is taken. So by its objective,
in which a step costs a microbatch's constant once, no plan of `local-sort`, `lb-micro` or `verl-native` is better, as
long as minibatches are not very large (`odcsim.policies.large`).

Where groups are to be kept, they are balanced over ranks first. Each rank's microbatches are then made of its own
samples, and like those that other ranks run at the same time.

Steps run by descending height. Within a step, the costliest microbatch goes to the rank with the least to do so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.balance import balance
from odcsim.partition.fewest import pack_fewest
from odcsim.partition.lockstep import FilledSteps, even_out_steps, fill_steps, sort_bins
from odcsim.partition.packing import pack_ranks_alike
from odcsim.partition.step_exchanges import lower_heights
from odcsim.plan import Microbatch, Plan
from odcsim.policies.base import PlanTask, Policy
from odcsim.policies.groups import members_of_groups
from odcsim.policies.large import LARGE, size_of
from odcsim.policies.large.lockstep import plan_at_once
from odcsim.policies.lb_micro import LB_MICRO
from odcsim.policies.local_sort import LOCAL_SORT
from odcsim.policies.verl_native import VERL_NATIVE

__all__ = ["LOCKSTEP"]

# Arrangements that are improved by exchanges, best first.
_IMPROVED = 3
# Exchanges looked at for each, at most.
_EXCHANGES = 1_000_000


def _make_plan(task: PlanTask) -> Plan:
    if not task.lengths_S.size:
        return Plan(((),) * task.ranks)
    if task.lengths_S.size < task.ranks:
        # The first ranks have a sample each, at most; the others meet them with padding.
        few = _make_plan(task.on_ranks(np.arange(task.lengths_S.size)))
        return Plan(few.ranks + ((),) * (task.ranks - len(few.ranks)))
    if size_of(task) > LARGE:
        return plan_at_once(task)
    costs_S = task.cost.sample_costs_S(task.lengths_S)
    if task.groups_S is not None:
        return Plan(_keep_groups(task, costs_S, task.groups_S))
    return Plan(_deal(_best_steps(task, costs_S), costs_S, ranks=task.ranks))


def _best_steps(task: PlanTask, costs_S: FloatArray) -> FilledSteps:
    """The best arrangement of the samples, whichever rank runs what."""
    costs, ranks, constant = costs_S.tolist(), task.ranks, task.cost.constant
    found = fill_steps(costs, task.lengths_S.tolist(), ranks=ranks, cap_tokens=task.cap_tokens, constant=constant)
    for policy in (LB_MICRO, VERL_NATIVE, LOCAL_SORT):
        microbatches = list(chain.from_iterable(policy.make_plan(task).ranks))
        found.append(sort_bins(microbatches, costs, ranks=ranks, constant=constant))
    found.sort(key=lambda filled: filled.time_s)
    found += [_exchanged(filled, task, costs_S) for filled in found[:_IMPROVED]]
    best = min(found, key=lambda filled: filled.time_s)
    evened = even_out_steps(best.bins, costs_S, task.lengths_S, ranks=ranks, cap_tokens=task.cap_tokens)
    evened_out = _exchanged(sort_bins(evened, costs, ranks=ranks, constant=constant), task, costs_S, divides=True)
    return min(best, evened_out, key=lambda filled: filled.time_s)


def _exchanged(filled: FilledSteps, task: PlanTask, costs_S: FloatArray, *, divides: bool = False) -> FilledSteps:
    """An arrangement after exchanges between bins."""
    bins = lower_heights(
        filled.bins,
        costs_S,
        task.lengths_S,
        ranks=task.ranks,
        cap_tokens=task.cap_tokens,
        budget=_EXCHANGES,
        divides=divides,
    )
    return sort_bins(bins, costs_S.tolist(), ranks=task.ranks, constant=task.cost.constant)


def _deal(filled: FilledSteps, costs_S: FloatArray, *, ranks: int) -> tuple[tuple[Microbatch, ...], ...]:
    """Each step's bins to ranks, the costliest to the rank with the least to do so far."""
    done_s = [0.0] * ranks
    microbatches: list[list[Microbatch]] = [[] for _ in range(ranks)]
    for start in range(0, len(filled.bins), ranks):
        idlest_first = sorted(range(ranks), key=done_s.__getitem__)
        for rank, chosen in zip(idlest_first, filled.bins[start : start + ranks], strict=False):
            microbatches[rank].append(tuple(chosen))
            done_s[rank] += float(costs_S[chosen].sum())
    return tuple(map(tuple, microbatches))


def _keep_groups(task: PlanTask, costs_S: FloatArray, groups_S: IntArray) -> tuple[tuple[Microbatch, ...], ...]:
    """Groups balanced over ranks, and each rank's samples in microbatches like the others'."""
    costs, tokens, cap_tokens = costs_S.tolist(), task.lengths_S.tolist(), task.cap_tokens
    members = members_of_groups(groups_S)
    parts = balance([sum(costs[sample] for sample in group) for group in members], parts=task.ranks)
    assert parts is not None, "without a cap there is always a way"
    samples_D = [[sample for group in part for sample in members[group]] for part in parts]
    found = []
    for packed in (
        pack_ranks_alike(samples_D, costs_S=costs, tokens_S=tokens, cap_tokens=cap_tokens),
        tuple(pack_fewest(samples, tokens_S=tokens, cap_tokens=cap_tokens) for samples in samples_D),
    ):
        most = max(map(len, packed))
        bins = [microbatch for rank in packed for microbatch in (*rank, *((),) * (most - len(rank)))]
        lowered = lower_heights(
            bins,
            costs_S,
            task.lengths_S,
            ranks=task.ranks,
            cap_tokens=cap_tokens,
            budget=_EXCHANGES,
            divides=True,
            owners=[rank for rank in range(task.ranks) for _ in range(most)],
        )
        found += [_by_descending_cost(owned, costs, ranks=task.ranks) for owned in (bins, lowered)]
    return min(found, key=lambda ranks: _time_s(ranks, costs, constant=task.cost.constant))


def _by_descending_cost(
    bins: Sequence[Sequence[int]], costs: Sequence[float], *, ranks: int
) -> tuple[tuple[Microbatch, ...], ...]:
    """Bins that have owners, as many of each in a row, as ranks' microbatches."""
    each = len(bins) // ranks
    keyed = [(-sum([costs[sample] for sample in chosen]), tuple(sorted(chosen))) for chosen in bins]
    return tuple(
        tuple(chosen for _, chosen in sorted(keyed[rank * each : (rank + 1) * each]) if chosen) for rank in range(ranks)
    )


def _time_s(ranks: Sequence[Sequence[Microbatch]], costs: Sequence[float], *, constant: float) -> float:
    """The sum over steps of the longest microbatch, its constant included."""
    steps = max(map(len, ranks))
    return steps * constant + sum(
        max(sum([costs[sample] for sample in rank[step]]) for rank in ranks if step < len(rank))
        for step in range(steps)
    )


LOCKSTEP = Policy(
    name="lockstep",
    make_plan=_make_plan,
    equal_counts=True,
    summary="the least sum over steps of the longest microbatch, for collectives",
    keeps_groups=True,
)
