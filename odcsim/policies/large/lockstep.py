"""Very many samples for collectives: bins of like cost in steps.

Bins are filled as tightly as best fit does, sorted by cost, and cut into steps, so the costs within a step add up to no
more than those of the costliest bin. The steps that are least even, of which the last may be short of bins, have their
samples split anew. Where steps are few, samples are also balanced by cost over as many bins as the steps have; of not
too many samples, such few steps are filled from the longest down, too.

Groups that stay together are balanced over ranks first. Each rank then fills its own bins.

Legend: S samples, B bins, D ranks, K steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.balance import find_homes
from odcsim.partition.homes import homes_of
from odcsim.partition.lockstep import even_out_steps, fill_steps
from odcsim.plan import Microbatch, Plan
from odcsim.policies.base import PlanTask
from odcsim.policies.large import MOST_COMPARED, size_of
from odcsim.policies.large.bins import Bins, cut
from odcsim.policies.lb_micro import LB_MICRO
from odcsim.policies.verl_native import VERL_NATIVE

__all__ = ["plan_at_once"]

# Steps whose samples are split anew, at most, until they have had so many samples; and the most of one step.
_MOST_EVENED = 64
_MOST_EVENED_SAMPLES = 1 << 11
_MOST_IN_STEP = 1 << 14
# A step is worth it if it is higher than an even one by this share of the costliest bin.
_UNEVEN = 1e-3
# In so few steps other arrangements may take less time than bins filled as tightly as can be: costs balanced, and steps
# filled from the longest sample down.
_FEW_STEPS = 64
# Steps are filled until so many samples were placed, and not at all with more. With more, neither is the cap looked at
# when costs are balanced; the answer may keep it anyway.
_MOST_PLACED = 1 << 17


def plan_at_once(task: PlanTask) -> Plan:
    """The plan, the highest step first."""
    costs_S = task.cost.sample_costs_S(task.lengths_S)
    tokens_S = np.minimum(task.lengths_S, task.cap_tokens)
    if task.groups_S is not None:
        return _keep_groups(task, costs_S, tokens_S, task.groups_S)
    tight = Bins.fit(costs_S, tokens_S, cap_tokens=task.cap_tokens)
    found = [_evened(tight, costs_S, tokens_S, task)]
    others = chain(_in_few_steps(-(-tight.count // task.ranks), costs_S, tokens_S, task), _published(task, costs_S))
    found += [_evened(bins, costs_S, tokens_S, task) for bins in others]
    return Plan(_deal(min(found, key=lambda bins: _time_s(bins, task)), task.ranks))


def _time_s(bins: Bins, task: PlanTask) -> float:
    """The sum of steps' heights and constants."""
    heights_K = np.sort(bins.cost_B)[::-1][:: task.ranks]
    return float(heights_K.sum()) + task.cost.constant * heights_K.size


def _in_few_steps(steps: int, costs_S: FloatArray, tokens_S: IntArray, task: PlanTask) -> Iterator[Bins]:
    is_too_large = costs_S.size > _MOST_PLACED
    if steps <= _FEW_STEPS:
        if steps > 1 or is_too_large:
            bin_S = find_homes(costs_S, parts=steps * task.ranks)
        else:
            bin_S = find_homes(costs_S, parts=task.ranks, tokens_S=tokens_S, cap_tokens=task.cap_tokens)
        if bin_S is not None and np.bincount(bin_S, weights=tokens_S).max() <= task.cap_tokens:
            yield Bins.of(bin_S, costs_S)
    if 1 < steps <= _FEW_STEPS and not is_too_large:
        for filled in fill_steps(
            costs_S.tolist(),
            tokens_S.tolist(),
            ranks=task.ranks,
            cap_tokens=task.cap_tokens,
            constant=task.cost.constant,
            most_placed=_MOST_PLACED,
        ):
            yield _in_arrays(filled.bins, costs_S)


