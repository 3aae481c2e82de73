"""Exchanges between ranks that shorten the busiest one, when every microbatch costs a constant of its own.

A rank's time is (the cost of what it runs + constant x its microbatches) / its speed. What is exchanged are *units*:
samples, or groups of them that stay together. How many microbatches a rank needs under the cap is first guessed from
below, for very many exchanges at once, and counted by packing (`odcsim.partition.fewest`) for the most promising ones.

Neighbourhoods, each where the one before finds nothing:
    one or two units of the busiest rank against at most one of another's;
    any division of its and another rank's units, where they are few;
    any division of its and two other ranks' units.

Invariants: the largest time never rises, and sinks by a noticeable share with each exchange; the work is bounded by a
budget whatever the costs are; ties are broken by unit.

Legend: U units, D ranks, C candidates; G ways to give units of the busiest rank, T ways to take one of another's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from typing import TypeVar

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.fewest import FewestPacker
from odcsim.partition.homes import homes_of

__all__ = ["RankCosts", "Units", "lower_busiest"]

_Values = TypeVar("_Values", FloatArray, IntArray)

# A gain below this share of the largest time is far below what a cost model can tell apart.
_SMALLEST_GAIN = 1e-6
# Exchanges of a neighbourhood whose microbatches are counted, the best by the guess first.
_MOST_COUNTED = 12
# Two units are given at once only where that makes no more candidates than these.
_MOST_PAIRED = 100_000
# Index of no unit, where arrays of units end in one of no cost.
_NOTHING = -1

# Ranks whose units have more divisions than these are not tried in all of them: two ranks of more than twelve units,
# three of more than eight.
_MOST_DIVISIONS = 3**8
# Divisions of three ranks are tried with this many of the idlest.
_MOST_IN_THREES = 8


@dataclass(frozen=True, eq=False)
class Units:
    """What goes to a rank as a whole.

    Attributes:
        samples: sample indices of each unit.
        costs_U: seconds that each adds to a microbatch, or microbatches.
        tokens_U: tokens; a sample over the cap counts as one of cap tokens.
        large_U: samples of more than half the cap, of which no two share a microbatch.
    """

    samples: Sequence[Sequence[int]]
    costs_U: FloatArray
    tokens_U: IntArray
    large_U: IntArray

    @classmethod
    def of(
        cls, samples: Sequence[Sequence[int]], *, costs_S: FloatArray, tokens_S: Sequence[int], cap_tokens: int
    ) -> Units:
        """Units of these samples; costs and tokens are those of all samples of the minibatch."""
        tokens = [[min(tokens_S[sample], cap_tokens) for sample in unit] for unit in samples]
        return cls(
            samples=samples,
            costs_U=np.array([sum(costs_S[sample] for sample in unit) for unit in samples], dtype=np.float64),
            tokens_U=np.array([sum(unit) for unit in tokens], dtype=np.int64),
            large_U=np.array([sum(2 * length > cap_tokens for length in unit) for unit in tokens], dtype=np.int64),
        )

    def samples_of(self, units: Sequence[int] | IntArray) -> list[int]:
        """The samples of several units."""
        return list(chain.from_iterable(self.samples[unit] for unit in units))


@dataclass(frozen=True, eq=False)
class RankCosts:
    """What ranks pay: the times of a division of units.

    Attributes:
        units: what is divided.
        packer: counts microbatches.
        cap_tokens: most tokens of a microbatch.
        constant: seconds of a microbatch, whatever it holds.
        speeds_D: speed of each rank.
    """

    units: Units
    packer: FewestPacker
    cap_tokens: int
    constant: float
    speeds_D: FloatArray

    def time_s(self, rank: int, units: Sequence[int] | IntArray) -> float:
        """Seconds of a rank with these units."""
        cost_s = float(self.units.costs_U[np.asarray(units, dtype=np.int64)].sum())
        return (cost_s + self.constant * self.count(units)) / float(self.speeds_D[rank])

    def count(self, units: Sequence[int] | IntArray) -> int:
        """Microbatches that these units need."""
        return len(self.packer.pack(self.units.samples_of(units)))

    def busiest_s(self, parts: Sequence[Sequence[int]]) -> float:
        """Seconds of the busiest rank; `parts` are the units of each."""
        return max(self.time_s(rank, units) for rank, units in enumerate(parts))

    def guessed_s(self, rank: IntArray | int, cost: FloatArray, tokens: IntArray, large: IntArray) -> FloatArray:
        """Seconds of ranks at least, from what they hold in sum; arrays of one shape."""
        fewest = np.maximum(-(-tokens // self.cap_tokens), large)
        guessed: FloatArray = (cost + self.constant * fewest) / self.speeds_D[rank]
        return guessed


# The units of the ranks that an exchange changes, after it.
_Change = dict[int, list[int]]


def lower_busiest(
    parts: Sequence[Sequence[int]],
    costs: RankCosts,
    *,
    budget: int,
    good_enough_s: float = 0.0,
    most_partners: int | None = None,
) -> list[list[int]]:
    """The same division of units after exchanges that shorten the busiest rank.

    Args:
        parts: the units of each rank.
        costs: what they cost there.
        budget: candidates looked at, about: a million take some tens of milliseconds. A neighbourhood of more than
            these is left out.
        good_enough_s: where the busiest rank is down to this, nothing more is tried.
        most_partners: ranks that it exchanges with, the idlest; None: all.

    Returns:
        the units of each rank, ascending.
    """
    found = [sorted(part) for part in parts]
    times = [costs.time_s(rank, units) for rank, units in enumerate(found)]
    sums = _Sums.of(found, costs)
    left = budget
    while len(found) > 1 and left > 0:
        busiest = max(range(len(found)), key=times.__getitem__)
        wanted_s = times[busiest] * (1 - _SMALLEST_GAIN)
        if times[busiest] <= good_enough_s:
            break
        change = None
        for candidates in _neighbourhoods(found, times, busiest, sums, most_partners=most_partners):
            if candidates.size > budget:
                continue
            left -= candidates.size
            change = candidates.best(wanted_s)
            if change is not None or left <= 0:
                break
        if change is None:
            break
        for rank, units in change.items():
            found[rank] = sorted(units)
            times[rank] = costs.time_s(rank, units)
            sums.change(rank, found[rank])
    return found


@dataclass(frozen=True, eq=False)
class _Sums:
    """What ranks hold in sum."""

    costs: RankCosts
    rank_U: IntArray
    cost_D: FloatArray
    tokens_D: IntArray
    large_D: IntArray

    @classmethod
    def of(cls, parts: Sequence[Sequence[int]], costs: RankCosts) -> _Sums:
        units, ranks = costs.units, len(parts)
        rank_U = homes_of(parts, items=len(units.samples))
        return cls(
            costs=costs,
            rank_U=rank_U,
            cost_D=np.bincount(rank_U, weights=units.costs_U, minlength=ranks).astype(np.float64),
            tokens_D=np.bincount(rank_U, weights=units.tokens_U, minlength=ranks).astype(np.int64),
            large_D=np.bincount(rank_U, weights=units.large_U, minlength=ranks).astype(np.int64),
        )

    def change(self, rank: int, held: Sequence[int]) -> None:
        """Let a rank hold other units; whoever is to hold those that it loses is changed, too."""
        units = self.costs.units
        chosen = np.array(held, dtype=np.int64)
        self.rank_U[chosen] = rank
        for sum_D, of_units in (
            (self.cost_D, units.costs_U),
            (self.tokens_D, units.tokens_U),
            (self.large_D, units.large_U),
        ):
            sum_D[rank] = of_units[chosen].sum()


class _Exchanges:
    """Some units of the busiest rank against one of another's, or none."""

    def __init__(self, parts: Sequence[Sequence[int]], busiest: int, partners: Sequence[int], sums: _Sums) -> None:
        self._parts, self._busiest, self._sums = parts, busiest, sums
        ranks = np.sort(partners)
        if ranks.size < len(parts) - 1:
            others = np.sort(np.fromiter(chain.from_iterable(parts[rank] for rank in partners), dtype=np.int64))
        else:
            others = np.flatnonzero(sums.rank_U != busiest)
        self._taken_T = np.concatenate([others, np.full(ranks.size, _NOTHING)])
        self._rank_T = np.concatenate([sums.rank_U[others], ranks])
        mine = np.array(parts[busiest], dtype=np.int64)
        given = [np.stack([mine, np.full(mine.size, _NOTHING)], axis=1)]
        pairs = mine.size * (mine.size - 1) // 2
        if (mine.size + pairs) * self._taken_T.size <= _MOST_PAIRED:
            first, second = np.triu_indices(mine.size, 1)
            given.append(np.stack([mine[first], mine[second]], axis=1))
        self._given_G2 = np.concatenate(given)

    @property
    def size(self) -> int:
        """Number of candidates."""
        return len(self._given_G2) * self._taken_T.size

    def best(self, wanted_s: float) -> _Change | None:
        """The first exchange, by the guess, after which both ranks take less than `wanted_s`."""
        sums, units, busiest, rank_T = self._sums, self._sums.costs.units, self._busiest, self._rank_T
        cost_GT = self._moved_GT(units.costs_U)
        tokens_GT, large_GT = self._moved_GT(units.tokens_U), self._moved_GT(units.large_U)
        own_GT = sums.costs.guessed_s(
            busiest,
            sums.cost_D[busiest] - cost_GT,
            sums.tokens_D[busiest] - tokens_GT,
            sums.large_D[busiest] - large_GT,
        )
        other_GT = sums.costs.guessed_s(
            rank_T, sums.cost_D[rank_T] + cost_GT, sums.tokens_D[rank_T] + tokens_GT, sums.large_D[rank_T] + large_GT
        )
        for place in _most_promising(np.maximum(own_GT, other_GT).reshape(-1), below=wanted_s):
            row, column = divmod(place, self._taken_T.size)
            given = {int(unit) for unit in self._given_G2[row] if unit != _NOTHING}
            taken = {int(self._taken_T[column])} - {_NOTHING}
            other = int(rank_T[column])
            change = {
                busiest: [*(unit for unit in self._parts[busiest] if unit not in given), *taken],
                other: [*(unit for unit in self._parts[other] if unit not in taken), *given],
            }
            if _takes_less(change, sums.costs, wanted_s):
                return change
        return None

    def _moved_GT(self, values_U: _Values) -> _Values:
        """What leaves the busiest rank, less what comes to it."""
        padded = np.append(values_U, np.zeros(1, dtype=values_U.dtype))  # so that `_NOTHING` is worth nothing
        moved_GT: _Values = padded[self._given_G2].sum(axis=1)[:, None] - padded[self._taken_T]
        return moved_GT


