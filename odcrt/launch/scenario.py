"""`odcrt launch SCENARIO.yaml`: every case planned here, run by ranks, and put together to a result."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcrt.launch.checks import remarks_on, require_runnable, settings_without_effect
from odcrt.launch.outcome import GRACE_BEYOND_DEADLINE_S, log_files, report_failure
from odcrt.launch.progress import Progress, progress_of
from odcrt.launching import Prefix, run_ranks
from odcrt.launching.output import standard_streams
from odcrt.tracing.versions import describe_versions
from odcrt.tracing.window import DEFAULT_WINDOW
from odcrt.workload.job import (
    CaseJob,
    CaseMeasurement,
    Job,
    TrainingSettings,
    Transport,
    read_measurement,
    write_job,
)
from odcrt.workload.measure import CaseTimes, case_result, measured_bounds_s
from odcrt.workload.memory_guard import require_memory, total_bytes
from odcrt.workload.minibatches import PlannedCase, plan_case
from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.lengths import describe_lengths
from odcsim.lower_bounds import lower_bounds_s_CN
from odcsim.minibatches import draw_lengths
from odcsim.resolve import ResolvedCase, ResolvedScenario, resolve
from odcsim.results import RunResult
from odcsim.scenario import Scenario
from odcsim.trace_format import (
    ClockInfo,
    PulledPositions,
    RunInfo,
    TraceSpan,
    case_folder,
    clear_run,
    planned_lengths,
    read_run,
    write_run_info,
)

__all__ = ["ScenarioOptions", "run_scenario"]

_SHOWN_LENGTHS = 200_000


@dataclass(frozen=True)
class ScenarioOptions:
    """How a scenario is run.

    Attributes:
        record: folder for a trace of every case; None for none.
        window: minibatches to record.
        log_folder: keeps what every rank prints; None for a temporary one.
        prefix: which ranks' lines get one.
        deadline_s: longest wait of ranks for each other.
        progress: told how far the run is.
    """

    record: Path | None = None
    window: range = DEFAULT_WINDOW
    log_folder: Path | None = None
    prefix: Prefix = Prefix.OTHERS
    deadline_s: float = 60.0
    progress: Progress | None = None


def run_scenario(scenario: Scenario, *, file: Path, options: ScenarioOptions) -> RunResult | int:
    """Run every case of a scenario on processes of this host, one case after the other.

    Args:
        scenario: a valid scenario.
        file: its file, which its paths are relative to.
        options: how.

    Returns:
        The result; or an exit code, where ranks failed or a signal came, and all is told on standard error.

    Raises:
        InputError: the scenario cannot be run, or not here; nothing has been started.
    """
    require_runnable(scenario, file=file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        resolved = resolve(scenario, base_folder=file.parent, file=file)
        lengths_NS = draw_lengths(resolved, file=file)
    planned = [plan_case(resolved, case, lengths_NS, file=file) for case in resolved.cases]
    require_memory(resolved, planned, file=file)
    job = _job(resolved, planned, options)
    for case in job.cases:
        if case.record_folder is not None:
            clear_run(case.record_folder)
    with tempfile.TemporaryDirectory(prefix="odcrt-") as name, log_files(options.log_folder) as logs:
        folder = Path(name)
        write_job(folder, job)
        _, errors = standard_streams()
        run = run_ranks(
            ["-m", "odcrt.workload.training", str(folder)],
            ranks=scenario.cluster.ranks,
            grace_s=options.deadline_s + GRACE_BEYOND_DEADLINE_S,
            folder=folder,
            log_folder=logs.folder,
            prefix=options.prefix,
            # Standard output is for the result.
            streams=(errors, errors),
            progress=progress_of(folder, job, options.progress),
        )
        if code := report_failure(run, logs):
            return code
        measured_CD = [
            [read_measurement(folder, case=position, rank=rank) for rank in range(scenario.cluster.ranks)]
            for position in range(len(job.cases))
        ]
    drawing_remarks = dict.fromkeys(str(warning.message) for warning in caught)
    return _result(resolved, planned, job, lengths_NS, measured_CD, remarks=tuple(drawing_remarks))


def _transport(resolved: ResolvedScenario, case: ResolvedCase) -> Transport:
    if case.case.sync == "odc":
        return "shm"
    return "gloo" if resolved.scenario.runtime.transport == "gloo" else "collective"


def _job(resolved: ResolvedScenario, planned: Sequence[PlannedCase], options: ScenarioOptions) -> Job:
    scenario = resolved.scenario
    minibatches = range(scenario.workload.minibatches)
    window = range(options.window.start, min(options.window.stop, len(minibatches)))
    if options.record is not None and not window:
        raise InputError(
            f"no such minibatch; the scenario has {len(minibatches)}, from 0",
            key="--window",
            value=f"{options.window.start}:{len(options.window)}",
        )
    return Job(
        shape=resolved.model,
        training=TrainingSettings(**dict(scenario.training)),
        is_emulated=scenario.runtime.compute == "emulated",
        coefficients_FV=resolved.coefficients_FV,
        seed=scenario.workload.seed,
        deadline_s=options.deadline_s,
        cases=tuple(
            CaseJob(
                label=case.label,
                sync=case.case.sync,
                transport=_transport(resolved, case),
                microbatches_NDM=plan.microbatches_NDM,
                queues_N=plan.queues_N,
                record_folder=None
                if options.record is None
                else case_folder(options.record.absolute(), position, case.label),
                # Without a folder, for the report's timeline.
                window=range(1) if options.record is None else window,
            )
            for position, (case, plan) in enumerate(zip(resolved.cases, planned, strict=True))
        ),
    )


def _result(
    resolved: ResolvedScenario,
    planned: Sequence[PlannedCase],
    job: Job,
    lengths_NS: IntArray,
    measured_CD: Sequence[Sequence[CaseMeasurement]],
    *,
    remarks: Sequence[str],
) -> RunResult:
    scenario = resolved.scenario
    times_C = [CaseTimes.of(measured_D) for measured_D in measured_CD]
    bounds_s_CN = (
        lower_bounds_s_CN(resolved, lengths_NS)
        if job.is_emulated
        else np.broadcast_to(measured_bounds_s(times_C), (len(times_C), len(lengths_NS)))
    )
    document = resolved.to_document()
    cases = []
    for position, case in enumerate(resolved.cases):
        measured_D = measured_CD[position]
        run, pulled_N = _as_run(planned[position], measured_D)
        spans_D: Sequence[Sequence[TraceSpan]] = [measured.spans for measured in measured_D]
        folder = job.cases[position].record_folder
        if folder is not None:
            info = _run_info(resolved, run, pulled_N, job.cases[position], measured_D, document)
            write_run_info(folder, info)
            spans_D = read_run(folder).spans_of_ranks
        cases.append(
            case_result(
                resolved,
                case,
                run,
                times_C[position],
                measured_D,
                baseline=times_C[0],
                bounds_s_N=bounds_s_CN[position],
                spans_D=spans_D,
                capacity_bytes=total_bytes() / scenario.cluster.ranks,
            )
        )
    return RunResult(
        name=scenario.name,
        scenario=document,
        engine="measured",
        lengths=dict(describe_lengths(lengths_NS.reshape(-1))),
        cases=tuple(cases),
        warnings=(*remarks_on(scenario), *resolved.warnings, *settings_without_effect(scenario), *remarks),
        sampled_lengths=np.asarray(lengths_NS.reshape(-1)[:_SHOWN_LENGTHS]),
    )


def _as_run(planned: PlannedCase, measured_D: Sequence[CaseMeasurement]) -> tuple[PlannedCase, list[PulledPositions]]:
    """What each rank ran of a case, and, if ranks pulled it, from where in the queue of each minibatch."""
    if not planned.queues_N:
        return planned, []
    minibatches = zip(*(measured.minibatches for measured in measured_D), strict=True)
    pulled_N = [tuple(times.pulled for times in times_D) for times_D in minibatches]
    return planned.as_pulled(pulled_N), pulled_N


def _run_info(
    resolved: ResolvedScenario,
    run: PlannedCase,
    pulled_N: Sequence[PulledPositions],
    case: CaseJob,
    measured_D: Sequence[CaseMeasurement],
    document: dict[str, object],
) -> RunInfo:
    scenario = resolved.scenario
    ranks = scenario.cluster.ranks
    policy = next(found.policy.name for found in resolved.cases if found.label == case.label)
    processors = tuple(measured.processors for measured in measured_D)
    memory = tuple(measured.rank_memory for measured in measured_D if measured.rank_memory is not None)
    return RunInfo(
        engine="measured",
        scenario=document,
        case={
            "name": case.label,
            "sync": case.sync,
            "policy": policy,
            "pad": next(found.case.pad for found in resolved.cases if found.label == case.label),
            "overlap": "none",
            "transport": case.transport,
            "compute": scenario.runtime.compute,
        },
        world_size=ranks,
        hosts=tuple(measured.host for measured in measured_D),
        clock=ClockInfo.shared(ranks, origin_s=measured_D[0].origin_s),
        versions=describe_versions(),
        window=case.window,
        plans={
            minibatch: planned_lengths(run.plans[minibatch].plan, run.plans[minibatch].lengths_S)
            for minibatch in case.window
        },
        counters=tuple(measured.counters for measured in measured_D),
        processors=processors if all(processors) else (),
        memory=memory if len(memory) == ranks else (),
        pulled={minibatch: pulled_N[minibatch] for minibatch in case.window} if pulled_N else {},
    )
