"""Every arrangement of very few items, and the best of them.

Legend: A arrangements, S items, P parts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from odcsim.arrays import IntArray
from odcsim.partition.task import PartitionTask

__all__ = ["can_try_all", "try_all"]

_MOST_ITEMS = 13
# Arrangements x items x parts; takes less than a millisecond.
_MOST_LOOKED_AT = 1 << 16

# Largest times that differ by rounding only are equal.
_ROUNDING = 1e-12


def can_try_all(task: PartitionTask) -> bool:
    """Whether there are few enough arrangements."""
    if task.items > _MOST_ITEMS:
        return False
    return _count(task) * task.items * task.parts <= _MOST_LOOKED_AT


def try_all(task: PartitionTask) -> IntArray | None:
    """The arrangement of the smallest largest time, the most even one of several; None where none keeps the cap.

    Args:
        task: with at least one item.
    """
    homes_AS = _all_homes_AS(task.parts, task.items, _count(task))
    is_home_PAS = homes_AS == np.arange(task.parts)[:, None, None]
    times_PA = (task.loads_P[:, None] + (is_home_PAS * task.costs_S).sum(axis=2)) / task.speeds_P[:, None]
    time_A = times_PA.max(axis=0)
    if task.equal_counts:
        counts_PA = is_home_PAS.sum(axis=2)
        time_A[(counts_PA.min(axis=0) < task.fewest) | (counts_PA.max(axis=0) > task.most)] = np.inf
    if task.tokens_S is not None:
        tokens_PA = (is_home_PAS * task.tokens_S).sum(axis=2)
        time_A[tokens_PA.max(axis=0) > task.cap_tokens] = np.inf
    largest = time_A.min()
    if largest == np.inf:
        return None
    best = np.flatnonzero(time_A <= largest * (1 + _ROUNDING))
    # Relative times, whose squares neither overflow nor vanish.
    relative_PB = times_PA[:, best] / (largest or 1.0)
    homes_S: IntArray = homes_AS[best[(relative_PB**2).sum(axis=0).argmin()]]
    return homes_S


def _count(task: PartitionTask) -> int:
    """How many arrangements there are to try; of alike parts the first one always gets the last item."""
    free = task.items - 1 if task.are_alike else task.items
    count: int = task.parts ** max(free, 0)
    return count


@lru_cache(maxsize=64)
def _all_homes_AS(parts: int, items: int, count: int) -> IntArray:
    """The arrangements as the digits of 0, 1, ..., count - 1 to the base of the parts."""
    return np.arange(count)[:, None] // parts ** np.arange(items) % parts
