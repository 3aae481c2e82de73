"""Items dealt to many parts a round at a time: the next items to the parts that are first, one each.

Dealt one by one, each item goes to the part of the smallest *key*, which grows by that. A round is as many items as go
to different parts that way: as long as no part that has got one would be first again. So items end where they would
one by one, except that of parts that are equally first, one that has not got any in the round comes first.

Legend: S items, by descending cost; P parts; K items of a round, and the parts that get them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from odcsim.arrays import FloatArray, IntArray

__all__ = ["Needs", "Times", "deal_in_rounds"]

# With fewer parts, or fewer in a round than this share of them, items are dealt as quickly one by one.
_FEWEST_PARTS = 128
_LEAST_SHARE = 1 / 8


class _Parts(Protocol):
    """What parts have so far."""

    @property
    def keys_P(self) -> FloatArray:
        """The smallest comes first; infinite for a part that is full."""
        ...

    def most_in_round(self, parts_K: IntArray) -> int:
        """To how many of these, from the first on, items may be dealt."""
        ...

    def keys_after_K(self, parts_K: IntArray, costs_K: FloatArray) -> FloatArray:
        """Keys of parts once each has one more item."""
        ...

    def take(self, parts_K: IntArray, costs_K: FloatArray) -> None:
        """One more item for each of these parts."""
        ...


def deal_in_rounds(parts: _Parts, costs_S: FloatArray) -> list[int]:
    """The parts of the first items, which `parts` then have: all of them, or until rounds no longer pay.

    Args:
        parts: brought up to date.
        costs_S: of the items, descending.
    """
    homes: list[int] = []
    left = costs_S
    while left.size:
        keys_P = parts.keys_P
        if keys_P.size < _FEWEST_PARTS:
            break
        first_K = np.argsort(keys_P, kind="stable")[: left.size]
        first_K = first_K[: parts.most_in_round(first_K)]
        after_K = parts.keys_after_K(first_K, left[: first_K.size])
        is_again_K = keys_P[first_K[1:]] > np.minimum.accumulate(after_K)[:-1]
        dealt = 1 + int(is_again_K.argmax()) if is_again_K.any() else first_K.size
        if dealt < min(_LEAST_SHARE * keys_P.size, left.size):
            break
        parts.take(first_K[:dealt], left[:dealt])
        homes += first_K[:dealt].tolist()
        left = left[dealt:]
    return homes


@dataclass(eq=False)
class Times:
    """Parts of which that which ends first is first.

    Attributes:
        keys_P: when each ends.
        paces_P: how much later for an item of cost 1.
    """

    keys_P: FloatArray
    paces_P: FloatArray

    def most_in_round(self, parts_K: IntArray) -> int:
        """All of them."""
        return parts_K.size

    def keys_after_K(self, parts_K: IntArray, costs_K: FloatArray) -> FloatArray:
        """When parts end with one more item each."""
        keys_K: FloatArray = self.keys_P[parts_K] + costs_K * self.paces_P[parts_K]
        return keys_K

    def take(self, parts_K: IntArray, costs_K: FloatArray) -> None:
        """One more item for each of these parts."""
        self.keys_P[parts_K] += costs_K * self.paces_P[parts_K]


@dataclass(eq=False)
class Needs:
    """Parts of which that one is first which lacks most for each item that it may still get.

    Attributes:
        lacks_P: work that each lacks.
        places_P: items that it may still get.
        last_places: how many parts may fill their last place.
    """

    lacks_P: FloatArray
    places_P: IntArray
    last_places: int

    @property
    def keys_P(self) -> FloatArray:
        """What parts lack for an item, negative."""
        is_open_P = self.places_P > (0 if self.last_places else 1)
        return np.where(is_open_P, -self.lacks_P / np.maximum(self.places_P, 1), np.inf)

    def most_in_round(self, parts_K: IntArray) -> int:
        """Until no part may fill its last place any more, and no part that is full."""
        places_K = self.places_P[parts_K]
        filled_K = np.cumsum(places_K == 1)
        if filled_K[-1] >= self.last_places > 0:
            return int(np.searchsorted(filled_K, self.last_places)) + 1
        return int(np.count_nonzero(places_K > (0 if self.last_places else 1)))

    def keys_after_K(self, parts_K: IntArray, costs_K: FloatArray) -> FloatArray:
        """What parts lack for an item, negative, once they have one more; infinite for those then full."""
        places_K = self.places_P[parts_K] - 1
        lacks_K = self.lacks_P[parts_K] - costs_K
        return np.where(places_K > 0, -lacks_K / np.maximum(places_K, 1), np.inf)

    def take(self, parts_K: IntArray, costs_K: FloatArray) -> None:
        """One more item for each of these parts."""
        self.lacks_P[parts_K] -= costs_K
        self.places_P[parts_K] -= 1
        self.last_places -= int(np.count_nonzero(self.places_P[parts_K] == 0))
