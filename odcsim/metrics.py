"""From what an engine returns to the figures of a result. docs/metrics.md defines each of them."""

from __future__ import annotations

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.engines.timeline import Outcome
from odcsim.results import TimeFractions

__all__ = ["RankTimeTotals", "paired_speedup"]

_BOOTSTRAP_RESAMPLES = 2000
_DRAWS_AT_ONCE = 1 << 20


class RankTimeTotals:
    """Rank-time of a case by category, summed up outcome by outcome. Seconds, over ranks and minibatches."""

    def __init__(self) -> None:
        self._minibatch_s: list[FloatArray] = []
        self._totals_s = np.zeros(5)
        self._rank_s = 0.0

    def add(self, outcome: Outcome, *, padding_s_ND: FloatArray) -> None:
        """Count an outcome.

        Args:
            outcome: N minibatches on D ranks.
            padding_s_ND: compute time of padding microbatches: it trains nothing, so it counts as `other`.
        """
        padding_s = float(padding_s_ND.sum())
        self._minibatch_s.append(outcome.minibatch_s_N)
        self._totals_s += [
            float(outcome.compute_s_ND.sum()) - padding_s,
            float(outcome.exposed_communication_s_ND.sum()),
            float(outcome.synchronization_s_ND.sum()),
            float(outcome.optimizer_s_ND.sum()),
            float(outcome.other_s_ND.sum()) + padding_s,
        ]
        self._rank_s += float(outcome.minibatch_s_N.sum()) * outcome.compute_s_ND.shape[1]

    @property
    def minibatch_s_N(self) -> FloatArray:
        """Times of all minibatches counted."""
        return np.concatenate(self._minibatch_s)

    def fractions(self) -> TimeFractions:
        """Shares of rank-time."""
        assert np.isclose(self._totals_s.sum(), self._rank_s, rtol=1e-6), "accounts do not add up to rank-time"
        compute, exposed, waiting, optimizer, other = (self._totals_s / self._totals_s.sum()).tolist()
        return TimeFractions(compute, exposed, waiting, optimizer, other)


def paired_speedup(
    baseline_s_N: FloatArray, case_s_N: FloatArray, *, seed: int
) -> tuple[float, tuple[float, float] | None]:
    """Mean baseline time over mean case time, and its 95% interval.

    The interval is a percentile bootstrap over minibatches, paired: a resampled minibatch brings both its times. It
    tells how far the speedup of another draw of as many minibatches may lie, not how wrong the cost model is.

    Args:
        baseline_s_N: seconds of N minibatches.
        case_s_N: seconds of the same minibatches.
        seed: of the resampling.

    Returns:
        The speedup, and (low, high); None where one minibatch alone leaves nothing to resample.
    """
    speedup = float(baseline_s_N.mean() / case_s_N.mean())
    minibatches = len(case_s_N)
    if minibatches < 2:
        return speedup, None
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0xB007])))
    ratios = np.empty(_BOOTSTRAP_RESAMPLES)
    # Many resamples at a time, few enough to bound memory.
    at_once = max(1, _DRAWS_AT_ONCE // minibatches)
    for first in range(0, _BOOTSTRAP_RESAMPLES, at_once):
        block = slice(first, min(first + at_once, _BOOTSTRAP_RESAMPLES))
        chosen_BN = generator.integers(0, minibatches, size=(block.stop - block.start, minibatches))
        ratios[block] = baseline_s_N[chosen_BN].sum(axis=1) / case_s_N[chosen_BN].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975]).tolist()
    return speedup, (low, high)
