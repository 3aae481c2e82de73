"""The largest differencing method (Karmarkar and Karp, 1982), generalised from two parts to k.

A *state* is a partial answer: k sums over disjoint sets of items. Of all states, the two whose sums differ most are
merged, the largest sum of one with the smallest of the other, until one state is left.

Two things keep it fast. A state lists only the parts that hold something; as long as two states together fill no more
than k parts, merging them is joining two lists. And a merged part takes over its first half's list of items instead
of copying it.

Equal counts start from states that hold one item in every part; merging keeps that. Where the count is no multiple of
k, the lightest state is filled with phantom items of no cost, at most one a part, so that part sizes differ by at
most one.

Invariants: every item is in exactly one part; the order of the parts is by descending sum; ties are broken by item
index.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence

__all__ = ["split_by_differencing"]

# (sum, number, items). The number is that of the first item, or a negative one for phantoms; no two parts share one, so
# that comparing parts never reaches the lists.
_Part = tuple[float, int, list[int]]
_State = list[_Part]  # ascending; parts that nothing, not even a phantom, was put in are left out

# Up to this many parts are inserted one by one, which is quicker than sorting a long state again.
_FEW_TO_PLACE = 4


def split_by_differencing(costs_S: Sequence[float], *, parts: int, equal_counts: bool) -> list[list[int]]:
    """Split items into `parts` sets of near-equal cost.

    Args:
        costs_S: cost of each item, in any unit; finite and not negative.
        parts: number of sets, at least 1.
        equal_counts: whether set sizes may differ by at most one.

    Returns:
        the sets, by descending cost, each with its item indices ascending; empty ones where items are fewer than parts.
    """
    assert parts >= 1, f"cannot split into {parts} parts"
    count = len(costs_S)
    if parts == 1:
        return [list(range(count))]
    descending = sorted(range(count), key=costs_S.__getitem__, reverse=True)
    if count <= parts:
        return [[item] for item in descending] + [[] for _ in range(parts - count)]
    if equal_counts:
        states = _states_of_one_item_a_part(costs_S, parts)
    else:
        states = [[(costs_S[item], item, [item])] for item in descending]
    final = _merge_all(states, parts)
    # Items meet only where two states together fill more parts than there are: with more items than parts, all fill up.
    assert len(final) == parts, f"{len(final)} of {parts} parts hold something"
    return [sorted(items) for _, _, items in reversed(final)]


def _states_of_one_item_a_part(costs_S: Sequence[float], parts: int) -> list[_State]:
    phantoms = -len(costs_S) % parts
    entries: list[_Part] = [(0.0, number, []) for number in range(-phantoms, 0)]
    entries += sorted((cost, item, [item]) for item, cost in enumerate(costs_S))
    return [entries[start : start + parts] for start in range(0, len(entries), parts)]


def _merge_all(states: list[_State], parts: int) -> _State:
    """Merge the two states of the largest spread until one is left; equal spreads in the order of their making."""

    def spread(state: _State) -> float:
        return state[-1][0] - state[0][0] if len(state) == parts else state[-1][0]

    heap = [(-spread(state), number, state) for number, state in enumerate(states)]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        first = heapq.heappop(heap)[2]
        merged = _merge(first, heap[0][2], parts)
        heapq.heapreplace(heap, (-spread(merged), made, merged))
        made += 1
    return heap[0][2]


def _merge(first: _State, second: _State, parts: int) -> _State:
    """Join two states, large sums meeting small (or empty) ones. Takes over both and their item lists."""
    if len(first) < len(second):
        first, second = second, first
    meeting = max(len(first) + len(second) - parts, 0)
    placed = second[meeting:]
    for (sum_1, number, items), (sum_2, _, more_items) in zip(first[:meeting], reversed(second[:meeting]), strict=True):
        items.extend(more_items)
        placed.append((sum_1 + sum_2, number, items))
    del first[:meeting]
    if len(placed) <= _FEW_TO_PLACE:
        for part in placed:
            insort(first, part)
    else:
        first += placed
        first.sort()
    return first
