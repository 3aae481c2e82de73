"""What a partition is asked for, and how good an arrangement of it is.

An *arrangement* is the number of the part that each item is in, `homes_S`. A part's *work* is its load plus the sum of
its items' costs; its *time* is work / speed. The largest time is to be small.

Legend: S items, by descending cost; P parts. Units: any, the same for costs and loads; a speed is work per time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcsim.arrays import FloatArray, IntArray

__all__ = ["PartitionTask"]


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """Items to be arranged in parts.

    Attributes:
        costs_S: of each item, finite, not negative, descending.
        loads_P: what each part costs before any item.
        speeds_P: of each part, above 0.
        equal_counts: whether parts' counts of items may differ by at most one.
        tokens_S: length of each item; None: there is no cap.
        cap_tokens: most tokens of a part; of no meaning without `tokens_S`.
    """

    costs_S: FloatArray
    loads_P: FloatArray
    speeds_P: FloatArray
    equal_counts: bool
    tokens_S: IntArray | None = None
    cap_tokens: int = 0

    @property
    def items(self) -> int:
        """How many there are."""
        return self.costs_S.size

    @property
    def parts(self) -> int:
        """How many there are."""
        return self.loads_P.size

    @property
    def fewest(self) -> int:
        """Items of the smallest part where counts are equal."""
        return self.items // self.parts

    @property
    def most(self) -> int:
        """Items of the largest part where counts are equal."""
        return -(-self.items // self.parts)

    @cached_property
    def are_of_one_speed(self) -> bool:
        """Whether no part is faster than another."""
        return bool((self.speeds_P == self.speeds_P[0]).all())

    @cached_property
    def are_alike(self) -> bool:
        """Whether parts differ in neither load nor speed, so that only their numbers tell them apart."""
        return self.are_of_one_speed and bool((self.loads_P == self.loads_P[0]).all())

    @cached_property
    def floor_time(self) -> float:
        """A time that no arrangement's largest is below.

        The largest of: an even spread over all parts; a part's load alone; the part of the costliest item, with the
        cheapest company that equal counts force on it; and what `_alike_floor` says.
        """
        even = (self.loads_P.sum() + self.costs_S.sum()) / self.speeds_P.sum()
        floor = max(even, (self.loads_P / self.speeds_P).max())
        if self.items:
            company = max(self.fewest - 1, 0) if self.equal_counts else 0
            costliest = self.costs_S[0] + self.costs_S[self.items - company :].sum()
            floor = max(floor, ((self.loads_P + costliest) / self.speeds_P).min())
        if self.items > self.parts and self.are_alike:
            floor = max(floor, (self.loads_P[0] + self._alike_floor()) / self.speeds_P[0])
        return float(floor)

    def _alike_floor(self) -> float:
        """A sum that the largest sum of alike parts is not below; there are more items than parts.

        Of the first m P + 1 items, some part has m + 1: at best the cheapest of them. And where counts are equal, the
        first i items are in i parts at most, which have i times the fewest items: at best the cheapest for company.
        """
        before = np.concatenate([[0.0], np.cumsum(self.costs_S)])
        mates_M = np.arange(1, (self.items - 1) // self.parts + 1)
        last_M = mates_M * self.parts + 1
        floor = (before[last_M] - before[last_M - mates_M - 1]).max()
        if self.equal_counts:
            first_I = np.arange(1, self.parts + 1)
            company_I = before[-1] - before[self.items - first_I * (self.fewest - 1)]
            floor = max(floor, ((before[first_I] + company_I) / first_I).max())
        return float(floor)

    def works_P(self, homes_S: IntArray) -> FloatArray:
        """Work of each part."""
        return self.loads_P + np.bincount(homes_S, weights=self.costs_S, minlength=self.parts)

    def largest_time(self, homes_S: IntArray) -> float:
        """What is to be small."""
        return float((self.works_P(homes_S) / self.speeds_P).max())

    def keeps_cap(self, homes_S: IntArray) -> bool:
        """Whether no part holds more tokens than the cap."""
        if self.tokens_S is None:
            return True
        # Sums of whole numbers below 2^53 are exact in floating point.
        tokens_P = np.bincount(homes_S, weights=self.tokens_S, minlength=self.parts)
        return bool(tokens_P.max() <= self.cap_tokens)
