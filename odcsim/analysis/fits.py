"""Robust linear least squares with terms that cannot be negative, and how sure each term is.

Times spread in proportion to themselves, so errors are relative to what is fitted. A few observations that lie far off
(a machine that stood still) get less weight (Huber's loss), the bulk keeps its mean: a sum of predicted times must come
out right, which a median would not give for times that are skewed.

Intervals are 95% percentile bootstraps over groups of observations that share their luck: the visits of one rank in one
minibatch, mostly. Resampling few groups shows too little of the spread; intervals are widened by what Student's t asks
for so many groups and terms over the normal distribution. They tell how far another run of the same kind may lie, not
how wrong the model's form is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri, stdtrit

from odcsim.arrays import BoolArray, FloatArray, IntArray

__all__ = ["MAD_TO_DEVIATION", "LinearFit", "fit_nonnegative"]

_RESAMPLES = 400
# Of the 95% intervals.
_LOW = 0.025
_DRAWS_AT_ONCE = 1 << 20
_ROUNDS = 12
# Residuals beyond so many typical ones (median absolute deviation, as a standard deviation) lose weight.
_HUBER_WIDTH = 3.0
MAD_TO_DEVIATION = 1.4826
"""From the median absolute deviation of normal values to their standard deviation."""
# Below it, relative errors would chase the noise of the clock.
_SHORTEST_S = 2e-5
_LEAST_DISTINCT = 0.01


@dataclass(frozen=True)
class LinearFit:
    """time = sum of values x terms.

    Attributes:
        values_F: of F terms, none negative.
        low_F: of the 95% interval.
        high_F: likewise.
        identified_F: whether the observations tell the term from the others; one that they do not is 0.
        fitted_K: seconds of the K observations as fitted.
        measured_K: as measured.
        spread: standard deviation of the bulk's relative residuals.
    """

    values_F: FloatArray
    low_F: FloatArray
    high_F: FloatArray
    identified_F: BoolArray
    fitted_K: FloatArray
    measured_K: FloatArray
    spread: float


def fit_nonnegative(
    terms_KF: FloatArray,
    measured_K: FloatArray,
    *,
    groups_K: IntArray,
    drop_order: Sequence[int],
    least_distinct: float = _LEAST_DISTINCT,
    with_intervals: bool = True,
    seed: int = 0,
) -> LinearFit:
    """Fit K times by F terms.

    Args:
        terms_KF: the terms of each observation.
        measured_K: seconds.
        groups_K: observations of one group are resampled together.
        drop_order: which terms to give up first where the observations cannot tell all of them apart.
        least_distinct: smallest singular value of the terms, each scaled to length 1, at which they count as told
            apart.
        with_intervals: whether anybody will look at them; without, they hold the value alone.
        seed: of the resampling.
    """
    terms = terms_KF.shape[1]
    assert len(measured_K) == len(terms_KF) > 0, "nothing to fit"
    scales_F = np.maximum(np.abs(terms_KF).max(axis=0), np.finfo(float).tiny)
    kept = _separable(terms_KF / scales_F, drop_order, least_distinct)
    scaled_KF = (terms_KF / scales_F)[:, kept]
    weights_K = _weights(scaled_KF, measured_K)
    values = _solve(scaled_KF, measured_K, weights_K)
    low = high = values
    if with_intervals:
        draws = _bootstrap(scaled_KF, measured_K, weights_K, groups_K, seed=seed)
        wider = _widening(len(np.unique(groups_K)), len(kept))
        low, high = values + wider * (np.quantile(draws, [_LOW, 1 - _LOW], axis=0) - values)
        low = np.maximum(low, 0.0)

    def spread_out(found: FloatArray) -> FloatArray:
        full_F = np.zeros(terms)
        full_F[kept] = found / scales_F[kept]
        return full_F

    values_F = spread_out(values)
    fitted_K = terms_KF @ values_F
    residuals_K = (measured_K - fitted_K) / np.maximum(fitted_K, _SHORTEST_S)
    identified_F = np.zeros(terms, dtype=np.bool_)
    identified_F[kept] = True
    return LinearFit(
        values_F=values_F,
        low_F=np.minimum(spread_out(low), values_F),
        high_F=np.maximum(spread_out(high), values_F),
        identified_F=identified_F,
        fitted_K=fitted_K,
        measured_K=measured_K,
        spread=float(MAD_TO_DEVIATION * np.median(np.abs(residuals_K))),
    )


def _widening(groups: int, terms: int) -> float:
    """How much wider than their percentiles intervals of `terms` from so many groups should be."""
    freedom = max(groups - terms, 1)
    student = float(stdtrit(freedom, 1 - _LOW) / ndtri(1 - _LOW))
    return student * math.sqrt(groups / freedom)


def _separable(scaled_KF: FloatArray, drop_order: Sequence[int], least_distinct: float) -> list[int]:
    """Terms that can be told apart, after dropping as few as possible, those that come first in the order given.

    Where even that leaves some that cannot, all droppable ones go.
    """
    present = [term for term in range(scaled_KF.shape[1]) if np.abs(scaled_KF[:, term]).any()]
    droppable = [term for term in drop_order if term in present]
    kept = present
    for dropped in (some for count in range(len(droppable) + 1) for some in combinations(droppable, count)):
        kept = [term for term in present if term not in dropped]
        if len(kept) <= 1 or _is_well_posed(scaled_KF[:, kept], least_distinct):
            break
    return kept


def _is_well_posed(scaled_KF: FloatArray, least_distinct: float) -> bool:
    columns_KF = scaled_KF / np.linalg.norm(scaled_KF, axis=0)
    singular = np.linalg.svd(columns_KF, compute_uv=False)
    return len(columns_KF) >= columns_KF.shape[1] and float(singular[-1]) > least_distinct


def _solve(scaled_KF: FloatArray, measured_K: FloatArray, weights_K: FloatArray) -> FloatArray:
    values_F: FloatArray = nnls(scaled_KF * weights_K[:, None], measured_K * weights_K)[0]
    return values_F


def _weights(scaled_KF: FloatArray, measured_K: FloatArray) -> FloatArray:
    """Square roots of the weights: one over the fitted time, less for what lies far off; found by iterating."""
    start_F = _solve(scaled_KF, measured_K, np.ones_like(measured_K))
    fitted_K: FloatArray = np.maximum(scaled_KF @ start_F, _SHORTEST_S)
    weights_K: FloatArray = 1 / fitted_K
    for _ in range(_ROUNDS):
        values = _solve(scaled_KF, measured_K, weights_K)
        fitted_K = np.maximum(scaled_KF @ values, _SHORTEST_S)
        residuals_K = (measured_K - fitted_K) / fitted_K
        deviation = MAD_TO_DEVIATION * float(np.median(np.abs(residuals_K)))
        far_K = np.maximum(np.abs(residuals_K) / max(_HUBER_WIDTH * deviation, 1e-9), 1.0)
        updated_K = 1 / (fitted_K * np.sqrt(far_K))
        if np.allclose(updated_K, weights_K, rtol=1e-4):
            break
        weights_K = updated_K
    return weights_K


def _bootstrap(
    scaled_KF: FloatArray, measured_K: FloatArray, weights_K: FloatArray, groups_K: IntArray, *, seed: int
) -> FloatArray:
    """Values of fits to resampled groups, shape (resamples, F)."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0xCA1])))
    _, group_of_K = np.unique(groups_K, return_inverse=True)
    groups = int(group_of_K.max()) + 1
    # Each group comes down to its normal equations: a resample adds up those that it drew.
    rows_KF = scaled_KF * weights_K[:, None]
    targets_K = measured_K * weights_K
    terms = scaled_KF.shape[1]
    normal_GFF, right_GF = np.zeros((groups, terms, terms)), np.zeros((groups, terms))
    np.add.at(normal_GFF, group_of_K, rows_KF[:, :, None] * rows_KF[:, None, :])
    np.add.at(right_GF, group_of_K, rows_KF * targets_K[:, None])
    draws = np.empty((_RESAMPLES, terms))
    # Many resamples at a time, few enough to bound memory.
    at_once = max(1, _DRAWS_AT_ONCE // groups)
    for first in range(0, _RESAMPLES, at_once):
        block = slice(first, min(first + at_once, _RESAMPLES))
        resamples = block.stop - block.start
        drawn_BG = generator.integers(0, groups, (resamples, groups)) + groups * np.arange(resamples)[:, None]
        times_BG = np.bincount(drawn_BG.reshape(-1), minlength=resamples * groups).reshape(resamples, groups)
        normal_BFF = (times_BG @ normal_GFF.reshape(groups, -1)).reshape(resamples, terms, terms)
        draws[block] = _solve_normal(normal_BFF, times_BG @ right_GF)
    return draws


def _solve_normal(normal_BFF: FloatArray, right_BF: FloatArray) -> FloatArray:
    """Nonnegative least squares from B normal equations.

    The answer solves the equations of the terms that are not 0 in it: of all sets of terms whose own solution is not
    negative, the one that explains most.
    """
    values_BF, explained_B = np.zeros_like(right_BF), np.zeros(len(right_BF))
    terms = range(right_BF.shape[1])
    for chosen in (list(some) for size in terms for some in combinations(terms, size + 1)):
        square_BFF = normal_BFF[:, chosen][:, :, chosen]
        found_BF = (np.linalg.pinv(square_BFF, hermitian=True) @ right_BF[:, chosen, None])[..., 0]
        gain_B = (found_BF * right_BF[:, chosen]).sum(axis=1)
        better_B = (found_BF >= 0).all(axis=1) & (gain_B > explained_B)
        explained_B[better_B] = gain_B[better_B]
        values_BF[better_B] = 0.0
        values_BF[np.ix_(better_B, chosen)] = found_BF[better_B]
    return values_BF
