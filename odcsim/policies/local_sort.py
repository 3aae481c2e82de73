"""`local-sort`: no balancing between ranks; each sorts what it happens to get.

The samples are dealt out in turn and each runs alone, shortest first, so that ranks are at least at similar lengths
at the same time. From the ODC paper (arXiv 2601.19362), where it is LocalSort.
"""

from __future__ import annotations

from odcsim.plan import Plan
from odcsim.policies.base import PlanTask, Policy

__all__ = ["LOCAL_SORT"]


def _make_plan(task: PlanTask) -> Plan:
    # A sample alone keeps any cap that it can keep.
    lengths, ranks = task.lengths_S.tolist(), task.ranks
    samples_D = [sorted(range(rank, len(lengths), ranks), key=lengths.__getitem__) for rank in range(ranks)]
    return Plan(ranks=tuple(tuple((sample,) for sample in samples) for samples in samples_D))


LOCAL_SORT = Policy(
    name="local-sort",
    make_plan=_make_plan,
    equal_counts=True,
    summary="samples dealt out in turn, each in a microbatch of its own, shortest first",
    uses_cost=False,
)