class _Divisions:
    """Every division of several ranks' units between them."""

    def __init__(self, parts: Sequence[Sequence[int]], ranks: tuple[int, ...], sums: _Sums) -> None:
        self._ranks, self._sums = ranks, sums
        self._pool = [unit for rank in ranks for unit in parts[rank]]

    @property
    def size(self) -> int:
        """Number of candidates."""
        return int(len(self._ranks) ** len(self._pool))

    def best(self, wanted_s: float) -> _Change | None:
        """The first division, by the guess, with which all of the ranks take less than `wanted_s`."""
        costs, pool = self._sums.costs, np.array(self._pool, dtype=np.int64)
        values = (costs.units.costs_U, costs.units.tokens_U, costs.units.large_U)
        values_U3 = np.stack([of_units[pool].astype(np.float64) for of_units in values], axis=1)
        home_CU = _homes_CU(len(self._ranks), pool.size)
        guessed_C = np.zeros(len(home_CU))
        for place, rank in enumerate(self._ranks):
            cost_C, tokens_C, large_C = ((home_CU == place).astype(np.float64) @ values_U3).T
            guessed_s = costs.guessed_s(rank, cost_C, tokens_C.astype(np.int64), large_C.astype(np.int64))
            np.maximum(guessed_C, guessed_s, out=guessed_C)
        for candidate in _most_promising(guessed_C, below=wanted_s):
            homes_U = home_CU[candidate]
            change = {rank: pool[homes_U == place].tolist() for place, rank in enumerate(self._ranks)}
            if _takes_less(change, costs, wanted_s):
                return change
        return None


