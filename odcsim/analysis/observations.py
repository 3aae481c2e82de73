"""What the ranks of a recorded run did, minibatch by minibatch, as arrays. Times in seconds.

Legend: N minibatches of the window, D ranks, M microbatches of a rank at most, V visits of a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcsim.arrays import BoolArray, FloatArray, IntArray
from odcsim.schedule import Sync, Visit
from odcsim.trace_format import RecordedRun

__all__ = ["CLOCK_TOLERANCE_S", "RunObservations", "Transfer"]

CLOCK_TOLERANCE_S = 2e-4
"""Beyond this, and beyond what the clocks' alignment admits to, a clock has jumped."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of one rank.

    Attributes:
        name: `gather` or `scatter_accumulate`.
        unit: FSDP unit.
        minibatch: position in the window.
        microbatch: position in the rank's order.
        ready_s: when the rank was ready for it; before `start_s` it waited for others.
        start_s: when data began to move.
        end_s: when they had arrived.
        size_bytes: moved to or from the rank.
    """

    name: str
    unit: int
    minibatch: int
    microbatch: int
    ready_s: float
    start_s: float
    end_s: float
    size_bytes: int


@dataclass(frozen=True)
class RunObservations:
    """A run as arrays.

    Attributes:
        run: as it was read.
        sync: of its case.
        visits: V visits of a microbatch.
        counts_ND: microbatches.
        tokens_NDM: of each microbatch; 0 where it holds no sample, or they are not known.
        squared_tokens_NDM: sum of squared lengths, likewise.
        holds_samples_NDM: whether it is a microbatch with samples; padding is not.
        compute_s_NDMV: time computing, by visit.
        transfers_D: of each rank, in order.
        start_s_N: the first rank's first span.
        first_s_ND: when each rank began its first microbatch; where it had none, when the first of the others did.
        last_s_ND: when each rank was done with its last microbatch, its last transfer included; `first_s_ND` where it
            had none.
        settling_s_ND: when it had met the others and began to settle, if it did.
        settled_s_ND: when its gradients were there: the end of its settling, or when it had met the others.
        end_s_ND: when it was done, optimizer included.
        publish_s_ND: time publishing.
        settle_s_ND: time settling.
        optimizer_s_ND: time of the optimizer's step.
    """

    run: RecordedRun
    sync: Sync
    visits: tuple[Visit, ...]
    counts_ND: IntArray
    tokens_NDM: FloatArray
    squared_tokens_NDM: FloatArray
    holds_samples_NDM: BoolArray
    compute_s_NDMV: FloatArray
    transfers_D: tuple[tuple[Transfer, ...], ...]
    start_s_N: FloatArray
    first_s_ND: FloatArray
    last_s_ND: FloatArray
    settling_s_ND: FloatArray
    settled_s_ND: FloatArray
    end_s_ND: FloatArray
    publish_s_ND: FloatArray
    settle_s_ND: FloatArray
    optimizer_s_ND: FloatArray

    @property
    def ranks(self) -> int:
        """D."""
        return self.run.info.world_size

    @property
    def minibatch_s_N(self) -> FloatArray:
        """From the first rank's start to the last one's end."""
        times_s_N: FloatArray = self.end_s_ND.max(axis=1) - self.start_s_N
        return times_s_N

    @property
    def counted_NDM(self) -> BoolArray:
        """Whether a rank has an m-th microbatch, with samples or not."""
        counted_NDM: BoolArray = np.arange(self.tokens_NDM.shape[2]) < self.counts_ND[:, :, None]
        return counted_NDM

    @property
    def knows_tokens(self) -> bool:
        """Whether the run says how many tokens its microbatches hold."""
        return bool(self.tokens_NDM.any())
