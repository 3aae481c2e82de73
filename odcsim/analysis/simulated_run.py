"""Run folders of a scenario's cases as the simulator sees them, in the form of recorded ones. Seconds, bytes, tokens.

What reads recorded runs can be tried on them without a runtime, and tested: what went in is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim import __version__
from odcsim.arrays import FloatArray, IntArray
from odcsim.engines import Engine, find_engine
from odcsim.engines.pulling import ranks_of_pulled
from odcsim.engines.timeline import SpanName
from odcsim.minibatches import draw_lengths, draw_slowdowns, plan_of_case
from odcsim.plan import MicrobatchLoads
from odcsim.resolve import ResolvedCase, ResolvedScenario, resolve
from odcsim.resolve.case_schedules import collective_transport
from odcsim.scenario import Scenario
from odcsim.schedule import ROOT_UNIT, Work
from odcsim.trace_format import (
    ClockInfo,
    PlannedLengths,
    PulledPositions,
    RankMemory,
    RunInfo,
    TraceSpan,
    case_folder,
    planned_lengths,
    positions_pulled,
    simulated_spans_to_trace,
    write_run,
)

__all__ = ["write_simulated_runs"]

# Keeps the noise apart from whatever else is drawn from the same seed.
_NOISE_KEY = 0x2015E


def write_simulated_runs(
    scenario: Scenario, folder: Path, *, base_folder: Path, file: Path | None = None, noise: float = 0.0, seed: int = 0
) -> tuple[Path, ...]:
    """Simulate every case of a scenario and write a run folder of each: all ranks, every minibatch.

    Args:
        scenario: a valid scenario.
        folder: where the run folders go, named as `odcrt launch --record` names them.
        base_folder: what the scenario's paths are relative to.
        file: the scenario's file, for messages.
        noise: relative standard deviation of each microbatch's compute around what it costs; the same in every case.
        seed: of the noise. Another one gives a repeat, as of a machine that is never twice the same.

    Returns:
        The run folders, in the order of cases.

    Raises:
        InputError: the scenario names something that is not there or cannot be run, or a folder cannot be written to.
    """
    resolved = resolve(scenario, base_folder=base_folder, file=file)
    lengths_NS = draw_lengths(resolved, file=file)
    folders = []
    for position, case in enumerate(resolved.cases):
        run = _SimulatedCase(resolved, case, noise=noise, seed=seed)
        for minibatch, lengths_S in enumerate(lengths_NS):
            run.add(minibatch, lengths_S, file=file)
        folders.append(case_folder(folder, position, case.label))
        run.write(folders[-1])
    return tuple(folders)


@dataclass(frozen=True)
class _Minibatch:
    """What is kept of one: what each rank ran, and what of it was pulled."""

    plan: PlannedLengths
    pulled: PulledPositions


class _SimulatedCase:
    """One case, minibatch by minibatch."""

    def __init__(self, resolved: ResolvedScenario, case: ResolvedCase, *, noise: float, seed: int) -> None:
        self._resolved = resolved
        self._case = case
        self._noise = noise
        self._seed = seed
        self._engine_name = "recurrence" if case.schedule.shared_links is None else "events"
        self._engine: Engine = find_engine(self._engine_name)
        self._now_s = 0.0
        self._minibatches: list[_Minibatch] = []
        self._spans_of_ranks: list[list[TraceSpan]] = [[] for _ in range(self._ranks)]

    @property
    def _ranks(self) -> int:
        return self._resolved.scenario.cluster.ranks

    @property
    def _on_demand(self) -> bool:
        return self._case.case.sync == "odc"

    def add(self, minibatch: int, lengths_S: IntArray, *, file: Path | None) -> None:
        """Plan and simulate the next minibatch."""
        planned = plan_of_case(self._resolved, self._case, lengths_S, minibatch=minibatch, file=file)
        padded = planned.plan.padded() if self._case.case.pad else planned.plan
        (rank_of_pulled,) = ranks_of_pulled(
            [planned],
            self._case.schedule,
            self._resolved.coefficients_FV,
            stretch_of=lambda microbatches: self._stretch_DM(minibatch, microbatches)[None],
        )
        plan = padded.assigned(rank_of_pulled)
        loads, lengths = plan.loads(planned.lengths_S), planned_lengths(plan, planned.lengths_S)
        outcome = self._engine(self._work(loads, minibatch), self._case.schedule, recorded_ranks=self._ranks)
        traced = simulated_spans_to_trace(
            outcome.spans, plan=lengths, minibatch=minibatch, start_s=self._now_s, bytes_of=self._bytes_of()
        )
        for rank, spans in enumerate(traced):
            self._spans_of_ranks[rank] += spans
        self._now_s += float(outcome.minibatch_s_N[0])
        self._minibatches.append(_Minibatch(lengths, positions_pulled(rank_of_pulled, ranks=self._ranks)))

    def _work(self, loads: MicrobatchLoads, minibatch: int) -> Work:
        counted_DM = np.arange(loads.tokens_DM.shape[1]) < loads.counts_D[:, None]
        stretch_DM = counted_DM * self._stretch_DM(minibatch, counted_DM.shape[1])
        factors_DMF = np.stack([loads.squared_tokens_DM, loads.tokens_DM, np.ones(counted_DM.shape)], axis=-1)
        return Work(loads.counts_D[None], (factors_DMF * stretch_DM[..., None])[None], self._resolved.coefficients_FV)

    def _stretch_DM(self, minibatch: int, microbatches: int) -> FloatArray:
        """How many times longer each rank's m-th microbatch takes; more microbatches add to what fewer give."""
        slowdowns_DM = draw_slowdowns(self._resolved, minibatch=minibatch, microbatches=microbatches)
        stretch_DM = slowdowns_DM / self._resolved.speeds_D[:, None]
        if self._noise:
            entropy = np.random.SeedSequence([self._seed, _NOISE_KEY, minibatch])
            drawn_MD = np.random.Generator(np.random.PCG64(entropy)).standard_normal(stretch_DM.T.shape)
            # Times cannot be negative; the mean stays what it costs.
            stretch_DM = stretch_DM * np.exp(self._noise * drawn_MD.T - self._noise**2 / 2)
        return stretch_DM

    def _bytes_of(self) -> Callable[[SpanName, int], int]:
        """Bytes that a transfer moves to or from a rank: all of the unit but the rank's own shard."""
        resolved, ranks = self._resolved, self._ranks
        element_bytes = {
            "gather": resolved.gather_bytes(on_demand=self._on_demand),
            "scatter_accumulate": resolved.memory.reduce_bytes,
        }

        def bytes_of(name: SpanName, unit: int) -> int:
            model = resolved.model
            parameters = model.root_parameters if unit == ROOT_UNIT else model.parameters_per_block
            return round(parameters * element_bytes[name] * (ranks - 1) / ranks)

        return bytes_of

    def write(self, folder: Path) -> None:
        """Write the run folder."""
        scenario, case = self._resolved.scenario, self._case
        cluster = scenario.cluster
        info = RunInfo(
            engine=self._engine_name,
            scenario=self._resolved.to_document(),
            case={
                "name": case.label,
                "sync": case.case.sync,
                "policy": case.policy.name,
                "pad": case.case.pad,
                "overlap": case.schedule.overlap,
                "transport": "shm" if self._on_demand else collective_transport(scenario),
                "compute": "simulated",
            },
            world_size=self._ranks,
            hosts=tuple(f"node-{rank // cluster.gpus_per_node}" for rank in range(self._ranks)),
            clock=ClockInfo.shared(self._ranks, name="simulated"),
            versions={"odcsim": __version__},
            window=range(len(self._minibatches)),
            plans={minibatch: found.plan for minibatch, found in enumerate(self._minibatches)},
            pulled={minibatch: found.pulled for minibatch, found in enumerate(self._minibatches) if any(found.pulled)},
            memory=tuple(self._memory(rank) for rank in range(self._ranks)),
        )
        write_run(folder, info, self._spans_of_ranks)

    def _memory(self, rank: int) -> RankMemory:
        """By formula: the peak of the fullest microbatch so far; what `odc` shares, apart."""
        peak_bytes, peaks_bytes, shared_bytes = 0, [], 0.0
        for found in self._minibatches:
            first, *later = [sum(lengths) for lengths in found.plan[rank]] or [0]
            for tokens, accumulates in ((first, False), *([(max(later), True)] if later else [])):
                parts = self._resolved.memory.parts_bytes(
                    tokens=tokens,
                    on_demand=self._on_demand,
                    published_bytes=self._resolved.published_bytes,
                    gather_bytes=self._resolved.gather_bytes(on_demand=self._on_demand),
                )
                shared_bytes = parts.pop("published_copy", 0.0) + parts.pop("accumulator", 0.0)
                # Gradients come with the first backward of a minibatch, as activations go.
                if parts["activations"] > 0 and not accumulates:
                    parts.pop("gradients")
                peak_bytes = max(peak_bytes, round(sum(parts.values())))
            peaks_bytes.append(peak_bytes)
        return RankMemory(0, round(shared_bytes), tuple(peaks_bytes))
