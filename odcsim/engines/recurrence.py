"""The recurrence engine: a minibatch as a max-plus recurrence over visits, vectorized over minibatches and ranks.

Where the events engine lets processes meet, this one walks the visits of every microbatch once, in order, and carries
for all ranks of all minibatches at once the times at which their three resources become free. Its cost is linear in the
number of microbatches and visits. It has no notion of links that transfers share.

Times in seconds. Rows are independent chains: under `fsdp` a row is a minibatch and holds D ranks, which meet at every
collective; under `odc` a row is one rank of one minibatch, and holds that rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.engines.leaving import leaving_shares
from odcsim.engines.timeline import Outcome, Span, SpanName, Stream, framed_spans
from odcsim.errors import InputError
from odcsim.schedule import Schedule, Visit, Work, gathers_in_turn

__all__ = ["simulate"]

# Elements of one array that are worked on together: large enough to hide NumPy's overhead, small enough for the cache.
_BLOCK_ELEMENTS = 1 << 15


def simulate(work: Work, schedule: Schedule, *, recorded_ranks: int = 0) -> Outcome:
    """Simulate N minibatches.

    Args:
        work: compute of N minibatches on D ranks.
        schedule: how ranks synchronize and what transfers cost; `shared_links` must be None.
        recorded_ranks: spans of the first minibatch are returned for so many ranks, the first ones.

    Raises:
        InputError: unequal microbatch counts under `fsdp`, or links shared by transfers.
    """
    if schedule.shared_links is not None:
        raise InputError("the recurrence engine models no shared links; use the events engine", key="--engine")
    work.require_counts_for(schedule.sync)
    chains = _Chains.of(work, per_rank=schedule.sync == "odc")
    end_RW, waited_RW, compute_RW = _run_in_blocks(chains, work.coefficients_FV, schedule)
    shape_ND = work.counts_ND.shape
    return Outcome.of(
        schedule,
        end_ND=chains.restore(end_RW).reshape(shape_ND),
        compute_ND=chains.restore(compute_RW).reshape(shape_ND),
        waited_ND=chains.restore(waited_RW).reshape(shape_ND),
        spans=_spans(work.minibatch(0), schedule, ranks=recorded_ranks) if recorded_ranks and shape_ND[0] else (),
    )


@dataclass(frozen=True)
class _Chains:
    """Independent chains as rows (R rows, W ranks in each), those with the most microbatches first.

    The order lets a step of the recurrence work on a prefix of the rows: those that still have a microbatch to run.
    """

    order_R: IntArray
    counts_R: IntArray
    factors_MRWF: FloatArray

    @classmethod
    def of(cls, work: Work, *, per_rank: bool) -> _Chains:
        minibatches, ranks, microbatches, factors = work.factors_NDMF.shape
        width = 1 if per_rank else ranks
        counts_R = work.counts_ND.reshape(-1, width)[:, 0]
        order_R = np.argsort(-counts_R, kind="stable")
        rows = work.factors_NDMF.reshape(minibatches * ranks // width, width, microbatches, factors)
        return cls(order_R, counts_R[order_R], np.ascontiguousarray(rows[order_R].transpose(2, 0, 1, 3)))

    def restore(self, values_RW: FloatArray) -> FloatArray:
        """Rows in the order of the work again."""
        restored = np.empty_like(values_RW)
        restored[self.order_R] = values_RW
        return restored


def _run_in_blocks(
    chains: _Chains, coefficients_FV: FloatArray, schedule: Schedule
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """End, time waited for other ranks, and compute of every chain: three arrays of shape (R, W)."""
    _, rows, width, _ = chains.factors_MRWF.shape
    results = np.zeros((3, rows, width))
    step = max(1, _BLOCK_ELEMENTS // max(width, 1))
    for first in range(0, rows, step):
        block = slice(first, min(first + step, rows))
        state = _State(schedule, rows=block.stop - block.start, width=width)
        _run(state, chains.counts_R[block], chains.factors_MRWF[:, block], coefficients_FV, schedule)
        results[0, block], results[1, block], results[2, block] = state.end, state.waited, state.computed
    return results[0], results[1], results[2]


def _run(
    state: _State, counts_R: IntArray, factors_MRWF: FloatArray, coefficients_FV: FloatArray, schedule: Schedule
) -> None:
    """Walk all microbatches of a block of chains; `counts_R` must not increase."""
    columns = _distinct_columns(coefficients_FV)
    for microbatch in range(int(counts_R.max(initial=0))):
        active = int(np.searchsorted(-counts_R, -microbatch, side="left"))
        factors_RWF = factors_MRWF[microbatch, :active]
        compute_by_column = [factors_RWF @ coefficients_FV[:, column] for column in columns.representatives]
        state.enter_microbatch(microbatch, active)
        for position, visit in enumerate(schedule.visits):
            state.visit(position, visit, compute_by_column[columns.of_visit[position]])
        for compute_RW, occurrences in zip(compute_by_column, columns.occurrences, strict=True):
            state.add_compute(compute_RW * occurrences)
    state.finish()


@dataclass(frozen=True)
class _Columns:
    """Visits that share their coefficients (all blocks' forwards, say) share their compute times too."""

    representatives: list[int]
    of_visit: list[int]
    occurrences: list[int]


def _distinct_columns(coefficients_FV: FloatArray) -> _Columns:
    _, first, inverse, occurrences = np.unique(
        coefficients_FV, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    return _Columns(first.tolist(), inverse.reshape(-1).tolist(), occurrences.tolist())


def _gathers_before(schedule: Schedule) -> Sequence[Sequence[int]]:
    """For each visit, whose gathers its compute is the first to wait for."""
    if schedule.overlap == "none":
        return gathers_in_turn(schedule.visits)
    return [(position,) if visit.gathers else () for position, visit in enumerate(schedule.visits)]


class _State:
    """When each chain's resources are free, in arrays of shape (rows, width); times count from the first microbatch.

    `end` is the end of the last compute, or of the transfer that the compute stream last waited for.
    """

    def __init__(self, schedule: Schedule, *, rows: int, width: int, recorder: _Recorder | None = None) -> None:
        shape = (rows, width)
        self._overlap = schedule.overlap
        self._visits = schedule.visits
        self._gathers_before_V = _gathers_before(schedule)
        self._meets = schedule.sync == "fsdp"
        self._gather_s = schedule.gather_s_V.tolist()
        self._reduce_s = schedule.reduce_s_V.tolist()
        self._gathers = _Collectives(schedule.gather_lag if self._meets else 0.0)
        self._reduces = _Collectives(schedule.reduce_lag if self._meets else 0.0)
        self._recorder = recorder
        self.waited = np.zeros(shape)
        self.computed = np.zeros(shape)
        self.end = np.zeros(shape)
        self._started = np.zeros(shape)  # start of the latest compute
        # One time a row: of the row's collective under fsdp, of its only rank under odc; one a rank where ranks lag.
        leaving = width if schedule.has_lags else 1
        self._gathered = np.zeros((rows, leaving))
        self._reduce_start = np.zeros((rows, 1))
        self._reduced = np.zeros((rows, leaving))
        self._scratch = np.empty(shape)
        self._views: list[FloatArray] = []
        self._microbatch = -1

    def enter_microbatch(self, microbatch: int, active: int) -> None:
        """From here on, visits are those of `microbatch`, and concern the first `active` rows."""
        self._microbatch = microbatch
        self._views = [
            array[:active]
            for array in (self.waited, self.end, self._started, self._gathered, self._reduce_start, self._reduced)
        ]

    def add_compute(self, compute_RW: FloatArray) -> None:
        """Count compute time of the microbatch entered."""
        self.computed[: compute_RW.shape[0]] += compute_RW

    def visit(self, position: int, visit: Visit, compute_RW: FloatArray) -> None:
        """One visit of the microbatch entered.

        Under `fsdp` a transfer starts when the last rank of the row is ready. Where the compute stream stands still for
        it, the time before that start is waiting for other ranks.
        """
        waited, end, started, gathered, reduce_start, reduced = self._views
        recorder, microbatch = self._recorder, self._microbatch
        gathers = self._gathers_before_V[position]
        for chosen in gathers:
            # A compute that has started has waited for all gathers before: none of them is under way.
            start = self._meeting(end if self._overlap == "none" else started)
            self._gathers.leave_next(start, self._gather_s[chosen], out=gathered)
            if recorder is not None:
                recorder.transfer("gather", self._visits[chosen].unit, microbatch, start, gathered)
            self._stall(waited, end, start, gathered, out=started if chosen == gathers[-1] else end)
        if not gathers:
            started[:] = end
        np.add(started, compute_RW, out=end)
        if recorder is not None:
            recorder.compute(visit, microbatch, started, end)
        if visit.reduces:
            if self._overlap == "prefetch":
                # FSDP2's compute stream waits here for the previous reduce: at most one is in flight on a rank.
                self._stall(waited, end, reduce_start, reduced, out=end)
            reduce_start[:] = self._meeting(end)
            self._reduces.leave_next(reduce_start, self._reduce_s[position], out=reduced)
            if recorder is not None:
                recorder.transfer("scatter_accumulate", visit.unit, microbatch, reduce_start, reduced)
            if self._overlap != "prefetch":
                self._stall(waited, end, reduce_start, reduced, out=end)

    def finish(self) -> None:
        """A rank is done when its last compute and its last reduce are."""
        self._stall(self.waited, self.end, self._reduce_start, self._reduced, out=self.end)

    def _meeting(self, ready_RW: FloatArray) -> FloatArray:
        """When transfers start whose ranks are ready at `ready_RW`: shape (rows, 1)."""
        return ready_RW.max(axis=1, keepdims=True) if self._meets else ready_RW

    def _stall(
        self, waited: FloatArray, end: FloatArray, start: FloatArray, done: FloatArray, *, out: FloatArray
    ) -> None:
        """Hold the compute stream from `end` until a transfer, `start` to `done`, is over; `out` is when it goes on."""
        if self._meets:
            others_came = np.maximum(end, start, out=self._scratch[: end.shape[0]])
            if self._recorder is not None:
                self._recorder.wait(self._microbatch, end, others_came)
            waits = np.subtract(others_came, end, out=others_came)
            waited += waits
        np.maximum(end, done, out=out)


class _Collectives:
    """Transfers of one kind, one after another: all rows have the same one at a time."""

    def __init__(self, lag: float) -> None:
        self._lag = lag
        self._done = 0

    def leave_next(self, start_R1: FloatArray, time_s: float, *, out: FloatArray) -> None:
        """When ranks leave the next one, which starts at `start_R1`: shape (rows, 1), or (rows, width) if they lag."""
        np.add(start_R1, time_s, out=out)
        if self._lag:
            out += time_s * leaving_shares(out.shape[1], collective=self._done, lag=self._lag)
            self._done += 1


class _Recorder:
    """Collects what the rows of one minibatch did, as spans of its first ranks."""

    def __init__(self, rank_of_RW: IntArray, *, ranks: int, offset_s: float) -> None:
        self._rank_of_RW = rank_of_RW
        self._recorded_RW = rank_of_RW < ranks
        self._offset_s = offset_s
        self.spans: list[Span] = []

    def compute(self, visit: Visit, microbatch: int, start_RW: FloatArray, end_RW: FloatArray) -> None:
        self._add(visit.phase, "compute", visit.unit, microbatch, start_RW, end_RW)

    def wait(self, microbatch: int, start_RW: FloatArray, end_RW: FloatArray) -> None:
        self._add("wait", "compute", -1, microbatch, start_RW, end_RW)

    def transfer(self, name: SpanName, unit: int, microbatch: int, start_R1: FloatArray, end: FloatArray) -> None:
        self._add(name, "gather" if name == "gather" else "reduce", unit, microbatch, start_R1, end)

    def _add(
        self, name: SpanName, stream: Stream, unit: int, microbatch: int, start: FloatArray, end: FloatArray
    ) -> None:
        recorded_RW = self._recorded_RW[: start.shape[0]]
        ranks = self._rank_of_RW[: start.shape[0]][recorded_RW].tolist()
        starts_s = (np.broadcast_to(start, recorded_RW.shape)[recorded_RW] + self._offset_s).tolist()
        ends_s = (np.broadcast_to(end, recorded_RW.shape)[recorded_RW] + self._offset_s).tolist()
        for rank, start_s, end_s in zip(ranks, starts_s, ends_s, strict=True):
            if end_s > start_s:
                self.spans.append(Span(rank, name, unit, microbatch, start_s, end_s, stream))


def _spans(work: Work, schedule: Schedule, *, ranks: int) -> tuple[Span, ...]:
    """The spans of a single minibatch on its first `ranks` ranks."""
    all_ranks = work.counts_ND.shape[1]
    on_demand = schedule.sync == "odc"
    chains = _Chains.of(work, per_rank=on_demand)
    rank_of_RW = chains.order_R[:, None] if on_demand else np.arange(all_ranks)[None, :]
    recorder = _Recorder(rank_of_RW, ranks=ranks, offset_s=schedule.opening_s)
    state = _State(schedule, rows=rank_of_RW.shape[0], width=rank_of_RW.shape[1], recorder=recorder)
    _run(state, chains.counts_R, chains.factors_MRWF, work.coefficients_FV, schedule)
    return framed_spans(recorder.spans, schedule, end_D=chains.restore(state.end).reshape(all_ranks), ranks=ranks)
