"""From what ranks measured to a result like the simulator's. docs/launch.md tells what each figure means here.

Of every minibatch, a rank's time is split into compute, transfers, waits, optimizer and the rest; what it waits at the
end for the slowest rank is added to its waits. So the parts sum up to ranks x minibatch time.

Under gloo a collective's time holds the wait for the last rank. The k-th collective is the same on all ranks, and the
last one to come waits for nobody: the shortest time over ranks is taken for the transfer, what is beyond it for a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcrt.workload.job import CaseMeasurement
from odcrt.workload.minibatches import PlannedCase
from odcsim.arrays import FloatArray
from odcsim.engines.timeline import Span
from odcsim.metrics import paired_speedup
from odcsim.resolve import ResolvedCase, ResolvedScenario
from odcsim.results import CaseResult, MemoryResult, TimeFractions
from odcsim.trace_format import TraceSpan

__all__ = ["CaseTimes", "case_result", "measured_bounds_s"]

_SHOWN_RANKS = 16
_PARTS = ("compute", "exposed_communication", "synchronization", "optimizer", "other")


@dataclass(frozen=True)
class CaseTimes:
    """Times of one case, in seconds.

    Attributes:
        minibatch_s_N: from the common start to the last rank's end.
        start_s_N: the common start, by the clock of all ranks.
        parts_s_NDP: each rank's minibatch by the parts of `TimeFractions`, in order; they sum up to the minibatch.
        loss_N: of each minibatch.
    """

    minibatch_s_N: FloatArray
    start_s_N: FloatArray
    parts_s_NDP: FloatArray
    loss_N: FloatArray

    @classmethod
    def of(cls, measured_D: Sequence[CaseMeasurement]) -> CaseTimes:
        """From what all ranks measured."""
        minibatches = list(zip(*(measured.minibatches for measured in measured_D), strict=True))
        start_s_N = np.array([ranks[0].start_s for ranks in minibatches])
        minibatch_s_N = np.array([max(times.end_s for times in ranks) for ranks in minibatches]) - start_s_N
        parts_s_NDP = np.empty((len(minibatches), len(measured_D), len(_PARTS)))
        for minibatch, ranks in enumerate(minibatches):
            hidden_waits_s_D = _hidden_waits_s_D([times.collectives_s for times in ranks])
            for rank, times in enumerate(ranks):
                exposed_s = times.transfer_s - hidden_waits_s_D[rank]
                last_wait_s = minibatch_s_N[minibatch] - (times.end_s - times.start_s)
                waited_s = times.wait_s + hidden_waits_s_D[rank] + last_wait_s
                known = (times.compute_s, exposed_s, waited_s, times.optimizer_s)
                parts_s_NDP[minibatch, rank] = (*known, max(minibatch_s_N[minibatch] - sum(known), 0.0))
        loss_N = np.array([sum(times.loss for times in ranks) for ranks in minibatches])
        return cls(minibatch_s_N, start_s_N, parts_s_NDP, loss_N)

    def fractions(self) -> TimeFractions:
        """Shares of rank-time."""
        totals_P = self.parts_s_NDP.sum(axis=(0, 1))
        return TimeFractions(*(totals_P / totals_P.sum()).tolist())

    @property
    def balanced_s_N(self) -> FloatArray:
        """Compute and optimizer if ranks had shared them evenly."""
        compute, optimizer = _PARTS.index("compute"), _PARTS.index("optimizer")
        balanced: FloatArray = (self.parts_s_NDP[:, :, compute] + self.parts_s_NDP[:, :, optimizer]).mean(axis=1)
        return balanced


def _hidden_waits_s_D(collectives_s_DK: Sequence[Sequence[float]]) -> list[float]:
    """What each rank waited within its collectives; zeros where these were not kept."""
    times_s_DK = np.array(collectives_s_DK, dtype=np.float64)
    if times_s_DK.size == 0:
        return [0.0] * len(collectives_s_DK)
    waits_s_D: list[float] = (times_s_DK - times_s_DK.min(axis=0)).sum(axis=1).tolist()
    return waits_s_D


def measured_bounds_s(cases: Sequence[CaseTimes]) -> FloatArray:
    """A lower bound for real compute: the least time of each minibatch, over all cases, if ranks shared it evenly."""
    bounds_s_N: FloatArray = np.min([times.balanced_s_N for times in cases], axis=0)
    return bounds_s_N


def case_result(
    resolved: ResolvedScenario,
    case: ResolvedCase,
    planned: PlannedCase,
    times: CaseTimes,
    measured_D: Sequence[CaseMeasurement],
    *,
    baseline: CaseTimes,
    bounds_s_N: FloatArray,
    spans_D: Sequence[Sequence[TraceSpan]],
    capacity_bytes: float,
) -> CaseResult:
    """Everything about a case.

    Args:
        resolved: the scenario.
        case: the case.
        planned: what was run.
        times: how long it took.
        measured_D: what ranks measured beside times.
        baseline: times of the first case.
        bounds_s_N: what no plan can beat under the case's sync.
        spans_D: of the first minibatch, by rank.
        capacity_bytes: memory of this machine, by ranks.
    """
    ranks = resolved.scenario.cluster.ranks
    seconds = float(times.minibatch_s_N.sum())
    counts_ND = planned.counts_ND
    fullest = max(measured_D, key=lambda measured: sum(measured.memory_bytes.values()))
    speedup, interval = paired_speedup(
        baseline.minibatch_s_N, times.minibatch_s_N, seed=resolved.scenario.workload.seed
    )
    return CaseResult(
        label=case.label,
        sync=case.case.sync,
        policy=case.policy.name,
        # On the CPU, transfers and compute take turns.
        overlap="none",
        pad=case.case.pad,
        minibatch_s_N=times.minibatch_s_N,
        lower_bound_s_N=bounds_s_N,
        fractions=times.fractions(),
        conservation=planned.conservation,
        mean_microbatches_per_rank=float(counts_ND.mean()),
        padding_share=planned.padding / max(int(counts_ND.sum()), 1),
        mfu=planned.model_flops / (resolved.gpu.peak_flops_per_s * ranks * seconds),
        memory=MemoryResult(
            parts_bytes=fullest.memory_bytes,
            capacity_bytes=capacity_bytes,
            largest_microbatch_tokens=planned.largest_microbatch_tokens,
        ),
        speedup=speedup,
        speedup_ci95=interval,
        ranks=ranks,
        spans=_first_minibatch(spans_D, start_s=float(times.start_s_N[0]) - measured_D[0].origin_s),
    )


def _first_minibatch(spans_D: Sequence[Sequence[TraceSpan]], *, start_s: float) -> tuple[Span, ...]:
    return tuple(
        Span(rank, span.name, span.unit, span.microbatch, span.start_s - start_s, span.end_s - start_s, span.stream)
        for rank, spans in enumerate(spans_D[:_SHOWN_RANKS])
        for span in spans
        if span.minibatch == 0
    )
