"""Simulate a scenario: draw minibatches, plan them by each case's policy, run an engine, and account for the time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from odcsim.arrays import BoolArray, FloatArray, IntArray
from odcsim.engines import find_engine
from odcsim.engines.pulling import StretchOf, ranks_of_pulled
from odcsim.engines.timeline import Span
from odcsim.errors import InputError
from odcsim.lengths import describe_lengths
from odcsim.lower_bounds import lower_bounds_s_CN
from odcsim.memory_advice import memory_result
from odcsim.metrics import RankTimeTotals, paired_speedup
from odcsim.minibatches import draw_lengths, draw_slowdowns, plan_of_case
from odcsim.plan_cache import PlanCache
from odcsim.policies import MinibatchPlan
from odcsim.resolve import ResolvedCase, ResolvedScenario, resolve
from odcsim.results import CaseResult, Conservation, RunResult
from odcsim.scenario import Scenario
from odcsim.schedule import Work

__all__ = ["EngineChoice", "Progress", "simulate"]

EngineChoice = Literal["auto", "recurrence", "events"]
# Told how many steps are done, of how many.
Progress = Callable[[int, int], None]

# Minibatches are worked on together up to this many samples, which bounds memory.
_SAMPLES_AT_ONCE = 400_000
# A histogram of more lengths than these shows nothing new.
_SHOWN_LENGTHS = 200_000
# Ranks whose spans are kept, for a timeline of one minibatch: nobody reads more lanes than these.
_RECORDED_RANKS = 16
# Visits beyond which the events engine would take hours.
_MOST_EVENT_VISITS = 200_000_000


def simulate(
    scenario: Scenario,
    *,
    base_folder: Path,
    file: Path | None = None,
    engine: EngineChoice = "auto",
    progress: Progress | None = None,
    plans: PlanCache | None = None,
) -> RunResult:
    """Simulate every case of a scenario on the same minibatches.

    Args:
        scenario: a valid scenario.
        base_folder: what its paths are relative to.
        file: the scenario's file, for messages.
        engine: `auto` takes `recurrence`, or `events` where links are shared.
        progress: called after every step.
        plans: plans that were made already, as for another scenario on the same samples; what is made is put there.

    Raises:
        InputError: the scenario names something that is not there, or cannot be run.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        resolved = resolve(scenario, base_folder=base_folder, file=file)
        lengths_NS = draw_lengths(resolved, file=file)
    engine_name = _engine_name(resolved, engine, lengths_NS.size)
    runs = [_CaseRun(resolved, case) for case in resolved.cases]
    bounds_s_CN = np.empty((len(runs), len(lengths_NS)))
    # A step is a minibatch planned, or run, by one case.
    steps, done = 2 * len(lengths_NS) * len(runs), 0
    for chunk in _chunks(lengths_NS):
        bounds_s_CN[:, chunk] = lower_bounds_s_CN(resolved, lengths_NS[chunk])
        planned: dict[str, list[MinibatchPlan]] = {}
        for run in runs:
            policy = run.case.policy.name
            if policy not in planned:
                planned[policy] = []
                for offset, lengths_S in enumerate(lengths_NS[chunk]):
                    minibatch = chunk.start + offset
                    planned[policy].append(
                        plan_of_case(resolved, run.case, lengths_S, minibatch=minibatch, file=file, plans=plans)
                    )
                    if progress is not None:
                        progress(done + offset + 1, steps)
            done += chunk.stop - chunk.start
            run.add(planned[policy], lengths_NS[chunk], first_minibatch=chunk.start, engine_name=engine_name)
            done += chunk.stop - chunk.start
            if progress is not None:
                progress(done, steps)
    return RunResult(
        name=scenario.name,
        scenario=resolved.to_document(),
        engine=engine_name,
        lengths=dict(describe_lengths(lengths_NS.reshape(-1))),
        cases=tuple(
            run.result(bounds_s_N, baseline=runs[0]) for run, bounds_s_N in zip(runs, bounds_s_CN, strict=True)
        ),
        warnings=(*resolved.warnings, *dict.fromkeys(str(warning.message) for warning in caught)),
        sampled_lengths=lengths_NS.reshape(-1)[:_SHOWN_LENGTHS],
    )


