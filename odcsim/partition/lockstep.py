"""Microbatches for ranks that meet after each of them: as many *steps* as chosen, a microbatch a rank in each.

A step takes as long as its costliest microbatch (its height), and a constant. What is to be small is the sum over
steps, so microbatches of one step should be alike, and a step only as high as its longest sample makes it. Samples go
longest first: the longest that is left sets a step's height, and the step's microbatches are filled up to it, each with
the longest samples that still fit, under the cap too. Heights above that minimum are needed where samples would be left
over. How high is tried: in proportion to what an even spread of the rest would need, and then step by step around the
best that was found.

Ties are broken by sample index, and the work is bounded whatever the costs are.

Words: a *bin* is a microbatch that has no rank yet; by descending cost, as many bins in a row as there are ranks make a
step, as no other grouping has a smaller sum of heights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.balance import balance
from odcsim.partition.bounds import count_fewest_microbatches
from odcsim.partition.longest_first import LongestFirst, Pool

__all__ = ["FilledSteps", "even_out_steps", "fill_steps", "sort_bins"]

# Heights of a step, in shares of what an even spread of the samples left needs, the most promising first: 0 is as low
# as its longest sample, 1e9 no limit but the cap.
_SHARES = (1.0, 0.0, 1e9, 1.1, 0.97, 1.03, 0.9, 1.3)
# Of more samples than these, only the shares that were the best of large minibatches: in few steps the first, in many
# the others.
_MANY_SAMPLES = 1 << 14
_SHARES_OF_MANY = (1.0, 1e9, 1.3)
# Changes of single heights that are tried around the best heights found.
_HEIGHT_CHANGES = (1.15, 0.87, 1.05, 0.95, 1.02, 0.98)
# Samples placed while heights are tried, at most: at first, but for three tries, and then around the best.
_PLACED_AT_FIRST = 65_536
_PLACED_AROUND_THE_BEST = 5_000
# One more step is tried until this many in a row have not paid.
_FRUITLESS_STEPS = 2
# Rounding must not keep a sample out of the step whose height it sets.
_SLACK = 1 + 1e-12
# Where samples of the last step pass over more full bins than these, it is given up.
_MOST_PASSED = 1 << 20

# The height of a step, from its number and the cost of all samples left.
_Height = Callable[[int, float], float]


@dataclass(frozen=True, eq=False)
class FilledSteps:
    """Bins by descending cost, and what they take.

    Attributes:
        bins: sample indices of each bin that holds something.
        time_s: the sum of heights and constants.
        heights: of each step.
    """

    bins: list[list[int]]
    time_s: float
    heights: list[float]


def sort_bins(bins: Sequence[Sequence[int]], costs_S: Sequence[float], *, ranks: int, constant: float) -> FilledSteps:
    """Bins in the order that makes the best steps.

    Args:
        bins: sample indices of each; empty ones are left out.
        costs_S: seconds that each sample adds to the bin that it is in.
        ranks: bins of a step.
        constant: seconds of a step, whatever it holds.
    """
    keyed = sorted((-sum([costs_S[sample] for sample in chosen]), sorted(chosen)) for chosen in bins if chosen)
    heights = [-cost for cost, _ in keyed[::ranks]]
    return FilledSteps([chosen for _, chosen in keyed], sum(heights) + constant * len(heights), heights)


def fill_steps(
    costs_S: Sequence[float],
    tokens_S: Sequence[int],
    *,
    ranks: int,
    cap_tokens: int,
    constant: float,
    most_placed: int | None = None,
) -> list[FilledSteps]:
    """The best arrangement found for each number of steps that was tried, the best of all first.

    Args:
        costs_S: seconds that each sample adds to the bin that it is in, not negative.
        tokens_S: length of each sample; one over the cap counts as one of cap tokens.
        ranks: bins of a step.
        cap_tokens: most tokens of a bin.
        constant: seconds of a step, whatever it holds.
        most_placed: no arrangement is tried any more once so many samples were placed; None: no limit.

    Returns:
        at least one, unless the limit was reached first.
    """
    assert len(costs_S) > 0, "no sample to fill steps with"
    filler = _Filler(costs_S, tokens_S, ranks=ranks, cap_tokens=cap_tokens, constant=constant, most_placed=most_placed)
    found: list[FilledSteps] = []
    fruitless = 0
    for steps in filler.steps_to_try():
        if found and steps * constant + filler.least_heights_s >= found[0].time_s:
            break
        if filler.is_tired:
            break
        best = filler.best_of(steps)
        if best is None:
            continue
        fruitless = fruitless + 1 if found and best.time_s >= found[0].time_s else 0
        found.append(best)
        found.sort(key=lambda filled: filled.time_s)
        if fruitless == _FRUITLESS_STEPS:
            break
    return found


def even_out_steps(
    bins: Sequence[Sequence[int]], costs_S: FloatArray, tokens_S: IntArray, *, ranks: int, cap_tokens: int
) -> list[list[int]]:
    """The same steps with the samples of each split anew, as evenly as can be, wherever that lowers its height.

    Args:
        bins: sample indices of each, as many of a step in a row as there are ranks.
        costs_S: seconds that each sample adds to the bin that it is in, not negative.
        tokens_S: length of each sample; one over the cap counts as one of cap tokens.
        ranks: bins of a step.
        cap_tokens: most tokens of a bin.
    """
    evened: list[list[int]] = []
    for start in range(0, len(bins), ranks):
        step = [list(chosen) for chosen in bins[start : start + ranks]]
        samples = [sample for chosen in step for sample in chosen]
        parts = balance(
            costs_S[samples],
            parts=ranks,
            tokens_S=np.minimum(tokens_S[samples], cap_tokens),
            cap_tokens=cap_tokens,
        )
        split = step if parts is None else [[samples[place] for place in part] for part in parts]
        evened += min(step, split, key=lambda chosen: max(float(costs_S[samples].sum()) for samples in chosen))
    return evened


class _Filler:
    """Fills steps with one minibatch's samples, again and again."""

    def __init__(
        self,
        costs_S: Sequence[float],
        tokens_S: Sequence[int],
        *,
        ranks: int,
        cap_tokens: int,
        constant: float,
        most_placed: int | None,
    ) -> None:
        self._costs_S, self._ranks, self._cap_tokens, self._constant = costs_S, ranks, cap_tokens, constant
        self._tokens_S = [min(tokens, cap_tokens) for tokens in tokens_S]
        self._samples = LongestFirst(range(len(costs_S)), costs_S, self._tokens_S)
        self.least_heights_s = max(sum(costs_S) / ranks, max(costs_S, default=0.0))
        self._placed, self._most_placed = 0, most_placed

    @property
    def is_tired(self) -> bool:
        """Whether as many samples were placed as are to be."""
        return self._most_placed is not None and self._placed >= self._most_placed

    def steps_to_try(self) -> Iterator[int]:
        """Numbers of steps, from the fewest that could do to one for each row of samples."""
        fewest = -(-count_fewest_microbatches(self._tokens_S, cap_tokens=self._cap_tokens) // self._ranks)
        return iter(range(fewest, -(-len(self._costs_S) // self._ranks) + 1))

    def best_of(self, steps: int) -> FilledSteps | None:
        """The best arrangement found in at most so many steps."""
        if steps == 1:
            parts = balance(self._costs_S, parts=self._ranks, tokens_S=self._tokens_S, cap_tokens=self._cap_tokens)
            return None if parts is None else self._sorted(parts)
        best: FilledSteps | None = None
        samples = len(self._costs_S)
        tries = _PLACED_AROUND_THE_BEST // samples

        def attempt(height: _Height) -> bool:
            nonlocal best
            bins = self._fill(steps, height)
            if bins is None:
                return False
            filled = self._sorted(bins)
            if best is not None and filled.time_s >= best.time_s:
                return False
            best = filled
            return True

        for share in _SHARES_OF_MANY if samples > _MANY_SAMPLES else _SHARES[: max(_PLACED_AT_FIRST // samples, 3)]:
            if not self.is_tired:
                attempt(self._in_proportion(share, steps))
        improved = best is not None
        while improved and tries > 0:
            assert best is not None
            improved = False
            for change in _HEIGHT_CHANGES:
                for changed in range(len(best.heights) - 1):
                    heights = [
                        height * change if step == changed else height for step, height in enumerate(best.heights)
                    ]
                    tries -= 1
                    if tries >= 0 and attempt(_as_given(heights)):
                        improved = True
        return best

    def _sorted(self, bins: Sequence[Sequence[int]]) -> FilledSteps:
        return sort_bins(bins, self._costs_S, ranks=self._ranks, constant=self._constant)

    def _in_proportion(self, share: float, steps: int) -> _Height:
        """Heights as a share of what an even spread of the samples left needs."""
        return lambda step, left_s: share * left_s / (self._ranks * (steps - step))

    def _fill(self, steps: int, height: _Height) -> list[list[int]] | None:
        """Bins for all samples; None where the last step cannot hold what is left.

        Args:
            steps: how many, at most.
            height: for a step and the cost of all samples left, its height, if their longest is not higher.
        """
        self._placed += len(self._costs_S)
        pool = Pool(self._samples)
        bins: list[list[int]] = []
        for step in range(steps - 1):
            highest_s = pool.highest_cost
            if highest_s is None:
                return bins
            limit_s = max(height(step, pool.cost), highest_s) * _SLACK
            bins += [pool.fill(limit_s, self._cap_tokens) for _ in range(self._ranks)]
        spread = self._spread(pool.rest())
        return None if spread is None else bins + spread

    def _spread(self, samples: Sequence[int]) -> list[list[int]] | None:
        """Samples over the bins of one step, each into the one of least cost that has room; None where none has."""
        bins: list[list[int]] = [[] for _ in range(self._ranks)]
        heap = [(0.0, number, self._cap_tokens) for number in range(self._ranks)]
        heapify(heap)
        passed = 0
        for sample in samples:
            tokens, full = self._tokens_S[sample], []
            while heap and heap[0][2] < tokens:
                full.append(heappop(heap))
            passed += len(full)
            if not heap or passed > _MOST_PASSED:
                return None
            load_s, number, room_tokens = heappop(heap)
            bins[number].append(sample)
            for entry in ((load_s + self._costs_S[sample], number, room_tokens - tokens), *full):
                heappush(heap, entry)
        return bins


def _as_given(heights: Sequence[float]) -> _Height:
    return lambda step, _: heights[step] if step < len(heights) else 0.0
