"""`dynamic`: microbatches are formed ahead, and pulled as the minibatch runs by whichever rank is free, longest first.

No plan has to know how fast ranks are, or what a microbatch really costs: a rank that turns out slow pulls less. What
is left to choose is how finely to cut. Ranks end about as far apart as the last microbatches are long, so these should
be short; but every microbatch costs its constant, so there should be few. Several queues are formed, from few
microbatches to many; the one that takes least in view of what may happen (`odcsim.policies.queues`) is improved.

Longest first is Graham's rule for lists (SIAM Journal on Applied Mathematics 17(2), 1969).
"""

from __future__ import annotations

from itertools import islice, product

from odcsim.plan import Plan
from odcsim.policies.base import PlanTask, Policy
from odcsim.policies.large import LARGE, MOST_SEARCHED, caps_per_rank, size_of
from odcsim.policies.large.dynamic import MANY_BINS, plan_at_once
from odcsim.policies.queues import Outlook, form_queue, improve_queue

__all__ = ["DYNAMIC"]

# With 1, the first microbatches each take what a rank runs if all share evenly; a rank that is slower is then the last
# to end, whatever the others pull.
_PARTS = (1.5, 1.0, 2.5)
# The smallest microbatch, as a share of what a rank runs if all share evenly.
_LEAST = (0.1, 0.25, 0.5, 1.0)
# Queues, the most promising first, become fewer where they times the size of a minibatch were more than this.
_MOST_WORK = 1 << 18


def _make_plan(task: PlanTask) -> Plan:
    nothing: Plan = Plan(ranks=((),) * task.ranks)
    if not task.lengths_S.size:
        return nothing
    size = size_of(task)
    if size > MOST_SEARCHED or (size > LARGE and caps_per_rank(task) > MANY_BINS):
        return plan_at_once(task)
    outlook = Outlook(task)
    queues = [
        form_queue(outlook, parts=parts, least=least)
        for least, parts in islice(product(_LEAST, _PARTS), max(_MOST_WORK // size, 1))
    ]
    best = min(queues, key=lambda queue: outlook.expected([outlook.loads(samples) for samples in queue]))
    return Plan(ranks=nothing.ranks, pulled=outlook.longest_first(improve_queue(outlook, best)))


DYNAMIC = Policy(
    name="dynamic",
    make_plan=_make_plan,
    equal_counts=False,
    summary="microbatches formed ahead, pulled as the minibatch runs by whichever rank is free, longest first",
    is_pulled=True,
)