def _engine_name(resolved: ResolvedScenario, choice: EngineChoice, samples: int) -> str:
    shared = any(case.schedule.shared_links is not None for case in resolved.cases)
    name = ("events" if shared else "recurrence") if choice == "auto" else choice
    if name == "recurrence" and shared:
        raise InputError("models no contention; allowed here: events or auto", key="--engine", value=choice)
    visits = len(resolved.cases[0].schedule.visits) * samples * len(resolved.cases)
    if name == "events" and visits > _MOST_EVENT_VISITS:
        raise InputError(
            f"up to {visits} visits of compute would take the events engine hours; allowed: fewer minibatches or "
            "ranks, or the recurrence engine (which models no contention)",
            key="--engine",
            value=name,
        )
    return name


def _chunks(lengths_NS: IntArray) -> Iterator[slice]:
    minibatches, samples = lengths_NS.shape
    step = max(1, _SAMPLES_AT_ONCE // max(samples, 1))
    for first in range(0, minibatches, step):
        yield slice(first, min(first + step, minibatches))


@dataclass(frozen=True)
class _MinibatchLoads:
    """What the microbatches of several minibatches hold, padded with zeros: the input of a `Work`."""

    counts_ND: IntArray
    tokens_NDM: FloatArray
    squared_tokens_NDM: FloatArray
    holds_samples_NDM: BoolArray

    @classmethod
    def of(cls, plans: list[MinibatchPlan]) -> _MinibatchLoads:
        loads = [planned.plan.loads(planned.lengths_S) for planned in plans]
        counts_ND = np.array([load.counts_D for load in loads])
        shape = (*counts_ND.shape, int(counts_ND.max(initial=0)))
        tokens_NDM, squared_NDM, holds_NDM = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        for minibatch, load in enumerate(loads):
            filled = slice(0, load.tokens_DM.shape[1])
            tokens_NDM[minibatch, :, filled] = load.tokens_DM
            squared_NDM[minibatch, :, filled] = load.squared_tokens_DM
            holds_NDM[minibatch, :, filled] = load.samples_DM > 0
        return cls(counts_ND, tokens_NDM, squared_NDM, holds_NDM)

    @property
    def counted_NDM(self) -> BoolArray:
        """Whether a rank has an m-th microbatch, with samples or not."""
        return np.arange(self.tokens_NDM.shape[2]) < self.counts_ND[:, :, None]


class _CaseRun:
    """One case as it is run chunk by chunk."""

    def __init__(self, resolved: ResolvedScenario, case: ResolvedCase) -> None:
        self.case = case
        self._resolved = resolved
        self._totals = RankTimeTotals()
        self._tokens_in = self._samples_in = 0
        self._dropped_samples = self._dropped_tokens = self._truncated_tokens = 0
        self._microbatches = self._padding = 0
        self._model_flops = 0.0
        self._largest_microbatch_tokens = 0
        self._spans: tuple[Span, ...] = ()

    def add(self, plans: list[MinibatchPlan], lengths_NS: IntArray, *, first_minibatch: int, engine_name: str) -> None:
        """Run the engine on planned minibatches and count what it returns."""
        resolved = self._resolved

        def stretch_of(microbatches: int) -> FloatArray:
            # A rank of half the speed takes twice as long for everything it computes; so does a microbatch slowed down.
            slowdowns_NDM = np.stack(
                [
                    draw_slowdowns(resolved, minibatch=first_minibatch + offset, microbatches=microbatches)
                    for offset in range(len(plans))
                ]
            )
            return slowdowns_NDM / resolved.speeds_D[:, None]

        plans = self._as_run(plans, stretch_of)
        loads = _MinibatchLoads.of(plans)
        counted_NDM = loads.counted_NDM
        stretch_NDM = counted_NDM * stretch_of(counted_NDM.shape[2])
        work = Work(
            counts_ND=loads.counts_ND,
            factors_NDMF=np.stack([loads.squared_tokens_NDM, loads.tokens_NDM, np.ones(counted_NDM.shape)], axis=-1)
            * stretch_NDM[..., None],
            coefficients_FV=resolved.coefficients_FV,
        )
        engine = find_engine(engine_name)
        outcome = engine(work, self.case.schedule, recorded_ranks=_RECORDED_RANKS if first_minibatch == 0 else 0)
        padding_NDM = counted_NDM & ~loads.holds_samples_NDM
        padding_s_ND = (padding_NDM * stretch_NDM).sum(axis=2) * resolved.cost.constant
        self._totals.add(outcome, padding_s_ND=padding_s_ND)
        if first_minibatch == 0:
            self._spans = outcome.spans
        self._count(plans, lengths_NS, loads, padding=int(padding_NDM.sum()))

    def _as_run(self, plans: list[MinibatchPlan], stretch_of: StretchOf) -> list[MinibatchPlan]:
        """Plans with padding, if the case asks for it, and with a rank for every microbatch that is pulled."""
        if self.case.case.pad:
            plans = [replace(planned, plan=planned.plan.padded()) for planned in plans]
        ranks_of = ranks_of_pulled(plans, self.case.schedule, self._resolved.coefficients_FV, stretch_of=stretch_of)
        return [
            replace(planned, plan=planned.plan.assigned(ranks)) for planned, ranks in zip(plans, ranks_of, strict=True)
        ]

    def _count(self, plans: list[MinibatchPlan], lengths_NS: IntArray, loads: _MinibatchLoads, *, padding: int) -> None:
        self._samples_in += lengths_NS.size
        self._tokens_in += int(lengths_NS.sum())
        self._dropped_samples += sum(len(planned.plan.dropped) for planned in plans)
        self._dropped_tokens += sum(planned.dropped_tokens for planned in plans)
        self._truncated_tokens += sum(planned.truncated_tokens for planned in plans)
        self._microbatches += int(loads.counts_ND.sum())
        self._padding += padding
        self._model_flops += self._resolved.model.model_flops(
            tokens=float(loads.tokens_NDM.sum()), squared_tokens=float(loads.squared_tokens_NDM.sum())
        )
        self._largest_microbatch_tokens = max(self._largest_microbatch_tokens, int(loads.tokens_NDM.max(initial=0)))

    def result(self, bounds_s_N: FloatArray, *, baseline: _CaseRun) -> CaseResult:
        """Everything about the case, once all minibatches have been run."""
        resolved, case = self._resolved, self.case.case
        minibatch_s_N = self._totals.minibatch_s_N
        ranks = resolved.scenario.cluster.ranks
        speedup, interval = paired_speedup(
            baseline._totals.minibatch_s_N, minibatch_s_N, seed=resolved.scenario.workload.seed
        )
        return CaseResult(
            label=self.case.label,
            sync=case.sync,
            policy=self.case.policy.name,
            overlap=self.case.schedule.overlap,
            pad=case.pad,
            minibatch_s_N=minibatch_s_N,
            lower_bound_s_N=bounds_s_N,
            fractions=self._totals.fractions(),
            conservation=Conservation(
                samples=self._samples_in,
                dropped_samples=self._dropped_samples,
                tokens=self._tokens_in,
                dropped_tokens=self._dropped_tokens,
                truncated_tokens=self._truncated_tokens,
            ),
            mean_microbatches_per_rank=self._microbatches / (ranks * len(minibatch_s_N)),
            padding_share=self._padding / max(self._microbatches, 1),
            mfu=self._model_flops / (resolved.gpu.peak_flops_per_s * ranks * float(minibatch_s_N.sum())),
            memory=memory_result(resolved, on_demand=case.sync == "odc", tokens=self._largest_microbatch_tokens),
            speedup=speedup,
            speedup_ci95=interval,
            ranks=ranks,
            spans=self._spans,
        )
