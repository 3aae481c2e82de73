"""`lb-micro`: cost balanced over ranks and over microbatches, with one microbatch count for all ranks.

Differencing into one part a rank, of equal counts of samples, refined by swaps; then the smallest count of
microbatches with which differencing keeps every rank under the cap. From the ODC paper (arXiv 2601.19362), where it
is LB-Micro.
"""

from __future__ import annotations

from odcsim.arrays import IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.packing import pack_ranks_alike
from odcsim.partition.refine import lower_heaviest_by_swaps
from odcsim.plan import Plan
from odcsim.policies.base import Policy

__all__ = ["LB_MICRO"]


def _make_plan(lengths_S: IntArray, *, ranks: int, cap_tokens: int, cost: TokenCost) -> Plan:
    costs = cost.sample_costs_S(lengths_S).tolist()
    parts = lower_heaviest_by_swaps(split_by_differencing(costs, parts=ranks, equal_counts=True), costs)
    return Plan(pack_ranks_alike(parts, costs_S=costs, tokens_S=lengths_S.tolist(), cap_tokens=cap_tokens))


LB_MICRO = Policy(
    name="lb-micro",
    make_plan=_make_plan,
    equal_counts=True,
    summary="cost balanced over ranks of equal sample counts, then over an agreed number of microbatches",
)
