"""`independent`: for On-Demand Communication, where ranks meet once a minibatch: the least time of the busiest rank.

A rank's time is the cost of its samples and a constant for each of its microbatches, divided by its speed if that is
known. Several divisions of the samples are made: with constants guessed and corrected by what the division needs
(`odcsim.partition.balance`), with every rank under as few caps of tokens as the mean, and from microbatches that are
filled first. `lb-mini`'s is one more. The best are improved by exchanges with the busiest rank
(`odcsim.partition.busiest`), and the best of all is taken: no plan of `lb-mini` is better, as long as minibatches are
not very large (`odcsim.policies.large`).

Where groups are to be kept, groups are divided instead of samples.

Each rank packs into as few microbatches as a bounded search finds, and runs the costliest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.partition.balance import balance
from odcsim.partition.bounds import compute_lower_bound_s, count_fewest_microbatches
from odcsim.partition.busiest import RankCosts, Units, lower_busiest
from odcsim.partition.fewest import FewestPacker, pack_fewest
from odcsim.plan import Microbatch, Plan
from odcsim.policies.base import PlanTask, Policy
from odcsim.policies.groups import members_of_groups
from odcsim.policies.large import LARGE, MOST_COMPARED, MOST_SEARCHED, size_of
from odcsim.policies.large.independent import divide
from odcsim.policies.lb_mini import LB_MINI

__all__ = ["INDEPENDENT"]

# Rounds of dividing by constants as the last division needs them.
_ROUNDS = 4
# Divisions that are improved by exchanges, best first, and the candidates looked at for each.
_IMPROVED = 3
_EXCHANGES = 2_000_000
# In large minibatches, of which fewer candidates are looked at, ranks that the busiest one may exchange with.
_MOST_PARTNERS = 64
# Samples of one rank given to differencing there.
_MOST_DIFFERENCED = 1024
# Rounds and improved divisions become fewer where they times the size of a minibatch were more than this, and caps on
# ranks are not tried where the size is more than half of it.
_MOST_WORK = 1 << 16
# So near to what no plan can beat, nothing is improved; of more samples than these, not even divided in another way.
_GOOD_ENOUGH = 1 + 3e-4
_ALL_DIVISIONS = 4096
# Times that differ by less are one.
_ROUNDING = 1 + 1e-9


class _Division(NamedTuple):
    """Units over ranks.

    Attributes:
        time_s: of the busiest rank.
        parts: the units of each rank.
    """

    time_s: float
    parts: Sequence[Sequence[int]]


def _make_plan(task: PlanTask) -> Plan:
    if not task.lengths_S.size:
        return Plan(((),) * task.ranks)
    units = task.lengths_S.size if task.groups_S is None else np.unique(task.groups_S).size
    if units < task.ranks:
        # No rank gets less than a unit, so the slowest get nothing.
        fastest_D = np.sort(np.argsort(-task.speeds_D, kind="stable")[:units])
        ranks: list[tuple[Microbatch, ...]] = [()] * task.ranks
        for rank, microbatches in zip(fastest_D.tolist(), _make_plan(task.on_ranks(fastest_D)).ranks, strict=True):
            ranks[rank] = microbatches
        return Plan(tuple(ranks))
    size = size_of(task)
    if size <= LARGE:
        return _search(task)
    division = divide(task)
    if size > MOST_SEARCHED or division.busiest_s <= _good_enough_s(task):
        return division.plan()
    return min(division.plan(), _search(task), key=lambda plan: _busiest_s(plan, task))


def _good_enough_s(task: PlanTask) -> float:
    return _GOOD_ENOUGH * compute_lower_bound_s(
        task.lengths_S, cost=task.cost, cap_tokens=task.cap_tokens, speeds_D=task.speeds_D
    )


def _search(task: PlanTask) -> Plan:
    tokens, costs_S = task.lengths_S.tolist(), task.cost.sample_costs_S(task.lengths_S)
    samples = (
        [(sample,) for sample in range(len(tokens))] if task.groups_S is None else members_of_groups(task.groups_S)
    )
    size = size_of(task)
    is_large = size > LARGE
    packer = FewestPacker(tokens, cap_tokens=task.cap_tokens)
    if is_large:
        packer = FewestPacker(tokens, cap_tokens=task.cap_tokens, most_differenced=_MOST_DIFFERENCED)
    costs = RankCosts(
        units=Units.of(samples, costs_S=costs_S, tokens_S=tokens, cap_tokens=task.cap_tokens),
        packer=packer,
        cap_tokens=task.cap_tokens,
        constant=task.cost.constant,
        speeds_D=task.speeds_D,
    )
    good_enough_s = _good_enough_s(task)
    found: list[_Division] = []

    def add(parts: Sequence[Sequence[int]]) -> bool:
        """Whether it, or one before it, is good enough."""
        found.append(_Division(costs.busiest_s(parts), parts))
        return min(division.time_s for division in found) <= good_enough_s

    ends_early = size > _ALL_DIVISIONS
    is_found = False
    for parts in _divisions(task, costs):
        is_found = add(parts)
        if is_found and ends_early:
            break
    published = None
    if task.groups_S is None and size <= MOST_COMPARED:
        published = LB_MINI.make_plan(task)
        is_found = add([[sample for microbatch in rank for sample in microbatch] for rank in published.ranks])
    improved = min(_IMPROVED, max(_MOST_WORK // size, 1))
    for division in sorted(found, key=lambda division: division.time_s)[:improved]:
        if is_found:
            break
        is_found = add(
            lower_busiest(
                division.parts,
                costs,
                budget=_EXCHANGES * LARGE // size if is_large else _EXCHANGES,
                good_enough_s=good_enough_s,
                most_partners=_MOST_PARTNERS if is_large else None,
            )
        )
    best = _best_of(found, costs)
    plan = Plan(tuple(_costliest_first(costs.packer.pack(costs.units.samples_of(units)), costs_S) for units in best))
    # Packing by cost needs fewer microbatches than packing by tokens now and then.
    if published is not None and _busiest_s(published, task) < _busiest_s(plan, task):
        return published
    return plan


def _best_of(divisions: Sequence[_Division], costs: RankCosts) -> Sequence[Sequence[int]]:
    """The division of the least busiest rank; of several, the one of fewest microbatches: each has its transfers."""
    least_s = min(division.time_s for division in divisions)
    as_good = [division.parts for division in divisions if division.time_s <= least_s * _ROUNDING]
    return min(as_good, key=lambda parts: sum(map(costs.count, parts)))


def _divisions(task: PlanTask, costs: RankCosts) -> Iterator[list[list[int]]]:
    """Divisions of the units to start from, the units of each rank."""
    units, ranks, constant = costs.units, task.ranks, task.cost.constant
    capped = [min(length, task.cap_tokens) for length in task.lengths_S.tolist()]
    fewest = count_fewest_microbatches(capped, cap_tokens=task.cap_tokens)

    if task.groups_S is None:
        # Of all divisions these need the fewest microbatches.
        microbatches = pack_fewest(range(len(capped)), tokens_S=capped, cap_tokens=task.cap_tokens)
        times = [constant + float(units.costs_U[list(microbatch)].sum()) for microbatch in microbatches]
        parts = balance(times, parts=ranks, speeds_P=task.speeds_D)
        assert parts is not None, "without a cap there is always a way"
        yield [[sample for number in part for sample in microbatches[number]] for part in parts]

    # A rank's share of the microbatches is guessed from its speed at first.
    shares_D = task.speeds_D / task.speeds_D.sum()
    loads_P = [constant * max(1.0, fewest * share) for share in shares_D.tolist()]
    for _ in range(min(_ROUNDS, max(_MOST_WORK // size_of(task), 1))):
        parts = balance(units.costs_U, parts=ranks, loads_P=loads_P, speeds_P=task.speeds_D)
        assert parts is not None, "without a cap there is always a way"
        yield parts
        needed_P = [constant * costs.count(part) for part in parts]
        if needed_P == loads_P:
            break
        loads_P = needed_P

    if 2 * size_of(task) > _MOST_WORK:
        return
    caps = -(-sum(capped) // (ranks * task.cap_tokens))
    within_caps = balance(
        units.costs_U,
        parts=ranks,
        speeds_P=task.speeds_D,
        tokens_S=units.tokens_U,
        cap_tokens=caps * task.cap_tokens,
    )
    if within_caps is not None:
        yield within_caps


def _costliest_first(microbatches: Sequence[Microbatch], costs_S: FloatArray) -> tuple[Microbatch, ...]:
    return tuple(sorted(microbatches, key=lambda samples: (-float(costs_S[list(samples)].sum()), samples)))


def _busiest_s(plan: Plan, task: PlanTask) -> float:
    """Seconds of the busiest rank."""
    costs_S = task.cost.sample_costs_S(task.lengths_S)
    return max(
        sum(task.cost.constant + float(costs_S[list(samples)].sum()) for samples in microbatches) / float(speed)
        for microbatches, speed in zip(plan.ranks, task.speeds_D, strict=True)
    )


INDEPENDENT = Policy(
    name="independent",
    make_plan=_make_plan,
    equal_counts=False,
    summary="the least time of the busiest rank, each microbatch's constant and ranks' speeds included",
    uses_speeds=True,
    keeps_groups=True,
)
