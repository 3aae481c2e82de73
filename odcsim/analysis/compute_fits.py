"""Fits of compute: seconds of each kind of visit by squared tokens, tokens and a constant.

What a rank computes more slowly because the scenario says so (`rank_speeds`, `slowdowns`) is divided out: costs are
those of a rank of speed 1. Padding microbatches are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.analysis.fits import LinearFit, fit_nonnegative
from odcsim.analysis.observations import RunObservations
from odcsim.analysis.terms import FittedPart, term_of
from odcsim.analysis.told import told_stretch_NDM
from odcsim.arrays import FloatArray
from odcsim.costs.calibrated import VISIT_KINDS, ComputeCosts, VisitCost, visit_kind

__all__ = ["FittedCompute", "fit_compute"]

# Columns of the fits, in order. The constant is the first to be given up, tokens are never.
_TERMS = ("squared_tokens", "tokens", "constant")
_DROP_ORDER = (2, 0)
# A term that comes to less of the time need not be known well.
_SHARE_THAT_MATTERS = 0.05


@dataclass(frozen=True)
class FittedCompute:
    """Costs of all visits, what they were fitted to, and what is amiss."""

    costs: ComputeCosts
    parts: tuple[FittedPart, ...]
    warnings: tuple[str, ...]


def fit_compute(observed: Sequence[RunObservations], *, seed: int) -> FittedCompute:
    """Fit every kind of visit to all microbatches of some runs, which share their visits."""
    tokens_K = np.concatenate([seen.tokens_NDM[seen.holds_samples_NDM] for seen in observed])
    squared_K = np.concatenate([seen.squared_tokens_NDM[seen.holds_samples_NDM] for seen in observed])
    # What a rank runs in one minibatch shares its luck.
    minibatch_of_rank = np.cumsum([0, *(seen.counts_ND.size for seen in observed)])
    groups_K = np.concatenate(
        [
            np.broadcast_to(
                (first + np.arange(seen.counts_ND.size)).reshape(*seen.counts_ND.shape, 1), seen.tokens_NDM.shape
            )[seen.holds_samples_NDM]
            for first, seen in zip(minibatch_of_rank, observed, strict=False)
        ]
    )
    terms_KF = np.stack([squared_K, tokens_K, np.ones_like(tokens_K)], axis=1)
    kinds = np.array([visit_kind(visit) for visit in observed[0].visits])
    costs, parts, warnings = {}, [], []
    for kind in VISIT_KINDS:
        measured_K = np.concatenate([_measured_K(seen, kinds == kind) for seen in observed])
        fit = fit_nonnegative(terms_KF, measured_K, groups_K=groups_K, drop_order=_DROP_ORDER, seed=seed)
        costs[kind] = VisitCost(
            squared_tokens=term_of(fit, 0),
            tokens=term_of(fit, 1),
            constant=term_of(fit, 2),
            spread=fit.spread,
            observations=len(measured_K),
        )
        parts.append(FittedPart(kind, "tokens", tokens_K, fit.measured_K, fit.fitted_K, fit.spread))
        warnings += _unidentified(kind, fit, terms_KF)
    return FittedCompute(ComputeCosts(**costs), tuple(parts), tuple(warnings))


def _measured_K(seen: RunObservations, is_of_kind_V: FloatArray) -> FloatArray:
    """Time of one visit of a kind, in the mean over its blocks, of every microbatch with samples."""
    time_s_NDM = seen.compute_s_NDMV[..., is_of_kind_V].mean(axis=-1) / told_stretch_NDM(seen)
    measured_K: FloatArray = time_s_NDM[seen.holds_samples_NDM]
    return measured_K


def _unidentified(kind: str, fit: LinearFit, terms_KF: FloatArray) -> list[str]:
    """A sentence for each term that cannot be told from the others, or is not known well though it matters."""
    found = []
    for position, name in enumerate(_TERMS):
        value, low, high = (float(array[position]) for array in (fit.values_F, fit.low_F, fit.high_F))
        at_most_s = high * float(terms_KF[:, position].mean())
        if not fit.identified_F[position]:
            found.append(f"{kind}: {name} cannot be told from the other terms by this run's lengths, and is taken as 0")
        elif high - low > 2 * value and at_most_s > _SHARE_THAT_MATTERS * float(fit.fitted_K.mean()):
            found.append(f"{kind}: {name} is known to lie from {low:.3g} to {high:.3g} only")
    return found
