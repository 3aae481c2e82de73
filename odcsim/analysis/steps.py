"""Fits of a minibatch's other steps: meeting, publishing, settling, the optimizer's. Seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.analysis.observations import RunObservations
from odcsim.analysis.terms import mean_term
from odcsim.arrays import FloatArray
from odcsim.costs.calibrated import StepCosts, Term

__all__ = ["fit_steps"]


def fit_steps(observed: Sequence[RunObservations], *, seed: int) -> StepCosts:
    """What the runs show of them.

    An `odc` minibatch opens with publishing and a meeting: until ranks begin their first microbatch, in the mean. It
    closes with a meeting, from the last rank's end until ranks begin to settle, and settling. The optimizer's step
    lasts from then, in the mean over ranks, until the last rank is done. Without an `odc` run it lasts from when the
    last rank has left its last collective.
    """
    meetings, publishes, settles, optimizers, in_step = [], [], [], [], []
    for seen in observed:
        if seen.sync != "odc":
            in_step.append(seen.end_s_ND.max(axis=1) - seen.settled_s_ND.max(axis=1))
            continue
        optimizers.append(seen.end_s_ND.max(axis=1) - seen.settled_s_ND.mean(axis=1))
        publish_s_N, settle_s_N = seen.publish_s_ND.mean(axis=1), seen.settle_s_ND.mean(axis=1)
        publishes.append(publish_s_N)
        settles.append(settle_s_N)
        opening_s_N = seen.first_s_ND.mean(axis=1) - seen.start_s_N - publish_s_N
        closing_s_N = seen.settling_s_ND.mean(axis=1) - seen.last_s_ND.max(axis=1)
        meetings += [opening_s_N / max(seen.ranks - 1, 1), closing_s_N / max(seen.ranks - 1, 1)]

    def term(found: list[FloatArray]) -> Term | None:
        return mean_term(np.concatenate(found), seed=seed) if found else None

    return StepCosts(
        meeting=term(meetings), publish=term(publishes), settle=term(settles), optimizer=term(optimizers or in_step)
    )
