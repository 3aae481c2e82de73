"""Every set of a handful of samples, and the best ways of splitting it into microbatches.

A set is a whole number: sample s is in it where bit s is 1. There are 2^S of them for S samples, and 3^S pairs of a set
and one of its subsets; all are looked at.

Legend: S samples, C = 2^S sets, B = 0 to S microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from odcsim.arrays import BoolArray, FloatArray, IntArray

__all__ = ["SampleSets", "members_of"]


def members_of(chosen: int) -> tuple[int, ...]:
    """The samples of a set, ascending."""
    return tuple(sample for sample in range(chosen.bit_length()) if chosen >> sample & 1)


@dataclass(frozen=True)
class SampleSets:
    """What every set of samples costs, and how low its costliest microbatch can be.

    Attributes:
        are_members_SC: whether a sample is in a set.
        costs_C: sum of the samples' costs.
        fit_C: whether the set can be a microbatch: it keeps the cap, or is a single sample.
        heights_CB: cost of the costliest microbatch when the set is split into at most B of them, in the best way;
            infinite where it does not fit into so many.
    """

    are_members_SC: BoolArray
    costs_C: FloatArray
    fit_C: BoolArray
    heights_CB: FloatArray

    @classmethod
    def of(cls, costs_S: FloatArray, tokens_S: IntArray, *, cap_tokens: int) -> SampleSets:
        """All sets of these samples.

        Args:
            costs_S: of each sample, not negative.
            tokens_S: lengths, at least 1.
            cap_tokens: most tokens of a microbatch of several samples.
        """
        samples = costs_S.size
        numbers_C = np.arange(1 << samples)
        are_members_SC = (numbers_C >> np.arange(samples)[:, np.newaxis] & 1).astype(np.bool_)
        costs_C = costs_S @ are_members_SC
        fit_C = np.minimum(tokens_S, cap_tokens) @ are_members_SC <= cap_tokens
        heights_CB = np.full((numbers_C.size, samples + 1), np.inf)
        heights_CB[0] = 0.0
        # A set's microbatch with its last sample, and the best split of the others, which have smaller numbers.
        for last in range(samples):
            lower = numbers_C[: 1 << last]
            for company in lower.tolist():
                microbatch = company | 1 << last
                if fit_C[microbatch]:
                    others = lower[lower & company == 0]
                    split = np.maximum(costs_C[microbatch], heights_CB[others, :-1])
                    heights_CB[microbatch + others, 1:] = np.minimum(heights_CB[microbatch + others, 1:], split)
        return cls(are_members_SC, costs_C, fit_C, heights_CB)

    def fewest_microbatches_C(self) -> IntArray:
        """How many microbatches each set needs."""
        fewest_C: IntArray = np.isfinite(self.heights_CB).argmax(axis=1)
        return fewest_C

    def split(self, chosen: int, *, microbatches: int) -> list[int]:
        """At most so many microbatches of a set, the costliest as low as it can be."""
        assert np.isfinite(self.heights_CB[chosen, microbatches]), (
            f"set {chosen} needs over {microbatches} microbatches"
        )
        parts: list[int] = []
        for left in range(microbatches, 0, -1):
            if chosen:
                parts.append(self._best_part(chosen, left))
                chosen ^= parts[-1]
        return parts

    def _best_part(self, chosen: int, microbatches: int) -> int:
        last = 1 << chosen.bit_length() - 1
        for company in _subsets(chosen ^ last):
            part = company | last
            height = max(self.costs_C[part], self.heights_CB[chosen ^ part, microbatches - 1])
            if self.fit_C[part] and height == self.heights_CB[chosen, microbatches]:
                return part
        raise AssertionError(f"no split of set {chosen} is as good as its table says")


def _subsets(chosen: int) -> Iterator[int]:
    part = chosen
    while part:
        yield part
        part = (part - 1) & chosen
    yield 0