def _published(task: PlanTask, costs_S: FloatArray) -> Iterator[Bins]:
    """The bins of published policies' plans, as far as these do not take long."""
    if size_of(task) <= MOST_COMPARED:
        for policy in (LB_MICRO, VERL_NATIVE):
            yield _in_arrays(list(chain.from_iterable(policy.make_plan(task).ranks)), costs_S)


def _in_arrays(bins: Sequence[Sequence[int]], costs_S: FloatArray) -> Bins:
    return Bins.of(homes_of(bins, items=costs_S.size), costs_S)


def _evened(bins: Bins, costs_S: FloatArray, tokens_S: IntArray, task: PlanTask) -> Bins:
    """The bins with the samples of the least even steps split anew."""
    ranks, order_B = task.ranks, np.argsort(-bins.cost_B, kind="stable")
    steps = -(-order_B.size // ranks)
    step_B = np.empty_like(order_B)
    step_B[order_B] = np.arange(order_B.size) // ranks
    uneven_K = bins.cost_B[order_B[::ranks]] - np.bincount(step_B, weights=bins.cost_B) / ranks
    samples_K = np.bincount(step_B[bins.bin_S], minlength=steps)
    most_uneven = np.argsort(-uneven_K, kind="stable")[:_MOST_EVENED]
    most_uneven = most_uneven[uneven_K[most_uneven] > _UNEVEN * bins.cost_B.max()]
    most_uneven = most_uneven[samples_K[most_uneven] <= _MOST_IN_STEP]
    before_K = np.cumsum(samples_K[most_uneven]) - samples_K[most_uneven]
    chosen = most_uneven[before_K < _MOST_EVENED_SAMPLES]
    if not chosen.size:
        return bins
    bin_S, opened = bins.bin_S.copy(), bins.count
    for step in chosen.tolist():
        numbers = order_B[step * ranks : (step + 1) * ranks]
        samples = bins.samples_of(numbers) + [[] for _ in range(ranks - numbers.size)]
        numbers = np.append(numbers, np.arange(opened, opened + ranks - numbers.size))
        opened += ranks
        for number, split in zip(
            numbers.tolist(),
            even_out_steps(samples, costs_S, tokens_S, ranks=ranks, cap_tokens=task.cap_tokens),
            strict=True,
        ):
            bin_S[split] = number
    return Bins.of(bin_S, costs_S)


def _deal(bins: Bins, ranks: int) -> tuple[tuple[Microbatch, ...], ...]:
    """Each step's bins to ranks, the costliest to the rank with the least to do so far."""
    order_B = np.argsort(-bins.cost_B, kind="stable")
    costs = bins.cost_B[order_B].tolist()
    done_s = [0.0] * ranks
    rank_of: list[int] = []
    for start in range(0, bins.count, ranks):
        idlest_first = sorted(range(ranks), key=done_s.__getitem__)[: bins.count - start]
        for rank, cost_s in zip(idlest_first, costs[start : start + ranks], strict=True):
            done_s[rank] += cost_s
        rank_of += idlest_first
    by_rank = np.argsort(rank_of, kind="stable")
    return cut(bins.microbatches(order_B[by_rank]), np.bincount(rank_of, minlength=ranks).tolist())


def _keep_groups(task: PlanTask, costs_S: FloatArray, tokens_S: IntArray, groups_S: IntArray) -> Plan:
    """Groups balanced over ranks, each of which fills its own bins."""
    group_S = np.unique(groups_S, return_inverse=True)[1]
    rank_G = find_homes(np.bincount(group_S, weights=costs_S).astype(np.float64), parts=task.ranks)
    assert rank_G is not None, "without a cap there is always a way"
    bins = Bins.fit(costs_S, tokens_S, cap_tokens=task.cap_tokens, part_S=rank_G[group_S])
    return Plan(bins.on_ranks(bins.part_B, ranks=task.ranks))
