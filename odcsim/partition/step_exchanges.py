"""Exchanges between bins that lower the heights of steps.

Only the costliest bin of a step determines its height. It gives one of its samples to another bin, for one of less cost
or for nothing, wherever that lowers the sum of heights most: in its own step down to the second-costliest bin, in
others as far as what lies below their heights can be filled. Where no exchange gains, the samples of the costliest bin
and of one other may be divided in every way, if they are few. After each change bins are put into steps anew.

Bins may have owners (ranks that their samples must not leave): then samples go to bins of the same owner only, and each
owner has one bin in every step.

Invariants: the sum of heights never rises, and sinks by a noticeable share with each exchange; no bin breaks the cap;
the work is bounded by a budget; ties are broken by bin and sample.

Legend: S samples, B bins, K steps, D bins of a step; G samples that may be given, T what may be taken: a sample, or
nothing from a bin; C ways to divide, U samples divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from odcsim.arrays import BoolArray, FloatArray, IntArray
from odcsim.partition.homes import homes_of, items_of_parts

__all__ = ["lower_heights"]

# A gain below this share of the sum of heights is far below what a cost model can tell apart.
_SMALLEST_GAIN = 1e-6
# Two bins of more samples than these, together, have too many divisions to try them all.
_MOST_DIVIDED = 9
# What preparing one costs, in exchanges looked at.
_WORK_OF_A_DIVISION = 1000
# Bins that a step's costliest one is divided with, at most.
_MOST_OTHERS = 4096

# The bins that samples are moved to.
_Moves = dict[int, int]


def lower_heights(
    bins: Sequence[Sequence[int]],
    costs_S: FloatArray,
    tokens_S: IntArray,
    *,
    ranks: int,
    cap_tokens: int,
    budget: int,
    divides: bool = False,
    owners: Sequence[int] | None = None,
) -> list[list[int]]:
    """The same bins after exchanges of samples that lower the sum of heights.

    Args:
        bins: sample indices of each.
        costs_S: seconds that each sample adds to the bin that it is in, not negative.
        tokens_S: length of each sample; one over the cap counts as one of cap tokens.
        ranks: bins of a step.
        cap_tokens: most tokens of a bin.
        budget: exchanges looked at, about: a million take some tens of milliseconds.
        divides: whether to divide two bins' samples in every way, too, where exchanges do not gain: slow.
        owners: the rank of each bin, all ranks having as many; None: a bin is for any rank.

    Returns:
        the bins in the order given, samples ascending; some may be empty.
    """
    missing = -len(bins) % ranks
    assert owners is None or not missing, f"{len(bins)} bins with owners for {ranks} ranks"
    state = _State.of([*bins, *([] for _ in range(missing))], costs_S, np.minimum(tokens_S, cap_tokens), cap_tokens)
    owner_B = None if owners is None else np.array(owners, dtype=np.int64)
    left = budget
    steps = _Steps.of(state.load_B, ranks=ranks, owner_B=owner_B)
    improved = len(bins) > 1
    while improved and left > 0:
        improved = False
        for neighbourhood in (_best_exchange, _best_division) if divides else (_best_exchange,):
            for step in range(len(state.load_B) // ranks):
                looked_at, moves = neighbourhood(state, steps, step, owner_B)
                left -= looked_at
                if moves:
                    improved = True
                    state.make(moves)
                    steps = _Steps.of(state.load_B, ranks=ranks, owner_B=owner_B)
                if left <= 0:
                    break
            if improved:
                break
    return items_of_parts(state.bin_S, parts=state.load_B.size)


@dataclass(frozen=True, eq=False)
class _State:
    """Which bin each sample is in, and what bins hold.

    Samples are followed by one nothing a bin, of no cost and no tokens, which stands for taking nothing from it.
    """

    cap_tokens: int
    cost_T: FloatArray
    tokens_T: IntArray
    bin_T: IntArray
    samples: int
    load_B: FloatArray
    tokens_B: IntArray

    @classmethod
    def of(cls, bins: Sequence[Sequence[int]], costs_S: FloatArray, tokens_S: IntArray, cap_tokens: int) -> _State:
        bin_S = homes_of(bins, items=costs_S.size)
        return cls(
            cap_tokens=cap_tokens,
            cost_T=np.concatenate([costs_S, np.zeros(len(bins))]),
            tokens_T=np.concatenate([tokens_S, np.zeros(len(bins), dtype=np.int64)]),
            bin_T=np.concatenate([bin_S, np.arange(len(bins))]),
            samples=costs_S.size,
            load_B=np.bincount(bin_S, weights=costs_S, minlength=len(bins)).astype(np.float64),
            tokens_B=np.bincount(bin_S, weights=tokens_S, minlength=len(bins)).astype(np.int64),
        )

    @property
    def bin_S(self) -> IntArray:
        return self.bin_T[: self.samples]

    def make(self, moves: _Moves) -> None:
        """Put samples into other bins."""
        for sample, number in moves.items():
            for changed, sign in ((self.bin_T[sample], -1), (number, 1)):
                self.load_B[changed] += sign * self.cost_T[sample]
                self.tokens_B[changed] += sign * self.tokens_T[sample]
            self.bin_T[sample] = number


@dataclass(frozen=True, eq=False)
class _Steps:
    """Bins put into steps, and the three highest of each.

    Attributes:
        bin_KD: bins of each step, by descending cost.
        load_K3: cost of its three costliest bins; 0 for those that it does not have.
        step_B: the step of each bin.
        rest_B: the highest of a bin's step without it.
    """

    bin_KD: IntArray
    load_K3: FloatArray
    step_B: IntArray
    rest_B: FloatArray

    @classmethod
    def of(cls, load_B: FloatArray, *, ranks: int, owner_B: IntArray | None) -> _Steps:
        """The steps of least heights."""
        by_load = np.argsort(-load_B, kind="stable")
        if owner_B is None:
            bin_KD = by_load.reshape(-1, ranks)
        else:
            # Each owner's costliest bins make a step, and so on: of all orders within owners the best.
            of_owners = by_load[np.argsort(owner_B[by_load], kind="stable")].reshape(ranks, -1).T
            bin_KD = np.take_along_axis(of_owners, np.argsort(-load_B[of_owners], axis=1, kind="stable"), axis=1)
        load_K3 = np.zeros((len(bin_KD), 3))
        load_K3[:, :ranks] = load_B[bin_KD[:, :3]]
        step_B = np.empty(load_B.size, dtype=np.int64)
        step_B[bin_KD] = np.arange(len(bin_KD))[:, None]
        rest_B = load_K3[step_B, 0]
        rest_B[bin_KD[:, 0]] = load_K3[:, 1]
        return cls(bin_KD, load_K3, step_B, rest_B)

    @cached_property
    def smallest_gain_s(self) -> float:
        """What an exchange is to lower the sum of heights by, at least."""
        return _SMALLEST_GAIN * float(self.load_K3[:, 0].sum())

    def gain_s(self, step: int, own: FloatArray, other: FloatArray, bin_T: IntArray) -> FloatArray:
        """How much lower the sum of heights is once a step's costliest bin costs `own`, and bins `bin_T` `other`."""
        height, second, third = self.load_K3[step]
        # Within the step: the highest of the two bins and of what is left without both.
        left_T = np.where(bin_T == self.bin_KD[step, min(1, self.bin_KD.shape[1] - 1)], third, second)
        within = np.maximum(np.maximum(own, other), left_T)
        apart = np.maximum(own, second) + np.maximum(other, self.rest_B[bin_T]) - self.load_K3[self.step_B[bin_T], 0]
        gain_s: FloatArray = height - np.where(self.step_B[bin_T] == step, within, apart)
        return gain_s


