"""Swaps that lower the heaviest part.

The heaviest part offers each of its items to another part in exchange for one of that part's, the lightest part
first; of a pair of parts, the swap that leaves them most alike is made. Every swap lowers the larger of the two sums
by a noticeable share, and the pairs of parts looked at are counted against a budget, so the work is bounded whatever
the costs are.

Invariants: part sizes stay; the largest sum never rises.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

__all__ = ["lower_heaviest_by_swaps"]

_PAIRS_PER_PART = 32
# A gain below this share of the largest sum is not worth a swap: it is far below what a cost model can tell apart.
_SMALLEST_GAIN = 1e-6

_Member = tuple[float, int]  # cost, item


def lower_heaviest_by_swaps(
    parts: Sequence[Sequence[int]], costs_S: Sequence[float], *, pairs_budget: int | None = None
) -> list[list[int]]:
    """The same parts after swaps of single items between the heaviest and the others.

    Args:
        parts: sets of item indices.
        costs_S: cost of each item, not negative.
        pairs_budget: how many pairs of parts to look at, at most; by default 32 for every part.

    Returns:
        the parts in the order given, each of the size it had, its item indices ascending.
    """
    members: list[list[_Member]] = [sorted((costs_S[item], item) for item in part) for part in parts]
    sums = [sum(cost for cost, _ in part) for part in members]
    order = list(range(len(parts)))
    budget = _PAIRS_PER_PART * len(parts) if pairs_budget is None else pairs_budget
    improved = len(parts) > 1
    while improved:
        improved = False
        order.sort(key=lambda part: (sums[part], part))
        heaviest = order[-1]
        smallest_gain = _SMALLEST_GAIN * sums[heaviest]
        for other in order[:-1]:
            gap = sums[heaviest] - sums[other]
            if gap <= 2 * smallest_gain or budget <= 0:
                break
            budget -= 1
            swap = _best_swap(members[heaviest], members[other], gap=gap, smallest_gain=smallest_gain)
            if swap is not None:
                given, taken = swap
                _exchange(members[heaviest], members[other], given, taken)
                sums[heaviest] += taken[0] - given[0]
                sums[other] += given[0] - taken[0]
                improved = True
                break
    return [sorted(item for _, item in part) for part in members]


def _best_swap(
    heavy: list[_Member], light: list[_Member], *, gap: float, smallest_gain: float
) -> tuple[_Member, _Member] | None:
    """The members to exchange so that what moves comes nearest to half of `gap`; None where none gains enough."""
    half = gap / 2
    nearest = half - smallest_gain
    best: tuple[_Member, _Member] | None = None
    for given in heavy:
        wanted = given[0] - half
        position = bisect_left(light, (wanted, -1))
        for taken in light[max(position - 1, 0) : position + 1]:
            distance = abs(taken[0] - wanted)
            if distance < nearest:
                nearest = distance
                best = (given, taken)
    return best


def _exchange(heavy: list[_Member], light: list[_Member], given: _Member, taken: _Member) -> None:
    heavy.remove(given)
    light.remove(taken)
    insort(heavy, taken)
    insort(light, given)
