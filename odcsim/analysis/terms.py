"""From fits to the terms of a file of costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcsim.analysis.fits import MAD_TO_DEVIATION, LinearFit
from odcsim.arrays import FloatArray
from odcsim.costs.calibrated import Term
from odcsim.trace_format import RecordedRun

__all__ = ["FittedPart", "mean_term", "no_term", "ranks_per_node", "term_of"]

_RESAMPLES = 400


@dataclass(frozen=True)
class FittedPart:
    """One fit, for plots: what was measured, what was fitted, and against what.

    Attributes:
        name: of the part: "block_forward", "all-gather over gloo".
        axis: what `against_K` is: "tokens" or "bytes".
        against_K: of each observation.
        measured_s_K: as measured.
        fitted_s_K: as fitted.
        spread: relative standard deviation of the residuals' bulk.
    """

    name: str
    axis: str
    against_K: FloatArray
    measured_s_K: FloatArray
    fitted_s_K: FloatArray
    spread: float


def term_of(fit: LinearFit, position: int) -> Term:
    """One term of a fit."""
    return Term(
        value=float(fit.values_F[position]),
        low=float(fit.low_F[position]),
        high=float(fit.high_F[position]),
        identified=bool(fit.identified_F[position]),
    )


def no_term() -> Term:
    """What a run cannot tell."""
    return Term(value=0.0, low=0.0, high=0.0, identified=False)


def mean_term(measured_K: FloatArray, *, seed: int) -> Term:
    """A mean that single far-off values do not carry away, with its interval.

    Values beyond three typical distances from the median (median absolute deviation, as a standard deviation) count as
    that far off and no further.
    """
    middle = float(np.median(measured_K))
    reach = 3 * MAD_TO_DEVIATION * float(np.median(np.abs(measured_K - middle)))
    kept_K = np.clip(measured_K, middle - reach, middle + reach) if reach > 0 else measured_K
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0x3EA])))
    draws = kept_K[generator.integers(0, len(kept_K), (_RESAMPLES, len(kept_K)))].mean(axis=1)
    value = max(float(kept_K.mean()), 0.0)
    low, high = np.maximum(np.quantile(draws, [0.025, 0.975]), 0.0).tolist()
    return Term(value=value, low=min(low, value), high=max(high, value))


def ranks_per_node(run: RecordedRun) -> int:
    """G: ranks on the host of rank 0, if that divides the number of ranks."""
    hosts = run.info.hosts
    together = hosts.count(hosts[0])
    return together if run.info.world_size % together == 0 else run.info.world_size