def _best_exchange(state: _State, steps: _Steps, step: int, owner_B: IntArray | None) -> tuple[int, _Moves]:
    """How many exchanges of one sample of a step's costliest bin were looked at, and the best, if it gains enough."""
    high = steps.bin_KD[step, 0]
    height, second, _ = steps.load_K3[step]
    if height - second <= steps.smallest_gain_s:
        return 0, {}
    taken_T = np.flatnonzero(_open_T(state.bin_T, high, owner_B))
    if not taken_T.size:
        return 0, {}
    given_G, bin_T = np.flatnonzero(state.bin_S == high), state.bin_T[taken_T]
    cost_GT = state.cost_T[given_G][:, None] - state.cost_T[taken_T]
    tokens_GT = state.tokens_T[given_G][:, None] - state.tokens_T[taken_T]
    fits_GT = (state.tokens_B[bin_T] + tokens_GT <= state.cap_tokens) & (
        state.tokens_B[high] - tokens_GT <= state.cap_tokens
    )
    gain_GT = steps.gain_s(step, height - cost_GT, state.load_B[bin_T] + cost_GT, bin_T)
    gain_GT = np.where(fits_GT & (cost_GT > 0), gain_GT, -np.inf)
    place = int(gain_GT.argmax())
    if gain_GT.flat[place] <= steps.smallest_gain_s:
        return gain_GT.size, {}
    row, column = divmod(place, taken_T.size)
    moves = {int(given_G[row]): int(bin_T[column])}
    if taken_T[column] < state.samples:
        moves[int(taken_T[column])] = int(high)
    return gain_GT.size, moves


