"""Endless streams of lengths: a data set shuffled epoch after epoch, independent draws, and mixtures of both.

A stream hands out *units*: groups of samples that belong together (the responses to one prompt), or single samples.

Invariants:
    a stream does not depend on how it is read: take(3) then take(5) give what take(8) gives;
    a shuffled data set hands out every group once an epoch, its rows in their order;
    everything follows from the seed sequence: recipes hold no random state.

Unit: tokens. Legend: U units, S samples, C components of a mixture, K epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.lengths.distributions import Distribution

__all__ = ["Independent", "Mixed", "Recipe", "Shuffled", "Stream", "Units"]


@dataclass(frozen=True, eq=False)
class Units:
    """A stretch of a stream: the lengths of its samples, and how many of them each unit holds.

    Attributes:
        lengths_S: tokens, unit after unit.
        sizes_U: samples in each unit, at least one; they add up to S.
    """

    lengths_S: IntArray
    sizes_U: IntArray


class Stream(Protocol):
    """An endless sequence of units that is read once, from its start."""

    def take(self, units: int) -> Units:
        """The next `units` units."""


class Recipe(Protocol):
    """What a stream is made of; any number of equal streams can be opened from it."""

    @property
    def group_size(self) -> int:
        """Samples of the largest unit."""

    @property
    def samples_per_unit(self) -> float:
        """Samples of a unit, on average."""

    def open(self, seeds: np.random.SeedSequence) -> Stream:
        """The stream that `seeds` fix."""


def _generator(seeds: np.random.SeedSequence) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seeds))


def _positions(starts_U: IntArray, sizes_U: IntArray) -> IntArray:
    """The indices starts_U[u], starts_U[u] + 1, ... of every unit u, one after the other."""
    before_U = np.cumsum(sizes_U) - sizes_U
    return np.repeat(starts_U - before_U, sizes_U) + np.arange(int(sizes_U.sum()), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Independent:
    """Draws that know nothing of each other; every sample is a unit."""

    distribution: Distribution

    @property
    def group_size(self) -> int:
        """One."""
        return 1

    @property
    def samples_per_unit(self) -> float:
        """One."""
        return 1.0

    def open(self, seeds: np.random.SeedSequence) -> Stream:
        """The stream that `seeds` fix."""
        return _IndependentStream(self.distribution, _generator(seeds))


class _IndependentStream:
    def __init__(self, distribution: Distribution, rng: np.random.Generator) -> None:
        self._distribution = distribution
        self._rng = rng

    def take(self, units: int) -> Units:
        return Units(self._distribution.draw(self._rng, units), np.ones(units, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Shuffled:
    """A data set whose groups are shuffled anew for every epoch.

    Attributes:
        lengths_S: tokens of each row.
        group_size: consecutive rows that stay together; the last group may be smaller.
    """

    lengths_S: IntArray
    group_size: int = 1

    @property
    def samples_per_unit(self) -> float:
        """Rows of a group, on average."""
        return self.lengths_S.size / -(-self.lengths_S.size // self.group_size)

    def open(self, seeds: np.random.SeedSequence) -> Stream:
        """The stream that `seeds` fix."""
        return _ShuffledStream(self.lengths_S, self.group_size, _generator(seeds))


class _ShuffledStream:
    def __init__(self, lengths_S: IntArray, group_size: int, rng: np.random.Generator) -> None:
        self._lengths_S = lengths_S
        self._starts_G = np.arange(0, lengths_S.size, group_size, dtype=np.int64)
        self._sizes_G = np.minimum(group_size, lengths_S.size - self._starts_G)
        self._rng = rng
        self._pending_U = np.empty(0, dtype=np.int64)

    def take(self, units: int) -> Units:
        groups = self._starts_G.size
        missing = units - self._pending_U.size
        if missing > 0:
            # Sorting random keys permutes every epoch at once, and row by row it reads the random numbers in the order
            # in which one epoch after the other would: a small data set costs no loop over its many epochs.
            keys_KG = self._rng.random((-(-missing // groups), groups))
            fresh_U = np.argsort(keys_KG, axis=1, kind="stable").reshape(-1)
            self._pending_U = np.concatenate([self._pending_U, fresh_U])
        chosen_U, self._pending_U = self._pending_U[:units], self._pending_U[units:]
        sizes_U = self._sizes_G[chosen_U]
        return Units(self._lengths_S[_positions(self._starts_G[chosen_U], sizes_U)], sizes_U)


@dataclass(frozen=True, eq=False)
class Mixed:
    """A mixture: each unit comes from a component picked by chance.

    Chances are weights divided by the component's samples per unit, so that a component's share of the *samples* is
    its weight, whether it comes in groups or one by one.

    Attributes:
        weights: of each component, positive.
        components: what they are made of.
    """

    weights: Sequence[float]
    components: Sequence[Recipe]

    @property
    def group_size(self) -> int:
        """Samples of the largest unit of any component."""
        return max(component.group_size for component in self.components)

    @property
    def samples_per_unit(self) -> float:
        """Samples of a unit, on average over the picks."""
        chances_C = self._chances_C()
        return float(chances_C @ np.array([component.samples_per_unit for component in self.components]))

    def open(self, seeds: np.random.SeedSequence) -> Stream:
        """The stream that `seeds` fix; picks and components have independent child seeds."""
        picking, *children = seeds.spawn(1 + len(self.components))
        streams = [component.open(child) for component, child in zip(self.components, children, strict=True)]
        return _MixedStream(np.cumsum(self._chances_C()), streams, _generator(picking))

    def _chances_C(self) -> FloatArray:
        weights_C = np.array(self.weights, dtype=np.float64)
        picks_C = weights_C / np.array([component.samples_per_unit for component in self.components])
        chances_C: FloatArray = picks_C / picks_C.sum()
        return chances_C


class _MixedStream:
    def __init__(self, cumulative_C: FloatArray, streams: Sequence[Stream], rng: np.random.Generator) -> None:
        self._cumulative_C = cumulative_C
        self._streams = streams
        self._rng = rng

    def take(self, units: int) -> Units:
        position_U = self._rng.random(units) * self._cumulative_C[-1]
        pick_U = np.searchsorted(self._cumulative_C, position_U, side="right")
        chosen = [np.flatnonzero(pick_U == component) for component in range(len(self._streams))]
        parts = [stream.take(where.size) for stream, where in zip(self._streams, chosen, strict=True)]
        sizes_U = np.empty(units, dtype=np.int64)
        for where, part in zip(chosen, parts, strict=True):
            sizes_U[where] = part.sizes_U
        starts_U = np.cumsum(sizes_U) - sizes_U
        lengths_S = np.empty(int(sizes_U.sum()), dtype=np.int64)
        for where, part in zip(chosen, parts, strict=True):
            lengths_S[_positions(starts_U[where], part.sizes_U)] = part.lengths_S
        return Units(lengths_S, sizes_U)
