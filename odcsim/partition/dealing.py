"""First arrangements: items dealt to parts one after another, the costliest first.

Where counts are free, each goes to the part that ends first with it (longest processing time first; Graham, 1969).

Where counts are equal, each goes to the neediest part: the one that lacks most work, to end when the last one must at
least, for each item that it may still get. That keeps sums and counts on course together: a part with a giant waits,
and is filled up with the least.

Under a cap, parts without room are passed over, and an item that finds no room ends the attempt. Other attempts
forget the costs: `fit_tokens` puts each item, the longest first, where it leaves the least room.

To many parts, items are dealt in rounds at first (`dealing_rounds`), as far as they come to the same.

Legend: S items, by descending cost; P parts.
"""

from __future__ import annotations

import heapq

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.best_fit import best_fit_homes
from odcsim.partition.dealing_rounds import Needs, Times, deal_in_rounds
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
    longest_first = np.argsort(-task.tokens_S, kind="stable")
    held = longest_first[: np.count_nonzero(task.tokens_S)]  # an item of no tokens fits anywhere
    homes_S = np.zeros(task.items, dtype=np.int64)
    if held.size:
        if task.tokens_S[held[0]] > task.cap_tokens:
            return None
        homes_S[held] = best_fit_homes(task.tokens_S[held].tolist(), cap_tokens=task.cap_tokens)
    return homes_S if homes_S.max(initial=0) < task.parts else None


def _deal_to_first_to_end(task: PartitionTask) -> list[int] | None:
    works_P = task.loads_P.copy()
    rooms_P = None if task.tokens_S is None else np.full(task.parts, task.cap_tokens)
    homes: list[int] = []
    if not task.are_of_one_speed:
        scanned = _scan(task, works_P, rooms_P)
        if scanned is None:
            return None
        homes = scanned
    if task.tokens_S is None or rooms_P is None:
        return _deal_by_time(task, works_P, homes)
    costs = task.costs_S[len(homes) :].tolist()
    paces = (1 / task.speeds_P).tolist()
    heap = [(time, part) for part, time in enumerate((works_P / task.speeds_P).tolist())]
    heapq.heapify(heap)
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


def _deal_by_time(task: PartitionTask, works_P: FloatArray, homes: list[int]) -> list[int]:
    """Homes of all items, those of the first ones being given, where no cap is in the way."""
    paces_P = 1 / task.speeds_P
    costly_S = task.costs_S[len(homes) : np.count_nonzero(task.costs_S)]
    times = Times(works_P / task.speeds_P, paces_P)
    homes += deal_in_rounds(times, costly_S)
    heap = [(time, part) for part, time in enumerate(times.keys_P.tolist())]
    heapq.heapify(heap)
    paces = paces_P.tolist()
    for cost in task.costs_S[len(homes) : np.count_nonzero(task.costs_S)].tolist():
        time, part = heap[0]
        homes.append(part)
        heapq.heapreplace(heap, (time + cost * paces[part], part))
    # Items of no cost would all go to one part.
    return homes + [item % task.parts for item in range(task.items - len(homes))]


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
    needs = Needs(
        lacks_P=task.floor_time * task.speeds_P - task.loads_P,
        places_P=np.full(task.parts, task.most),
        # So many parts may fill their last place. The others are full one before it.
        last_places=task.items - task.parts * task.fewest if task.most > task.fewest else task.parts,
    )
    if task.tokens_S is None:
        return _deal_by_need(task, needs)
    lacks, places, last_places = needs.lacks_P.tolist(), needs.places_P.tolist(), needs.last_places
    rooms = [task.cap_tokens] * task.parts
    heap = [(key, part) for part, key in enumerate(needs.keys_P.tolist())]
    heapq.heapify(heap)
    homes: list[int] = []
    for cost, tokens in zip(task.costs_S.tolist(), task.tokens_S.tolist(), strict=True):
        entry = _pop_with_room(heap, rooms, tokens)
        if entry is None:
            return None
        part = entry[1]
        homes.append(part)
        lacks[part] -= cost
        places[part] -= 1
        rooms[part] -= tokens
        if places[part] == 0:
            last_places -= 1
            if last_places == 0:
                heap = [entry for entry in heap if places[entry[1]] > 1]
                heapq.heapify(heap)
        elif places[part] > 1 or last_places:
            heapq.heappush(heap, (-lacks[part] / places[part], part))
    return homes


def _deal_by_need(task: PartitionTask, needs: Needs) -> list[int]:
    """Homes of all items where no cap is in the way."""
    homes = deal_in_rounds(needs, task.costs_S)
    lacks, places, last_places = needs.lacks_P.tolist(), needs.places_P.tolist(), needs.last_places
    full = 0 if last_places else 1
    heap = [(key, part) for part, key in enumerate(needs.keys_P.tolist()) if places[part] > full]
    heapq.heapify(heap)
    for cost in task.costs_S[len(homes) :].tolist():
        part = heap[0][1]
        homes.append(part)
        lacks[part] -= cost
        places[part] -= 1
        if places[part] > full:
            heapq.heapreplace(heap, (-lacks[part] / places[part], part))
            continue
        heapq.heappop(heap)
        if places[part] == 0:
            last_places -= 1
            if last_places == 0:
                full = 1
                heap = [entry for entry in heap if places[entry[1]] > full]
                heapq.heapify(heap)
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