def _best_division(state: _State, steps: _Steps, step: int, owner_B: IntArray | None) -> tuple[int, _Moves]:
    """How much work it was to divide the samples of a step's costliest bin and any other's anew, and the best way."""
    high = steps.bin_KD[step, 0]
    height, second, _ = steps.load_K3[step]
    best_gain_s, best, looked_at = steps.smallest_gain_s, {}, 0
    if height - second <= best_gain_s:
        return 0, {}
    size_B = np.bincount(state.bin_S, minlength=state.load_B.size)
    open_B = _open_T(np.arange(state.load_B.size), high, owner_B)
    few_B = size_B + size_B[high] <= _MOST_DIVIDED
    for number in np.flatnonzero(open_B & few_B & (size_B > 0))[:_MOST_OTHERS]:
        pool = np.flatnonzero((state.bin_S == high) | (state.bin_S == number))
        chosen_CU = _subsets_CU(pool.size)
        looked_at += len(chosen_CU) + _WORK_OF_A_DIVISION
        own_C, own_tokens_C = chosen_CU @ state.cost_T[pool], chosen_CU @ state.tokens_T[pool]
        other_C, other_tokens_C = state.cost_T[pool].sum() - own_C, state.tokens_T[pool].sum() - own_tokens_C
        gain_C = steps.gain_s(step, own_C, other_C, np.array([number]))
        gain_C[np.maximum(own_tokens_C, other_tokens_C) > state.cap_tokens] = -np.inf
        place = int(gain_C.argmax())
        if gain_C[place] > best_gain_s:
            best_gain_s = float(gain_C[place])
            homes_U = np.where(chosen_CU[place] > 0, high, number)
            best = {int(sample): int(home) for sample, home in zip(pool, homes_U, strict=True)}
    return looked_at, best


def _open_T(bin_T: IntArray, high: int, owner_B: IntArray | None) -> BoolArray:
    """Which bins a step's costliest one may exchange with."""
    open_T: BoolArray = bin_T != high
    return open_T if owner_B is None else open_T & (owner_B[bin_T] == owner_B[high])


@cache
def _subsets_CU(samples: int) -> FloatArray:
    """Which of so many samples each of their subsets holds, as ones and zeros."""
    subsets_CU: FloatArray = (np.arange(1 << samples)[:, None] >> np.arange(samples) & 1).astype(np.float64)
    return subsets_CU
