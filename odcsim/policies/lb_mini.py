"""`lb-mini`: cost balanced over ranks only; each packs into as few microbatches as it can.

As `lb-micro`, without equal counts of samples and without agreeing on a count of microbatches: On-Demand Communication
runs such plans as they are, collectives would need padding. From the ODC paper (arXiv 2601.19362), where it is LB-Mini.
"""

from __future__ import annotations

from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.packing import pack_rank
from odcsim.partition.refine import lower_heaviest_by_swaps
from odcsim.plan import Plan
from odcsim.policies.base import PlanTask, Policy

__all__ = ["LB_MINI"]


def _make_plan(task: PlanTask) -> Plan:
    costs, tokens = task.cost.sample_costs_S(task.lengths_S).tolist(), task.lengths_S.tolist()
    parts = lower_heaviest_by_swaps(split_by_differencing(costs, parts=task.ranks, equal_counts=False), costs)
    return Plan(tuple(pack_rank(part, costs_S=costs, tokens_S=tokens, cap_tokens=task.cap_tokens) for part in parts))


LB_MINI = Policy(
    name="lb-mini",
    make_plan=_make_plan,
    equal_counts=False,
    summary="cost balanced over ranks, each packing into as few microbatches as it can",
)
