"""First arrangements: items dealt to parts one after another, the costliest first.

Where counts are free, each goes to the part that ends first with it (longest processing time first; Graham, 1969).

Where counts are equal, each goes to the neediest part: the one that lacks most work, to end when the last one must at
least, for each item that it may still get. That keeps sums and counts on course together: a part with a giant waits,
and is filled up with the least.

Under a cap, parts without room are passed over, and an item that finds no room ends the attempt. Other attempts
forget the costs: `fit_tokens` puts each item, the longest first, where it leaves the least room.

Legend: S items, by descending cost; P parts.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.task import PartitionTask

__all__ = ["deal", "fit_tokens"]

# Where parts differ in speed, which of them ends first depends on the item: all are looked at for each of the first
# items. What is left after so many (and so many looks at a part) is small, and goes to the part that ends first so far.
_MOST_SCANNED = 1 << 15
_MOST_SCANNED_PARTS = 1 << 27

# Under a cap an item may pass over every part. Attempts that could come to more visits than this are not made.
_MOST_VISITS = 1 << 21

_Entry = tuple[float, int]  # what the first part is smallest in, and its number


def deal(task: PartitionTask) -> IntArray | None:
    """The home of each item; None where the cap was in the way.

    Args:
        task: with at least one part.
    """
    if task.tokens_S is not None and task.items * task.parts > _MOST_VISITS:
        return None
    homes = _deal_to_neediest(task) if task.equal_counts else _deal_to_first_to_end(task)
    return None if homes is None else np.array(homes, dtype=np.int64)


def fit_tokens(task: PartitionTask) -> IntArray | None:
    """The home of each item, wherever it fits best; None where one fits nowhere. Counts are what they come to.

    Args:
        task: with a cap.
    """
    assert task.tokens_S is not None, "no cap to fit under"
    tokens = task.tokens_S.tolist()
    homes = [0] * task.items
    rooms = [(task.cap_tokens, part) for part in range(task.parts)]  # ascending
    for item in np.argsort(-task.tokens_S, kind="stable").tolist():
        place = bisect_left(rooms, (tokens[item], -1))
        if place == len(rooms):
            return None
        room, part = rooms.pop(place)
        insort(rooms, (room - tokens[item], part))
        homes[item] = part
    return np.array(homes, dtype=np.int64)


def _deal_to_first_to_end(task: PartitionTask) -> list[int] | None:
    works_P = task.loads_P.copy()
    rooms_P = None if task.tokens_S is None else np.full(task.parts, task.cap_tokens)
    homes: list[int] = []
    if not task.are_of_one_speed:
        scanned = _scan(task, works_P, rooms_P)
        if scanned is None:
            return None
        homes = scanned
    costs = task.costs_S[len(homes) :].tolist()
    paces = (1 / task.speeds_P).tolist()
    heap = [(time, part) for part, time in enumerate((works_P / task.speeds_P).tolist())]
    heapq.heapify(heap)
    if task.tokens_S is None or rooms_P is None:
        costly = int(np.count_nonzero(task.costs_S[len(homes) :]))
        for cost in costs[:costly]:
            time, part = heap[0]
            homes.append(part)
            heapq.heapreplace(heap, (time + cost * paces[part], part))
        # Items of no cost would all go to one part.
        return homes + [item % task.parts for item in range(len(costs) - costly)]
    rooms = rooms_P.tolist()
    for cost, tokens in zip(costs, task.tokens_S[len(homes) :].tolist(), strict=True):
        entry = _pop_with_room(heap, rooms, tokens)
        if entry is None:
            return None
        time, part = entry
        homes.append(part)
        rooms[part] -= tokens
        heapq.heappush(heap, (time + cost * paces[part], part))
    return homes


def _scan(task: PartitionTask, works_P: FloatArray, rooms_P: IntArray | None) -> list[int] | None:
    """Homes of the first items, with all parts looked at for each; `works_P` and `rooms_P` are brought up to date."""
    homes: list[int] = []
    count = min(_MOST_SCANNED, _MOST_SCANNED_PARTS // task.parts)
    for item, cost in enumerate(task.costs_S[:count].tolist()):
        ends_P = (works_P + cost) / task.speeds_P
        if task.tokens_S is not None and rooms_P is not None:
            ends_P[rooms_P < task.tokens_S[item]] = np.inf
        part = int(ends_P.argmin())
        if ends_P[part] == np.inf:
            return None
        if task.tokens_S is not None and rooms_P is not None:
            rooms_P[part] -= task.tokens_S[item]
        works_P[part] += cost
        homes.append(part)
    return homes


def _deal_to_neediest(task: PartitionTask) -> list[int] | None:
    lacks = (task.floor_time * task.speeds_P - task.loads_P).tolist()
    places = [task.most] * task.parts
    # So many parts may fill their last place. The others are full one before it.
    last_places = task.items - task.parts * task.fewest if task.most > task.fewest else task.parts
    rooms = None if task.tokens_S is None else [task.cap_tokens] * task.parts
    tokens = [0] * task.items if task.tokens_S is None else task.tokens_S.tolist()
    heap: list[_Entry] = [(-lack / max(task.most, 1), part) for part, lack in enumerate(lacks)]
    heapq.heapify(heap)
    homes: list[int] = []
    for cost, length in zip(task.costs_S.tolist(), tokens, strict=True):
        entry = heapq.heappop(heap) if rooms is None else _pop_with_room(heap, rooms, length)
        if entry is None:
            return None
        part = entry[1]
        homes.append(part)
        lacks[part] -= cost
        places[part] -= 1
        if rooms is not None:
            rooms[part] -= length
        if places[part] == 0:
            last_places -= 1
            if last_places == 0:
                heap = [entry for entry in heap if places[entry[1]] > 1]
                heapq.heapify(heap)
        elif places[part] > 1 or last_places:
            heapq.heappush(heap, (-lacks[part] / places[part], part))
    return homes


def _pop_with_room(heap: list[_Entry], rooms: list[int], tokens: int) -> _Entry | None:
    """The smallest entry whose part has room for so many tokens, taken off the heap; None where none has."""
    passed: list[_Entry] = []
    found = None
    while heap and found is None:
        entry = heapq.heappop(heap)
        if rooms[entry[1]] >= tokens:
            found = entry
        else:
            passed.append(entry)
    for entry in passed:
        heapq.heappush(heap, entry)
    return found
