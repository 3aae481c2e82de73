"""`lb-micro`: cost balanced over ranks and over microbatches, with one microbatch count for all ranks.

Differencing into one part a rank, of equal counts of samples, refined by swaps; then the smallest count of
microbatches with which differencing keeps every rank under the cap. From the ODC paper (arXiv 2601.19362), where it
is LB-Micro.
"""

from __future__ import annotations

from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.packing import pack_ranks_alike
from odcsim.partition.refine import lower_heaviest_by_swaps
from odcsim.plan import Plan
from odcsim.policies.base import PlanTask, Policy

__all__ = ["LB_MICRO"]


def _make_plan(task: PlanTask) -> Plan:
    costs, tokens = task.cost.sample_costs_S(task.lengths_S).tolist(), task.lengths_S.tolist()
    parts = lower_heaviest_by_swaps(split_by_differencing(costs, parts=task.ranks, equal_counts=True), costs)
    return Plan(pack_ranks_alike(parts, costs_S=costs, tokens_S=tokens, cap_tokens=task.cap_tokens))


LB_MICRO = Policy(
    name="lb-micro",
    make_plan=_make_plan,
    equal_counts=True,
    summary="cost balanced over ranks of equal sample counts, then over an agreed number of microbatches",
)
