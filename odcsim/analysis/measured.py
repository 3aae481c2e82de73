"""What a recorded run measured, in the words of a result: times of minibatches and where rank-time went.

Waits and transfers are told apart as the model does: a collective is waited for until the last rank has arrived, and
costs what it takes from then on. Times in seconds; N minibatches, D ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.analysis.meetings import align_collectives
from odcsim.analysis.observations import RunObservations
from odcsim.arrays import FloatArray
from odcsim.results import TimeFractions

__all__ = ["MeasuredRun", "measure"]


@dataclass(frozen=True)
class MeasuredRun:
    """A run's figures.

    Attributes:
        minibatch_s_N: from the first rank's start to the last one's end.
        fractions: shares of rank-time.
        peak_bytes: of the rank with most memory; None where nobody counted it.
        shared_memory_bytes: a rank's part of it.
    """

    minibatch_s_N: FloatArray
    fractions: TimeFractions
    peak_bytes: float | None
    shared_memory_bytes: float


def measure(observed: RunObservations) -> MeasuredRun:
    """Account for the time of a run.

    Raises:
        InputError: ranks had different collectives, or a rank's clock jumped.
    """
    holds = observed.holds_samples_NDM[..., None]
    compute_s = float((observed.compute_s_NDMV * holds).sum())
    last_s_N1 = observed.last_s_ND.max(axis=1, keepdims=True)
    meetings = align_collectives(observed) if observed.sync == "fsdp" else None
    waited_s = exposed_s = 0.0
    for rank, spans in enumerate(observed.run.spans_of_ranks):
        computing = [(span.start_s, span.end_s) for span in spans if span.name in {"forward", "backward"}]
        if meetings is None:
            moving = [(transfer.start_s, transfer.end_s) for transfer in observed.transfers_D[rank]]
            waiting = []
        else:
            ready_s_K, end_s_K = meetings.ready_s_KD[:, rank], meetings.end_s_KD[:, rank]
            arrived_s_K = ready_s_K + meetings.wait_s_KD[:, rank]
            waiting = list(zip(ready_s_K.tolist(), arrived_s_K.tolist(), strict=True))
            moving = list(zip(arrived_s_K.tolist(), end_s_K.tolist(), strict=True))
        # What went on beside compute held nobody up.
        computed_s, held_up_s = _covered_s(computing), _covered_s(computing + waiting)
        waited_s += held_up_s - computed_s
        exposed_s += _covered_s(computing + waiting + moving) - held_up_s
    waited_s += float((last_s_N1 - observed.last_s_ND).sum())
    optimizer_s = float((observed.end_s_ND.max(axis=1, keepdims=True) - observed.settled_s_ND).sum())
    rank_s = float(observed.minibatch_s_N.sum()) * observed.ranks
    known_s = np.array([compute_s, exposed_s, waited_s, optimizer_s])
    parts_s = [*known_s, max(rank_s - float(known_s.sum()), 0.0)]
    memory_D = observed.run.info.memory
    return MeasuredRun(
        minibatch_s_N=observed.minibatch_s_N,
        fractions=TimeFractions(*(float(part_s / rank_s) for part_s in parts_s)),
        peak_bytes=max(
            (rank.process_bytes + rank.shared_memory_bytes + max(rank.training_bytes) for rank in memory_D),
            default=None,
        ),
        shared_memory_bytes=float(max((rank.shared_memory_bytes for rank in memory_D), default=0)),
    )


def _covered_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Time that intervals cover together, what lies in several counted once."""
    if not intervals:
        return 0.0
    starts_s, ends_s = np.array(sorted(intervals)).T
    # Each adds what lies beyond all that began before it.
    until_s = np.maximum.accumulate(np.concatenate([starts_s[:1], ends_s[:-1]]))
    return float(np.maximum(ends_s - np.maximum(starts_s, until_s), 0.0).sum())
