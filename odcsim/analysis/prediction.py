"""A recorded plan as the simulator sees it: the very microbatches, on the scenario's costs. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcsim.analysis.memory import LargestMicrobatches
from odcsim.analysis.observations import RunObservations
from odcsim.analysis.told import follows_speeds
from odcsim.arrays import FloatArray
from odcsim.engines import find_engine
from odcsim.memory_advice import peak_parts_bytes
from odcsim.metrics import RankTimeTotals
from odcsim.minibatches import draw_slowdowns
from odcsim.resolve import ResolvedCase, ResolvedScenario
from odcsim.results import TimeFractions
from odcsim.schedule import Overlap, Work

__all__ = ["PredictedRun", "predict"]


@dataclass(frozen=True)
class PredictedRun:
    """What the simulator says of a recorded plan.

    Attributes:
        minibatch_s_N: of each minibatch.
        fractions: shares of rank-time.
        peak_bytes: of the fullest rank; None where the costs say nothing of memory.
    """

    minibatch_s_N: FloatArray
    fractions: TimeFractions
    peak_bytes: float | None


def predict(
    resolved: ResolvedScenario, case: ResolvedCase, observed: RunObservations, *, overlap: Overlap
) -> PredictedRun:
    """Simulate the microbatches of a recorded run.

    Args:
        resolved: the scenario, with the transport of the run's collectives.
        case: of the scenario.
        observed: whose microbatches; what it took is not looked at.
        overlap: as the run had it.
    """
    counted_NDM, window = observed.counted_NDM, observed.run.info.window
    most = counted_NDM.shape[2]
    stretch_NDM = counted_NDM.astype(np.float64)
    if follows_speeds(observed.run):
        stretch_NDM *= np.stack([draw_slowdowns(resolved, minibatch=n, microbatches=most) for n in window])
        stretch_NDM /= resolved.speeds_D[:, None]
    factors_NDMF = np.stack([observed.squared_tokens_NDM, observed.tokens_NDM, np.ones(counted_NDM.shape)], axis=-1)
    work = Work(observed.counts_ND, factors_NDMF * stretch_NDM[..., None], resolved.coefficients_FV)
    schedule = replace(case.schedule, overlap=overlap)
    engine = find_engine("recurrence" if schedule.shared_links is None else "events")
    outcome = engine(work, schedule)
    totals = RankTimeTotals()
    padding_NDM = counted_NDM & ~observed.holds_samples_NDM
    totals.add(outcome, padding_s_ND=(padding_NDM * stretch_NDM).sum(axis=2) * resolved.cost.constant)
    return PredictedRun(outcome.minibatch_s_N, totals.fractions(), _peak_bytes(resolved, case, observed))


def _peak_bytes(resolved: ResolvedScenario, case: ResolvedCase, observed: RunObservations) -> float | None:
    """Peak memory of the fullest rank, if the costs tell of what a process holds."""
    if resolved.calibrated is None or resolved.calibrated.memory is None:
        return None
    largest = LargestMicrobatches.of(observed)
    candidates = [(largest.first_ND, False)] + [(largest.later_ND, True)] * bool(largest.had_later_ND.any())
    return max(
        sum(
            peak_parts_bytes(
                resolved,
                resolved.memory,
                on_demand=case.case.sync == "odc",
                tokens=float(tokens_ND.max(initial=0.0)),
                accumulates=accumulates,
            ).values()
        )
        for tokens_ND, accumulates in candidates
    )
