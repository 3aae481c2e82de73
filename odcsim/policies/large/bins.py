"""Samples in bins, each of which is to be a microbatch.

Legend: S samples of a minibatch, B bins, P parts of the samples, each with bins of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.best_fit import best_fit_homes
from odcsim.plan import Microbatch

__all__ = ["Bins", "cut"]


@dataclass(frozen=True, eq=False)
class Bins:
    """Which bin each sample is in.

    Attributes:
        bin_S: its number.
        cost_B: seconds of all samples of each bin, without a constant.
        part_B: the part whose samples each bin holds; bins come part by part.
    """

    bin_S: IntArray
    cost_B: FloatArray
    part_B: IntArray

    @classmethod
    def fit(cls, costs_S: FloatArray, tokens_S: IntArray, *, cap_tokens: int, part_S: IntArray | None = None) -> Bins:
        """Best fit of the longest first, part by part.

        Args:
            costs_S: seconds that each sample adds to its bin.
            tokens_S: length of each sample, from 1 to the cap.
            cap_tokens: most tokens of a bin.
            part_S: the part that each sample belongs to; None: all to one.
        """
        if part_S is None:
            part_S = np.zeros(tokens_S.size, dtype=np.int64)
            by_part = np.argsort(-tokens_S, kind="stable")
        else:
            by_part = np.lexsort((-tokens_S, part_S))
        count_P = np.bincount(part_S)
        tokens_P = np.bincount(part_S, weights=tokens_S)
        bins_P = (count_P > 0).astype(np.int64)
        home_S = np.zeros(tokens_S.size, dtype=np.int64)
        start_P = np.cumsum(count_P) - count_P
        # Most parts of little have but one bin.
        for part in np.flatnonzero(tokens_P > cap_tokens).tolist():
            chosen = by_part[start_P[part] : start_P[part] + count_P[part]]
            homes = np.array(best_fit_homes(tokens_S[chosen].tolist(), cap_tokens=cap_tokens), dtype=np.int64)
            home_S[chosen] = homes
            bins_P[part] = homes.max() + 1
        bin_S = home_S + (np.cumsum(bins_P) - bins_P)[part_S]
        cost_B = np.bincount(bin_S, weights=costs_S).astype(np.float64)
        return cls(bin_S, cost_B, part_B=np.repeat(np.arange(bins_P.size), bins_P))

    @classmethod
    def of(cls, bin_S: IntArray, costs_S: FloatArray) -> Bins:
        """Bins of one part, numbered anew so that none is empty."""
        is_used = np.bincount(bin_S) > 0
        bin_S = (np.cumsum(is_used) - 1)[bin_S]
        cost_B = np.bincount(bin_S, weights=costs_S).astype(np.float64)
        return cls(bin_S, cost_B, part_B=np.zeros(cost_B.size, dtype=np.int64))

    @property
    def count(self) -> int:
        """How many there are."""
        return self.cost_B.size

    def samples_of(self, bins_B: IntArray) -> list[list[int]]:
        """The samples of some bins, ascending.

        Args:
            bins_B: their numbers.
        """
        return [samples[start:end] for samples, start, end in self._slices(bins_B)]

    def microbatches(self, order_B: IntArray) -> list[Microbatch]:
        """All bins, in an order that is given by their numbers."""
        return [tuple(samples[start:end]) for samples, start, end in self._slices(order_B)]

    def on_ranks(self, rank_B: IntArray, *, ranks: int) -> tuple[tuple[Microbatch, ...], ...]:
        """The bins of each rank, the costliest first.

        Args:
            rank_B: the rank of each bin.
            ranks: how many there are.
        """
        microbatches = self.microbatches(np.lexsort((-self.cost_B, rank_B)))
        return cut(microbatches, np.bincount(rank_B, minlength=ranks).tolist())

    def _slices(self, bins_B: IntArray) -> Iterator[tuple[list[int], int, int]]:
        """Where the samples of each of some bins are: between two places in one list."""
        place_B = np.full(self.count, bins_B.size)
        place_B[bins_B] = np.arange(bins_B.size)
        place_S = place_B[self.bin_S]
        ends = np.cumsum(np.bincount(place_S, minlength=bins_B.size)[: bins_B.size]).tolist()
        samples = np.argsort(place_S, kind="stable").tolist()
        return ((samples, start, end) for start, end in zip([0, *ends], ends, strict=False))


def cut(microbatches: Sequence[Microbatch], counts: Sequence[int]) -> tuple[tuple[Microbatch, ...], ...]:
    """Microbatches in a row as those of ranks, so many of each."""
    ends = np.cumsum(counts).tolist()
    return tuple(tuple(microbatches[start:end]) for start, end in zip([0, *ends], ends, strict=False))
