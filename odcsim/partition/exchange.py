"""Evening out an arrangement by exchanges of items between parts.

First the late parts are paired with the early ones, and in each pair the best exchange of one item for one is made, or
of two for two; a few rounds of that bring all parts close together. Then the last part alone is compared with the
others, in exchanges of up to three items, until none helps.

All that is compared is counted against a budget, so the work is bounded whatever the costs are.

Invariants: the largest time never rises; counts stay equal where they are to be; no part comes to break the cap.
"""

from __future__ import annotations

from odcsim.arrays import IntArray
from odcsim.partition.arrangement import Arrangement
from odcsim.partition.task import PartitionTask

__all__ = ["even_out"]

# Rounds in pairs are of two for two, of many parts after some of one for one, which are quicker. A part is late if it
# ends in this share, from above, of the time between the floor and the last part. They end when the last part has not
# gained in a few of them.
_FEW_PARTS = 32
_ROUNDS_OF_ONE = 2
_MOST_IDLE_ROUNDS = 4
_LATE = 0.5

# The last part is compared with the others in exchanges of these sizes; the next one where the one before did not help.
_SIZES_OF_LAST = (2, 3, 1)

# The budget: so many comparisons, and so many for every item; more for every item, up to so many items, while the
# largest time is this far above its floor.
_MOST_COMPARISONS = 40_000
_MOST_COMPARISONS_PER_ITEM = 40
_MOST_COMPARISONS_PER_ITEM_IF_UNEVEN = 256
_MOST_UNEVEN_ITEMS = 1 << 16
_UNEVEN = 1e-4

# A largest time so near to its floor is good enough: what is left is far below what a cost model can tell apart. With
# many items differencing may come nearer yet, and so are exchanges to.
_GOOD_ENOUGH = 1e-5
_GOOD_ENOUGH_OF_MANY = 1e-6
_MANY_ITEMS = 2048


def even_out(task: PartitionTask, homes_S: IntArray) -> IntArray:
    """A better arrangement, or the same one.

    Args:
        task: what is arranged.
        homes_S: the part of each item; keeps the task's counts and cap.
    """
    if task.parts == 1 or task.items == 0:
        return homes_S
    arrangement = Arrangement(task, homes_S)
    _even_out_in_pairs(arrangement)
    _lower_the_last(arrangement)
    return arrangement.homes_S()


def _even_out_in_pairs(arrangement: Arrangement) -> None:
    idle = turn = 0
    while idle < _MOST_IDLE_ROUNDS and not _is_done(arrangement):
        before = arrangement.largest_time
        late = before - _LATE * (before - arrangement.task.floor_time)
        size = 1 if arrangement.task.parts > _FEW_PARTS and turn < _ROUNDS_OF_ONE else 2
        arrangement.exchange_in_pairs(min(size, arrangement.largest_size), late=late, turn=turn, idle=idle)
        idle = 0 if arrangement.largest_time < before else idle + 1
        turn += 1


def _lower_the_last(arrangement: Arrangement) -> None:
    sizes = [size for size in _SIZES_OF_LAST if size <= arrangement.largest_size]
    tried = turn = 0
    while tried < len(sizes) and not _is_done(arrangement):
        tried = 0 if arrangement.lower_the_last(sizes[tried], turn=turn) else tried + 1
        turn += 1


def _is_done(arrangement: Arrangement) -> bool:
    """Whether nothing worth it is to be gained any more, or the budget is used up."""
    items, floor_time = arrangement.task.items, arrangement.task.floor_time
    if arrangement.largest_time <= floor_time * (1 + (_GOOD_ENOUGH if items < _MANY_ITEMS else _GOOD_ENOUGH_OF_MANY)):
        return True
    budget = _MOST_COMPARISONS + _MOST_COMPARISONS_PER_ITEM * items
    if arrangement.largest_time > floor_time * (1 + _UNEVEN):
        budget = max(budget, _MOST_COMPARISONS_PER_ITEM_IF_UNEVEN * min(items, _MOST_UNEVEN_ITEMS))
    return arrangement.comparisons >= budget
