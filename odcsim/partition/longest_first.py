"""Samples that are taken longest first: filling one bin after another with the longest samples that still fit.

Samples of equal cost and tokens are a *class*, known by its place, the costliest first. A class of which nothing is
left is skipped from then on, so that all bins together take hardly longer than the samples are many.

Ties are broken by sample index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

__all__ = ["LongestFirst", "Pool"]


class LongestFirst:
    """Samples by class, to be taken any number of times."""

    def __init__(self, samples: Iterable[int], costs_S: Sequence[float], tokens_S: Sequence[int]) -> None:
        """Args: some samples of a minibatch, and the cost and the tokens of every sample of it, neither negative."""
        self.samples = sorted(samples, key=lambda sample: (-costs_S[sample], -tokens_S[sample], sample))
        # Negative, so that they ascend. A class ends where the next one begins.
        self.negative_costs: list[float] = []
        self.negative_tokens: list[int] = []
        self.ends: list[int] = []
        for place, sample in enumerate(self.samples, start=1):
            negative_cost, negative_tokens = -costs_S[sample], -tokens_S[sample]
            if self.ends and negative_cost == self.negative_costs[-1] and negative_tokens == self.negative_tokens[-1]:
                self.ends[-1] = place
            else:
                self.negative_costs.append(negative_cost)
                self.negative_tokens.append(negative_tokens)
                self.ends.append(place)
        self.cost = sum(costs_S[sample] for sample in self.samples[::-1])


class Pool:
    """What is left of samples while bins are filled.

    Attributes:
        cost: of all that is left.
    """

    def __init__(self, samples: LongestFirst) -> None:
        self.cost = samples.cost
        self._of = samples
        self._starts = [0, *samples.ends[:-1]]  # of what is left of each class
        self._onward = list(range(len(samples.ends) + 1))  # from a class of which nothing is left to a later one

    @property
    def highest_cost(self) -> float | None:
        """That of the costliest sample; None where nothing is left."""
        place = self._left_from(0)
        return None if place == len(self._starts) else -self._of.negative_costs[place]

    def rest(self) -> list[int]:
        """What is left, the costliest first."""
        samples = self._of.samples
        return [sample for start, end in zip(self._starts, self._of.ends, strict=True) for sample in samples[start:end]]

    def fill(self, room: float, room_tokens: int, *, first_fits: bool = False) -> list[int]:
        """Take the samples of a bin: always the longest that fits, until none does.

        Args:
            room: the most that they cost.
            room_tokens: the most tokens of them.
            first_fits: whether the costliest sample is taken whatever it costs.
        """
        samples, ends, starts = self._of.samples, self._of.ends, self._starts
        negative_costs, negative_tokens = self._of.negative_costs, self._of.negative_tokens
        chosen: list[int] = []
        while True:
            if first_fits and not chosen:
                place = self._left_from(0)
            else:
                # Costs and tokens ascend together, the longest first.
                place = max(bisect_left(negative_costs, -room), bisect_left(negative_tokens, -room_tokens))
                place = self._left_from(place)
                while place < len(ends) and room_tokens + negative_tokens[place] < 0:
                    place = self._left_from(place + 1)  # Costs that do not rise with length leave tokens out of order.
            if place == len(ends):
                return chosen
            cost, tokens, start = -negative_costs[place], -negative_tokens[place], starts[place]
            while True:
                chosen.append(samples[start])
                start += 1
                room -= cost
                self.cost -= cost
                room_tokens -= tokens
                if start == ends[place] or cost > room or tokens > room_tokens:
                    break
            starts[place] = start
            if start == ends[place]:
                self._onward[place] = place + 1

    def _left_from(self, place: int) -> int:
        """The first class, from a place on, of which something is left."""
        onward = self._onward
        while onward[place] != place:
            onward[place] = place = onward[onward[place]]
        return place
