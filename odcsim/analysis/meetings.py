"""Collectives of a recorded `fsdp` run: the k-th of every rank is one and the same.

What a rank spends in a collective is, first, waiting for the last rank to arrive, which no library tells apart; then
the transfer. Ranks compared with each other tell. The clock of a rank that jumped shows here too: nobody can leave a
collective before everybody has arrived.

Legend: K collectives, D ranks. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.analysis.observations import CLOCK_TOLERANCE_S, RunObservations, Transfer
from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import InputError
from odcsim.trace_format import rank_file

__all__ = ["Meetings", "align_collectives"]


@dataclass(frozen=True)
class Meetings:
    """All collectives of a run.

    Attributes:
        names: `gather` or `scatter_accumulate`, K of them.
        unit_K: FSDP unit.
        minibatch_K: position in the window.
        size_bytes_K: moved to or from a rank.
        ready_s_KD: when each rank arrived.
        end_s_KD: when each rank had its data.
    """

    names: tuple[str, ...]
    unit_K: IntArray
    minibatch_K: IntArray
    size_bytes_K: FloatArray
    ready_s_KD: FloatArray
    end_s_KD: FloatArray

    @property
    def wait_s_KD(self) -> FloatArray:
        """How long each rank waited for the last one."""
        waits_s_KD: FloatArray = np.minimum(self.last_ready_s_K[:, None], self.end_s_KD) - self.ready_s_KD
        return waits_s_KD

    @property
    def last_ready_s_K(self) -> FloatArray:
        """When the last rank arrived."""
        last_s_K: FloatArray = self.ready_s_KD.max(axis=1)
        return last_s_K

    @property
    def cost_s_K(self) -> FloatArray:
        """From the last rank's arrival to the end, in the mean over ranks: what the collective itself costs."""
        costs_s_K: FloatArray = self.end_s_KD.mean(axis=1) - self.last_ready_s_K
        return costs_s_K

    @property
    def lag_s_K(self) -> FloatArray:
        """How much later than ranks do in the mean the last one leaves."""
        lags_s_K: FloatArray = self.end_s_KD.max(axis=1) - self.end_s_KD.mean(axis=1)
        return lags_s_K


def align_collectives(observed: RunObservations) -> Meetings:
    """Put the collectives of all ranks beside each other.

    Raises:
        InputError: ranks had different collectives, or a rank's clock jumped.
    """
    first = observed.transfers_D[0]
    for rank, transfers in enumerate(observed.transfers_D):
        _check_alike(observed, rank, first, transfers)
    ready_s_KD = np.array([[transfer.ready_s for transfer in transfers] for transfers in observed.transfers_D]).T
    end_s_KD = np.array([[transfer.end_s for transfer in transfers] for transfers in observed.transfers_D]).T
    meetings = Meetings(
        names=tuple(transfer.name for transfer in first),
        unit_K=np.array([transfer.unit for transfer in first], dtype=np.int64),
        minibatch_K=np.array([transfer.minibatch for transfer in first], dtype=np.int64),
        size_bytes_K=np.array([float(transfer.size_bytes) for transfer in first]),
        ready_s_KD=ready_s_KD.reshape(len(first), observed.ranks),
        end_s_KD=end_s_KD.reshape(len(first), observed.ranks),
    )
    _check_clocks(observed, meetings)
    return meetings


def _check_alike(observed: RunObservations, rank: int, first: Sequence[Transfer], other: Sequence[Transfer]) -> None:
    """Every rank must have had the same collectives in the same order."""
    folder, window = observed.run.folder, observed.run.info.window
    for position, (one, two) in enumerate(zip(first, other, strict=False)):
        if (one.name, one.unit, one.minibatch) != (two.name, two.unit, two.minibatch):
            raise InputError(
                f"collective {position} is a {two.name} of unit {two.unit} in minibatch {window[two.minibatch]}, but "
                f"on rank 0 a {one.name} of unit {one.unit} in minibatch {window[one.minibatch]}: the traces are of "
                "different runs, or spans are missing",
                file=rank_file(folder, rank),
            )
    if len(first) != len(other):
        raise InputError(
            f"has {len(other)} collectives, but rank 0 has {len(first)}: the traces are of different runs, or cut",
            file=rank_file(folder, rank),
        )


def _check_clocks(observed: RunObservations, meetings: Meetings) -> None:
    early_s_KD = meetings.last_ready_s_K[:, None] - meetings.end_s_KD
    tolerance_s = CLOCK_TOLERANCE_S + 2 * observed.run.info.clock.uncertainty_s
    if early_s_KD.size == 0 or float(early_s_KD.max()) <= tolerance_s:
        return
    collective, rank = np.unravel_index(int((early_s_KD > tolerance_s).argmax()), early_s_KD.shape)
    minibatch = observed.run.info.window[int(meetings.minibatch_K[collective])]
    late = int(meetings.ready_s_KD[collective].argmax())
    raise InputError(
        f"collective {collective} (minibatch {minibatch}) ended {early_s_KD[collective, rank]:.6g} s before rank "
        f"{late} had arrived, by their clocks: the clock of rank {rank} or of rank {late} jumped, or is not aligned "
        "with the others",
        file=rank_file(observed.run.folder, int(rank)),
    )
