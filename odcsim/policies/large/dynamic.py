"""Very many samples for ranks that pull: bins filled as tightly as best fit does, longest first, the last ones short.

Ranks end about as far apart as the last microbatches are long. So of the cheapest bins, one a rank, the samples are
taken out again and formed into microbatches of falling size. Where there are few bins a rank, all samples are.

Legend: S samples, B bins, D ranks.
"""

from __future__ import annotations

import numpy as np

from odcsim.partition.longest_first import LongestFirst
from odcsim.plan import Plan
from odcsim.policies.base import PlanTask
from odcsim.policies.large.bins import Bins
from odcsim.policies.queues import form_falling

__all__ = ["MANY_BINS", "plan_at_once"]

MANY_BINS = 4
"""With fewer bins a rank it depends on all of them when ranks end."""

# The shortest microbatch of the last ones, as a share of a mean bin; of a queue of falling size, of what a rank runs if
# all share evenly. What a microbatch costs whatever it holds is the least either way.
_LEAST_OF_BIN = 0.25
_LEAST_OF_SHARE = 0.1
# How many of each rank the next microbatch of a queue of falling size is to be one of.
_PARTS = 1.5


def plan_at_once(task: PlanTask) -> Plan:
    """The plan, longest first."""
    costs_S = task.cost.sample_costs_S(task.lengths_S)
    tokens_S = np.minimum(task.lengths_S, task.cap_tokens)
    bins = Bins.fit(costs_S, tokens_S, cap_tokens=task.cap_tokens)
    if bins.count >= MANY_BINS * task.ranks:
        last_B = np.argsort(-bins.cost_B, kind="stable")[-task.ranks :]
        least, parts = _LEAST_OF_BIN * float(bins.cost_B.mean()), 1.0
    else:
        last_B = np.arange(bins.count)
        least, parts = _LEAST_OF_SHARE * float(costs_S.sum()) / task.ranks, _PARTS
    is_last_B = np.zeros(bins.count, dtype=np.bool_)
    is_last_B[last_B] = True
    formed = form_falling(
        LongestFirst(np.flatnonzero(is_last_B[bins.bin_S]).tolist(), costs_S.tolist(), tokens_S.tolist()),
        ranks=task.ranks,
        cap_tokens=task.cap_tokens,
        parts=parts,
        least=max(least, task.cost.constant),
    )
    bin_S = bins.bin_S.copy()
    for number, chosen in enumerate(formed, start=bins.count):
        bin_S[chosen] = number
    bins = Bins.of(bin_S, costs_S)
    return Plan(ranks=((),) * task.ranks, pulled=tuple(bins.microbatches(np.argsort(-bins.cost_B, kind="stable"))))
