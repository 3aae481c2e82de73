"""`independent`: for On-Demand Communication, where ranks meet once a minibatch: the least time of the busiest rank.

A rank's time is the cost of its samples and a constant for each of its microbatches, divided by its speed if that is
known. Several divisions of the samples are made: with constants guessed and corrected by what the division needs
(`odcsim.partition.balance`), with every rank under as few caps of tokens as the mean, and from microbatches that are
filled first. `lb-mini`'s is one more. The best are improved by exchanges with the busiest rank
(`odcsim.partition.busiest`), and the best of all is taken: no plan of `lb-mini` is better.

Where groups are to be kept, groups are divided instead of samples.

Each rank packs into as few microbatches as a bounded search finds, and runs the costliest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from odcsim.arrays import FloatArray
from odcsim.partition.balance import balance
from odcsim.partition.bounds import compute_lower_bound_s, count_fewest_microbatches
from odcsim.partition.busiest import RankCosts, Units, lower_busiest
from odcsim.partition.fewest import FewestPacker, pack_fewest
from odcsim.plan import Microbatch, Plan
from odcsim.policies.base import PlanTask, Policy
from odcsim.policies.groups import members_of_groups
from odcsim.policies.lb_mini import LB_MINI

__all__ = ["INDEPENDENT"]

# Rounds of dividing by constants as the last division needs them.
_ROUNDS = 4
# Divisions that are improved by exchanges, best first, and the candidates looked at for each.
_IMPROVED = 3
_EXCHANGES = 2_000_000
# So near to what no plan can beat, nothing more is tried.
_GOOD_ENOUGH = 1 + 3e-4
# Times that differ by less are one.
_ROUNDING = 1 + 1e-9


def _make_plan(task: PlanTask) -> Plan:
    if not task.lengths_S.size:
        return Plan(((),) * task.ranks)
    tokens, costs_S = task.lengths_S.tolist(), task.cost.sample_costs_S(task.lengths_S)
    samples = (
        [(sample,) for sample in range(len(tokens))] if task.groups_S is None else members_of_groups(task.groups_S)
    )
    costs = RankCosts(
        units=Units.of(samples, costs_S=costs_S, tokens_S=tokens, cap_tokens=task.cap_tokens),
        packer=FewestPacker(tokens, cap_tokens=task.cap_tokens),
        cap_tokens=task.cap_tokens,
        constant=task.cost.constant,
        speeds_D=task.speeds_D,
    )
    good_enough_s = _GOOD_ENOUGH * compute_lower_bound_s(
        task.lengths_S, cost=task.cost, cap_tokens=task.cap_tokens, speeds_D=task.speeds_D
    )
    published = LB_MINI.make_plan(task) if task.groups_S is None else None
    found = list(_divisions(task, costs))
    if published is not None:
        found.append([[sample for microbatch in rank for sample in microbatch] for rank in published.ranks])
    found.sort(key=costs.busiest_s)
    for division in found[:_IMPROVED]:
        if min(map(costs.busiest_s, found)) <= good_enough_s:
            break
        found.append(lower_busiest(division, costs, budget=_EXCHANGES, good_enough_s=good_enough_s))
    best = _best_of(found, costs)
    plan = Plan(tuple(_costliest_first(costs.packer.pack(costs.units.samples_of(units)), costs_S) for units in best))
    # Packing by cost needs fewer microbatches than packing by tokens now and then.
    if published is not None and _busiest_s(published, task, costs_S) < _busiest_s(plan, task, costs_S):
        return published
    return plan


def _best_of(divisions: Sequence[list[list[int]]], costs: RankCosts) -> list[list[int]]:
    """The division of the least busiest rank; of several, the one of fewest microbatches: each has its transfers."""
    least_s = min(map(costs.busiest_s, divisions))
    as_good = [division for division in divisions if costs.busiest_s(division) <= least_s * _ROUNDING]
    return min(as_good, key=lambda division: sum(map(costs.count, division)))


def _divisions(task: PlanTask, costs: RankCosts) -> Iterator[list[list[int]]]:
    """Divisions of the units to start from, the units of each rank."""
    units, ranks, constant = costs.units, task.ranks, task.cost.constant
    capped = [min(length, task.cap_tokens) for length in task.lengths_S.tolist()]
    fewest = count_fewest_microbatches(capped, cap_tokens=task.cap_tokens)

    # A rank's share of the microbatches is guessed from its speed at first.
    shares_D = task.speeds_D / task.speeds_D.sum()
    loads_P = [constant * max(1.0, fewest * share) for share in shares_D.tolist()]
    for _ in range(_ROUNDS):
        parts = balance(units.costs_U, parts=ranks, loads_P=loads_P, speeds_P=task.speeds_D.tolist())
        assert parts is not None, "without a cap there is always a way"
        yield parts
        needed_P = [constant * costs.count(part) for part in parts]
        if needed_P == loads_P:
            break
        loads_P = needed_P

    caps = -(-sum(capped) // (ranks * task.cap_tokens))
    within_caps = balance(
        units.costs_U,
        parts=ranks,
        speeds_P=task.speeds_D.tolist(),
        tokens_S=units.tokens_U.tolist(),
        cap_tokens=caps * task.cap_tokens,
    )
    if within_caps is not None:
        yield within_caps

    if task.groups_S is None:
        # Of all divisions these need the fewest microbatches.
        microbatches = pack_fewest(range(len(capped)), tokens_S=capped, cap_tokens=task.cap_tokens)
        times = [constant + float(units.costs_U[list(microbatch)].sum()) for microbatch in microbatches]
        parts = balance(times, parts=ranks, speeds_P=task.speeds_D.tolist())
        assert parts is not None, "without a cap there is always a way"
        yield [[sample for number in part for sample in microbatches[number]] for part in parts]


def _costliest_first(microbatches: Sequence[Microbatch], costs_S: FloatArray) -> tuple[Microbatch, ...]:
    return tuple(sorted(microbatches, key=lambda samples: (-float(costs_S[list(samples)].sum()), samples)))


def _busiest_s(plan: Plan, task: PlanTask, costs_S: FloatArray) -> float:
    """Seconds of the busiest rank."""
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
