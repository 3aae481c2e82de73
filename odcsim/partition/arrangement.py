"""Items in the slots of parts, and the best exchanges between parts.

A part's *slots* hold its items and some phantoms, which cost nothing: an exchange of an item for a phantom is a move.
Where counts are free every part starts with some phantoms. Where they are equal, all parts have the same number of
slots, and a part with one item less has one phantom; it never gets a second one. Of a part with very many items, some
that are spread over its costs have slots, and the others stay where they are.

Invariants: no exchange lets the later of two parts end later; counts stay equal where they are to be; no part comes to
break the cap.

Legend: S items, by descending cost; P parts; M slots of a part; Q pairs of parts; 2 the giver and the taker of a pair;
N slots that either exchanges; K offers of a part, each a choice of N of its slots.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.nearest import Limits, nearest_exchange, nearest_exchange_under_cap
from odcsim.partition.task import PartitionTask

__all__ = ["Arrangement"]

_Number = TypeVar("_Number", np.float64, np.int64)

# Items of a part that may be exchanged, and phantoms beside them where counts are free.
_MOST_ITEMS = 64
_PHANTOMS = 3

# Slots that a part offers at a time in exchanges of 1, 2 and 3: so many that it makes fewer than 200 offers, and fewer
# than 70 where a cap forces all pairs of offers to be looked at.
_MOST_SLOTS = {1: 67, 2: 19, 3: 11}
_MOST_SLOTS_UNDER_CAP = {1: 67, 2: 12, 3: 8}

# An offer counts as one comparison, and so do some pairs of offers under a cap. What else there is to do in a round is
# as much work as some thousands.
_COMPARISONS_OF_ROUND = 5000
_PAIRS_OF_OFFERS_PER_COMPARISON = 8

# Comparisons at a time, so that arrays stay small, and in a round of the last part.
_MOST_AT_ONCE = 1 << 18
_MOST_WITH_LAST = 1 << 13

# A gain below this share of the largest work is not worth an exchange.
_NEGLIGIBLE_GAIN = 1e-7


class _Exchanges(NamedTuple):
    """The best exchange of each pair.

    Attributes:
        gain_Q: by how much nearer the two come to ending together, as work of the giver.
        slots_Q2N: the slots that change places.
    """

    gain_Q: FloatArray
    slots_Q2N: IntArray


@lru_cache(maxsize=64)
def _choices_KN(slots: int, size: int) -> IntArray:
    """Every choice of `size` of so many slots."""
    return np.array(list(combinations(range(slots), size)), dtype=np.int64)


def _offers_Q2K(values_Q2M: npt.NDArray[_Number], choices_KN: IntArray) -> npt.NDArray[_Number]:
    """What each choice of slots comes to."""
    offers_Q2K = values_Q2M[:, :, choices_KN[:, 0]]
    for slot_K in choices_KN.T[1:]:
        offers_Q2K += values_Q2M[:, :, slot_K]
    return offers_Q2K


def _slots_PM(task: PartitionTask, homes_S: IntArray) -> IntArray:
    """The items of each part that may be exchanged, the costliest first, and phantoms (numbered as the next item)."""
    # Small integers are sorted by their digits, and what is left of an equal number of parts is the order of cost.
    by_part = np.argsort(homes_S.astype(np.int16) if task.parts < 1 << 15 else homes_S, kind="stable")
    items = np.append(by_part, task.items)
    counts_P = np.bincount(homes_S, minlength=task.parts)
    starts_P = np.cumsum(counts_P) - counts_P
    spans_P = np.full(task.parts, task.most) if task.equal_counts else counts_P
    longest = int(spans_P.max())
    columns = min(longest, _MOST_ITEMS)
    places_PM = np.arange(columns)[None, :]
    if longest > columns:
        # From the first place to the last one.
        spread_PM = places_PM * (spans_P[:, None] - 1) // (columns - 1)
        places_PM = np.where(spans_P[:, None] > columns, spread_PM, places_PM)
    slots_PM = items[np.where(places_PM < counts_P[:, None], starts_P[:, None] + places_PM, task.items)]
    if task.equal_counts:
        return slots_PM
    return np.concatenate([slots_PM, np.full((task.parts, _PHANTOMS), task.items)], axis=1)


class Arrangement:
    """Items in the slots of parts, and what follows from that. The item after the last one is the phantom."""

    def __init__(self, task: PartitionTask, homes_S: IntArray) -> None:
        self.task = task
        self._fixed_homes_S = homes_S
        self._slots_PM = _slots_PM(task, homes_S)
        self._all_slots_M = np.arange(self._slots_PM.shape[1])
        self.largest_size = min(self._all_slots_M.size, max(_MOST_SLOTS))
        self.comparisons = 0
        self._works_P = task.works_P(homes_S)
        self._times_P = self._works_P / task.speeds_P
        self._costs = np.append(task.costs_S, 0.0)
        # Costs with which a giver's slot and a taker's are out of any exchange's reach.
        self._out_of_reach_21 = (4 * self._works_P.sum() + 1) * np.array([[-1.0], [1.0]])
        self._tokens = None if task.tokens_S is None else np.append(task.tokens_S, 0)
        self._rooms_P = np.zeros(task.parts, dtype=np.int64)
        if task.tokens_S is not None:
            self._rooms_P += task.cap_tokens
            np.subtract.at(self._rooms_P, homes_S, task.tokens_S)

    def homes_S(self) -> IntArray:
        """The part of each item."""
        homes = np.append(self._fixed_homes_S, 0)
        homes[self._slots_PM] = np.arange(self.task.parts)[:, None]
        return homes[:-1]

    @property
    def largest_time(self) -> float:
        """When the last part ends."""
        return float(self._times_P.max())

    def exchange_in_pairs(self, size: int, *, late: float, turn: int, idle: int) -> None:
        """Late parts exchange with early ones: the last one with the first, the last but one with the second, ...

        Args:
            size: slots that each exchanges.
            late: a part that ends after this is late.
            turn: of many slots, others are offered turn by turn.
            idle: rounds that the last part has not gained in. Each halves the late parts and moves them on to others.
        """
        latest_first = np.argsort(-self._times_P, kind="stable")
        late_parts = int(np.count_nonzero(self._times_P > late))
        pairs = max(min(late_parts, self.task.parts // 2) >> idle, 1)
        takers_Q = latest_first[-1 - (np.arange(pairs) + idle * max(pairs - 1, 1)) % (self.task.parts - pairs)]
        parts_Q2 = np.stack([latest_first[:pairs], takers_Q], axis=1)
        best = self._best_exchanges(parts_Q2, size, turn)
        gains_Q = best.gain_Q > self._smallest_gain
        self._make(parts_Q2[gains_Q], best.slots_Q2N[gains_Q])

    def lower_the_last(self, size: int, *, turn: int) -> bool:
        """The part that ends last exchanges with the one that it then ends earliest with. Whether there is any.

        Args:
            size: slots that each exchanges.
            turn: of many slots, others are offered turn by turn.
        """
        last = int(self._times_P.argmax())
        # Where there are too many to ask, those that end first have most to give.
        asked = max(_MOST_WITH_LAST // self._comparisons_of_pair(size), 1)
        takers_Q = self._first_to_end(asked + 1)
        takers_Q = takers_Q[takers_Q != last][:asked]
        parts_Q2 = np.stack([np.full_like(takers_Q, last), takers_Q], axis=1)
        best = self._best_exchanges(parts_Q2, size, turn)
        pair = [best.gain_Q.argmax()]
        if best.gain_Q[pair] <= self._smallest_gain:
            return False
        self._make(parts_Q2[pair], best.slots_Q2N[pair])
        return True

    def _first_to_end(self, most: int) -> IntArray:
        """The parts that end first, so many at most; of those that end together the later ones."""
        earliest = np.arange(self.task.parts)
        if most < self.task.parts:
            earliest = np.flatnonzero(self._times_P <= np.partition(self._times_P, most - 1)[most - 1])
        return earliest[np.lexsort((-earliest, self._times_P[earliest]))][:most]

    @property
    def _smallest_gain(self) -> float:
        return _NEGLIGIBLE_GAIN * float(self._works_P.max())

    def _offered_M(self, size: int, turn: int) -> IntArray:
        """The slots that are offered, the same of all parts."""
        slots, offered = self._all_slots_M.size, self._most_offered(size)
        if offered == slots:
            return self._all_slots_M
        return (np.arange(offered) * slots // offered + turn) % slots

    def _most_offered(self, size: int) -> int:
        return min((_MOST_SLOTS if self._tokens is None else _MOST_SLOTS_UNDER_CAP)[size], self._all_slots_M.size)

    def _comparisons_of_pair(self, size: int) -> int:
        offers = comb(self._most_offered(size), size)
        if self._tokens is None:
            return 2 * offers
        return 1 + offers * offers // _PAIRS_OF_OFFERS_PER_COMPARISON

    def _best_exchanges(self, parts_Q2: IntArray, size: int, turn: int) -> _Exchanges:
        """The best exchange of each pair."""
        comparisons = self._comparisons_of_pair(size)
        self.comparisons += _COMPARISONS_OF_ROUND + len(parts_Q2) * comparisons
        at_once = max(_MOST_AT_ONCE // comparisons, 1)
        if len(parts_Q2) <= at_once:
            return self._best_at_once(parts_Q2, size, turn)
        best = [
            self._best_at_once(parts_Q2[start : start + at_once], size, turn)
            for start in range(0, len(parts_Q2), at_once)
        ]
        return _Exchanges(*map(np.concatenate, zip(*best, strict=True)))

    def _best_at_once(self, parts_Q2: IntArray, size: int, turn: int) -> _Exchanges:
        # To end together, the giver is to lose what it has more than its share of the work of both.
        works_Q2 = self._works_P[parts_Q2]
        wanted_Q = (works_Q2[:, 0] - works_Q2[:, 1]) / 2
        overshoot_Q = None
        if not self.task.are_of_one_speed:
            speeds_Q2 = self.task.speeds_P[parts_Q2]
            wanted_Q = works_Q2[:, 0] - works_Q2.sum(axis=1) * speeds_Q2[:, 0] / speeds_Q2.sum(axis=1)
            overshoot_Q = speeds_Q2[:, 0] / speeds_Q2[:, 1]
        offered_M = self._offered_M(size, turn)
        choices_KN = _choices_KN(offered_M.size, size)
        items_Q2M = self._slots_PM[parts_Q2[:, :, None], offered_M]
        costs_Q2M = self._costs[items_Q2M]
        if self.task.equal_counts and self.task.fewest < self.task.most:
            # A part that has a phantom is not to get a second one: of two such parts neither offers it.
            has_phantom_P = (self._slots_PM == self.task.items).any(axis=1)
            both_Q = has_phantom_P[parts_Q2].all(axis=1)
            is_hidden = both_Q[:, None, None] & (items_Q2M == self.task.items)
            costs_Q2M = np.where(is_hidden, self._out_of_reach_21, costs_Q2M)
        offers_Q2K = _offers_Q2K(costs_Q2M, choices_KN)
        if self._tokens is None:
            nearest = nearest_exchange(offers_Q2K, wanted_Q=wanted_Q, overshoot_Q=overshoot_Q)
        else:
            limits = Limits(_offers_Q2K(self._tokens[items_Q2M], choices_KN), self._rooms_P[parts_Q2])
            nearest = nearest_exchange_under_cap(offers_Q2K, limits, wanted_Q=wanted_Q, overshoot_Q=overshoot_Q)
        return _Exchanges(wanted_Q - nearest.distance_Q, offered_M[choices_KN[nearest.offer_Q2]])

    def _make(self, parts_Q2: IntArray, slots_Q2N: IntArray) -> None:
        """Exchange what is in the slots, of pairs no two of which share a part."""
        places = parts_Q2[:, :, None], slots_Q2N
        items_Q2N = self._slots_PM[places]
        self._slots_PM[places] = items_Q2N[:, ::-1]
        lost_Q2 = self._costs[items_Q2N].sum(axis=2)
        self._works_P[parts_Q2] += lost_Q2[:, ::-1] - lost_Q2
        self._times_P = self._works_P / self.task.speeds_P
        if self._tokens is not None:
            freed_Q2 = self._tokens[items_Q2N].sum(axis=2)
            self._rooms_P[parts_Q2] += freed_Q2 - freed_Q2[:, ::-1]
