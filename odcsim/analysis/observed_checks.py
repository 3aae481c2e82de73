"""Whether traces belong to the run that run.json describes, and their clocks to each other.

What cannot be is refused with an `InputError` that names the rank's file.
"""

from __future__ import annotations

import numpy as np

from odcsim.analysis.observations import CLOCK_TOLERANCE_S, RunObservations
from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import InputError
from odcsim.trace_format import RecordedRun, rank_file

__all__ = ["check_counts", "check_meetings", "check_tokens"]


def check_counts(run: RecordedRun, counts_ND: IntArray) -> None:
    """Refuse traces that hold other microbatches than the plan in run.json."""
    for position, minibatch in enumerate(run.info.window):
        plan = run.info.plans.get(minibatch)
        if plan is None:
            continue
        for rank, microbatches in enumerate(plan):
            if len(microbatches) != counts_ND[position, rank]:
                raise InputError(
                    f"minibatch {minibatch} has spans of {counts_ND[position, rank]} microbatches, but run.json plans "
                    f"{len(microbatches)} on rank {rank}: the traces are of another run, or cut",
                    file=rank_file(run.folder, rank),
                )


def check_tokens(run: RecordedRun, tokens_NDM: FloatArray) -> None:
    """Refuse traces whose microbatches hold other tokens than the plan in run.json."""
    if not tokens_NDM.any():
        return
    for minibatch, plan in run.info.plans.items():
        for rank, microbatches in enumerate(plan):
            for position, lengths in enumerate(microbatches):
                found = int(tokens_NDM[minibatch - run.info.window.start, rank, position])
                if found != sum(lengths):
                    raise InputError(
                        f"microbatch {position} of minibatch {minibatch} has {found} tokens, but run.json plans "
                        f"{sum(lengths)} on rank {rank}: the trace is of another run, or of another rank",
                        file=rank_file(run.folder, rank),
                    )


def check_meetings(observed: RunObservations, *, published_s_ND: FloatArray) -> None:
    """Under `odc` nobody begins before everybody has published, nor settles before everybody is done; who seems to has
    a clock that jumped.
    """
    # A rank without a microbatch does not tell when it could have begun.
    began_s_ND = np.where(observed.counts_ND > 0, observed.first_s_ND, np.inf)
    _check_order(observed, "began", began_s_ND, "had published it", published_s_ND)
    _check_order(observed, "began to settle", observed.settling_s_ND, "was done with it", observed.last_s_ND)


def _check_order(
    observed: RunObservations, what: str, moments_s_ND: FloatArray, before_what: str, all_done_s_ND: FloatArray
) -> None:
    """Refuse a rank whose moment comes before every rank is done with what comes before it."""
    early_s_ND = all_done_s_ND.max(axis=1, keepdims=True) - moments_s_ND
    tolerance_s = CLOCK_TOLERANCE_S + 2 * observed.run.info.clock.uncertainty_s
    if float(early_s_ND.max(initial=0.0)) <= tolerance_s:
        return
    n = int((early_s_ND.max(axis=1) > tolerance_s).argmax())
    rank, late = int(early_s_ND[n].argmax()), int(all_done_s_ND[n].argmax())
    raise InputError(
        f"{what} minibatch {observed.run.info.window[n]} {early_s_ND[n, rank]:.6g} s before rank {late} {before_what}, "
        f"by their clocks: the clock of rank {rank} or of rank {late} jumped, or is not aligned with the others",
        file=rank_file(observed.run.folder, rank),
    )