def _neighbourhoods(
    parts: Sequence[Sequence[int]], times: Sequence[float], busiest: int, sums: _Sums, *, most_partners: int | None
) -> Iterator[_Exchanges | _Divisions]:
    idlest_first = [rank for rank in sorted(range(len(parts)), key=times.__getitem__) if rank != busiest][
        :most_partners
    ]
    yield _Exchanges(parts, busiest, idlest_first, sums)
    pairs = combinations(idlest_first[:_MOST_IN_THREES], 2)
    for others in chain(((rank,) for rank in idlest_first), pairs):
        units = sum(len(parts[rank]) for rank in (busiest, *others))
        if (1 + len(others)) ** units <= _MOST_DIVISIONS:
            yield _Divisions(parts, (busiest, *others), sums)


def _takes_less(change: _Change, costs: RankCosts, wanted_s: float) -> bool:
    return all(costs.time_s(rank, units) < wanted_s for rank, units in change.items())


def _most_promising(guessed_C: FloatArray, *, below: float) -> list[int]:
    """The places of the lowest values, ascending; none that is not below."""
    places = np.flatnonzero(guessed_C < below)
    if places.size > _MOST_COUNTED:
        lowest = np.partition(guessed_C[places], _MOST_COUNTED - 1)[_MOST_COUNTED - 1]
        places = places[guessed_C[places] <= lowest]
    order = np.argsort(guessed_C[places], kind="stable")
    return [int(place) for place in places[order][:_MOST_COUNTED]]


@cache
def _homes_CU(ranks: int, units: int) -> IntArray:
    """Every way to put so many units on so many ranks: the place of the rank that each is on."""
    home_CU: IntArray = np.arange(ranks**units)[:, None] // ranks ** np.arange(units) % ranks
    return home_CU
