"""`verl-native`: what verl does by default, under `balance_batch` and dynamic batch sizes.

Differencing into one part a rank, of equal counts of samples, by a fixed cost of 24576 s + s^2 for a sample of s
tokens (the FLOPs of a 7B decoder, up to a factor) instead of the model's own; then an agreed number of microbatches
by the same cost. Unlike there, the cap holds always: the count grows until it does.
"""

from __future__ import annotations

from odcsim.costs.token_cost import TokenCost
from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.packing import pack_ranks_alike
from odcsim.plan import Plan
from odcsim.policies.base import PlanTask, Policy

__all__ = ["VERL_NATIVE"]

_LINEAR = 24576.0


def _make_plan(task: PlanTask) -> Plan:
    # The point of this policy: it balances by a cost that is not the model's.
    costs = TokenCost(quadratic=1.0, linear=_LINEAR).sample_costs_S(task.lengths_S).tolist()
    parts = split_by_differencing(costs, parts=task.ranks, equal_counts=True)
    return Plan(pack_ranks_alike(parts, costs_S=costs, tokens_S=task.lengths_S.tolist(), cap_tokens=task.cap_tokens))


VERL_NATIVE = Policy(
    name="verl-native",
    make_plan=_make_plan,
    equal_counts=True,
    summary="a fixed cost balanced over ranks of equal sample counts, then over an agreed number of microbatches",
    uses_cost=False,
)
