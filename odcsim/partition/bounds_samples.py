"""Samples by descending length, and what microbatches of them hold at most, whoever packs them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds_fewest import count_fewest_microbatches

__all__ = ["SortedSamples"]

# A rounding must not ask for one microbatch more.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class SortedSamples:
    """The samples of a minibatch, the longest first.

    None costs less than a shorter one, neither in all nor per token: coefficients of costs are not negative.
    Legend: S samples; S1 sums over the samples before each, and over all; N numbers of microbatches.

    Attributes:
        costs_S: seconds that each adds to its microbatch.
        capped_S: its tokens, or the cap where it has more and so is alone.
        cap_tokens: most tokens of a microbatch.
    """

    costs_S: FloatArray
    capped_S: IntArray
    cap_tokens: int

    @classmethod
    def of(cls, lengths_S: IntArray, *, cost: TokenCost, cap_tokens: int) -> SortedSamples:
        """Samples in any order; those of 0 tokens (dropped) are left out."""
        tokens_S = np.sort(lengths_S[lengths_S > 0])[::-1]
        return cls(cost.sample_costs_S(tokens_S), np.minimum(tokens_S, cap_tokens), cap_tokens)

    @property
    def count(self) -> int:
        """How many there are."""
        return self.costs_S.size

    @cached_property
    def fewest_microbatches(self) -> int:
        """No packing needs fewer."""
        return count_fewest_microbatches(self.capped_S.tolist(), cap_tokens=self.cap_tokens)

    @cached_property
    def cost_S1(self) -> FloatArray:
        """Cost of so many of the longest."""
        return np.concatenate([[0.0], np.cumsum(self.costs_S)])

    @cached_property
    def tokens_S1(self) -> IntArray:
        """Tokens of so many of the longest."""
        return np.concatenate([[0], np.cumsum(self.capped_S)])

    @property
    def cost(self) -> float:
        """Of all."""
        return float(self.cost_S1[-1])

    def densest_N(self, microbatches_N: IntArray) -> FloatArray:
        """Cost of the longest samples that make up so many times cap tokens, the last one in part.

        No set of samples of as many tokens costs more, for none costs more per token.
        """
        cap_tokens = min(self.cap_tokens, int(self.tokens_S1[-1]))
        densest_N: FloatArray = np.interp(microbatches_N * cap_tokens, self.tokens_S1, self.cost_S1)
        return densest_N

    @cached_property
    def most_in_one_S(self) -> FloatArray:
        """What a microbatch holds at most, for each sample that can be its longest; descending.

        That is the sample's cost, and the tokens left under the cap at the cost per token of the longest other sample
        that fits in there. No two microbatches have one longest sample, so n of them hold no more than the first n of
        these.
        """
        room_S = self.cap_tokens - self.capped_S
        fits_from_S = np.searchsorted(-self.capped_S, -room_S, side="left")
        next_S = np.maximum(fits_from_S, np.arange(1, self.count + 1))
        per_token_S1 = np.append(self.costs_S / self.capped_S, 0.0)
        beside_S = np.minimum(room_S * per_token_S1[next_S], self.cost - self.cost_S1[next_S])
        descending_S: FloatArray = np.sort(self.costs_S + beside_S)[::-1]
        return descending_S

    @cached_property
    def most_held_S(self) -> FloatArray:
        """Cost that 1, 2, ... microbatches hold at most."""
        return np.minimum(self.densest_N(np.arange(1, self.count + 1)), np.cumsum(self.most_in_one_S))

    def fewest_to_hold_N(self, cost_N: FloatArray) -> IntArray:
        """Microbatches that are needed at least for any samples that cost so much, at least 1."""
        return 1 + np.searchsorted(self.most_held_S * (1 + _ROUNDING), cost_N, side="left")
