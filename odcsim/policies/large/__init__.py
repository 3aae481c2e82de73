"""Plans of very many samples, made without a search, in time that hardly grows faster than their number.

    bins.py         samples in bins, in arrays
    independent.py  bins or samples balanced over ranks
    lockstep.py     bins of like cost in steps
    dynamic.py      bins in a queue, the last ones short

The more samples there are, the closer best fit of the longest first comes to the fewest microbatches, and the less one
microbatch more or less on a rank matters. So searches end where they no longer pay for their time.
"""

from __future__ import annotations

import numpy as np

from odcsim.policies.base import PlanTask

__all__ = ["LARGE", "MOST_COMPARED", "MOST_SEARCHED", "caps_per_rank", "size_of"]

LARGE = 1 << 14
"""Larger minibatches are planned at once; from about this size on no search comes nearer to the bounds, mostly."""

MOST_COMPARED = 1 << 15
"""Of larger minibatches published policies' plans, which take seconds, are not among those looked at."""

MOST_SEARCHED = 1 << 16
"""Of larger minibatches no plan is searched for, even where ranks run few microbatches: it would take many seconds."""

# Each rank's samples are sorted and packed by themselves, which is as much work as some more samples.
_SAMPLES_PER_RANK = 4


def size_of(task: PlanTask) -> int:
    """How much work it is to look at a plan once, in samples."""
    return task.lengths_S.size + _SAMPLES_PER_RANK * min(task.ranks, task.lengths_S.size)


def caps_per_rank(task: PlanTask) -> float:
    """Tokens of a rank in the mean, in caps: about how many microbatches it runs at least."""
    return float(np.minimum(task.lengths_S, task.cap_tokens).sum()) / (task.cap_tokens * task.ranks)
