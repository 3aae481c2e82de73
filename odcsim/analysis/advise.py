"""Which sync, policy and knobs suit a scenario's workload, by how much, why, and what if the cost model is wrong.

Everything is simulated on the scenario's own minibatches, and everything is compared on the same samples: candidates on
all minibatches; knobs and wrong models on the first ones. A minibatch of another number of samples is compared with
those minibatches that hold the same samples together.

Legend: N minibatches, S samples of one, T truths, C candidates.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np

from odcsim.analysis.advice import Advice, Advised, KnobResult, SyncComparison
from odcsim.analysis.advice_candidates import CAP_KEY, Candidate, Knob, LeftOut, knobs_of, policy_candidates
from odcsim.analysis.advice_choice import Choice, Option, choose, fastest
from odcsim.analysis.advice_gain import Gain, blocks_s, gain_over
from odcsim.analysis.advice_ladder import ladder_of
from odcsim.analysis.advice_limits import Limits, LongestSequence, limits_of, lockstep_bounds_s, longest_sequence
from odcsim.analysis.advice_regret import Regret, Truth, truths_of
from odcsim.analysis.advice_runs import Simulations
from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import InputError
from odcsim.memory_advice import memory_result
from odcsim.minibatches import draw_lengths
from odcsim.resolve import ResolvedScenario, resolve
from odcsim.results import CaseResult, MemoryResult
from odcsim.scenario import Case, Scenario
from odcsim.schedule import Sync
from odcsim.simulation import Progress

__all__ = ["advise"]

# Enough for knobs and wrong models, whose gains need no third digit.
_FEW_MINIBATCHES = 40


def advise(
    scenario: Scenario, *, base_folder: Path, file: Path | None = None, progress: Progress | None = None
) -> Advice:
    """Advise on a scenario.

    Args:
        scenario: a valid scenario; its first case is what is run now.
        base_folder: what its paths are relative to.
        file: the scenario's file, for messages.
        progress: called again and again with how much is done, and of how much.

    Raises:
        InputError: the scenario names something that is not there, or cannot be run.
    """
    with warnings.catch_warnings():
        # Simulations tell them.
        warnings.simplefilter("ignore", UserWarning)
        resolved = resolve(scenario, base_folder=base_folder, file=file)
        lengths_NS = draw_lengths(resolved, file=file)
    minibatches, samples = lengths_NS.shape
    few, group_size = min(minibatches, _FEW_MINIBATCHES), resolved.source.group_size
    candidates = policy_candidates(scenario, group_size=group_size)
    knobs = knobs_of(scenario, longest_tokens=int(lengths_NS.max()), group_size=group_size, minibatches=few)
    truths = truths_of(scenario)
    beside = few * (2 * len(knobs) + len(truths) * len(candidates))
    simulations = Simulations(
        scenario,
        base_folder=base_folder,
        file=file,
        progress=progress,
        samples=samples * (minibatches * len(candidates) + beside),
    )
    result = simulations.of([candidate.case for candidate in candidates], minibatches=minibatches, settings={})
    field = _Field.of(candidates, result.cases, seed=scenario.workload.seed)
    found, refused = _turned(knobs, field, simulations, resolved, minibatches=few)
    options = _options(field, found)
    advised = _advised(field, found, options)
    regret = _regret(truths, field, simulations, advised=advised, minibatches=few)
    longest, first_NS = longest_sequence(resolved, lengths_NS), lengths_NS[:few]
    return Advice(
        scenario=resolved.to_document(),
        result=replace(result, cases=field.cases, warnings=simulations.warnings),
        candidates=candidates,
        advised=advised,
        syncs=_compared_syncs((*field.fitting, *options), seed=field.seed),
        own_syncs=_compared_syncs(field.fitting, seed=field.seed),
        ladder=ladder_of(candidates, field.cases, best=field.best, knobs=found, advised=advised, seed=field.seed),
        knobs=found,
        baseline_limits=_limits(field.cases[0], None, longest, resolved, first_NS),
        advised_limits=_limits(advised.case, advised.option.knob, longest, resolved, first_NS),
        longest=longest,
        regret=regret,
        left_out=(*_not_fitting(field.cases), *refused),
        few_minibatches=few,
        warnings=simulations.warnings,
    )


@dataclass(frozen=True, eq=False)
class _Field:
    """The candidates on the scenario's own workload.

    Attributes:
        candidates: the first is the baseline.
        cases: what came of each.
        options: the same, to choose from.
        fitting: those that fit in memory.
        choice: among these, or among all where none fits.
        best: position of the best candidate of each sync: that choice's, or one made in the same way.
        wanted: the same, whether it fits in memory or not: a tighter cap may make it fit.
        seed: of the resampling for intervals.
    """

    candidates: tuple[Candidate, ...]
    cases: tuple[CaseResult, ...]
    options: tuple[Option, ...]
    fitting: tuple[Option, ...]
    choice: Choice
    best: Mapping[Sync, int]
    wanted: Mapping[Sync, int]
    seed: int

    @classmethod
    def of(cls, candidates: tuple[Candidate, ...], results: Sequence[CaseResult], *, seed: int) -> _Field:
        cases = tuple(replace(case, label=candidate.label) for case, candidate in zip(results, candidates, strict=True))
        options = tuple(
            Option(candidate, case.minibatch_s_N) for candidate, case in zip(candidates, cases, strict=True)
        )
        fitting = tuple(option for option, case in zip(options, cases, strict=True) if case.memory.fits)
        choice = choose(fitting or options, seed=seed)
        best: dict[Sync, int] = {}
        wanted: dict[Sync, int] = {}
        for sync in get_args(Sync):
            of_sync = [option for option in options if option.candidate.case.sync == sync]
            if of_sync:
                in_memory = [option for option in of_sync if option in fitting]
                own = choice.option if choice.option in of_sync else choose(in_memory or of_sync, seed=seed).option
                best[sync] = options.index(own)
                wanted[sync] = options.index(choose(of_sync, seed=seed).option)
        return cls(candidates, cases, options, fitting, choice, best, wanted, seed)


def _turned(
    knobs: Sequence[Knob], field: _Field, simulations: Simulations, resolved: ResolvedScenario, *, minibatches: int
) -> tuple[tuple[KnobResult, ...], tuple[LeftOut, ...]]:
    """Each knob on the best candidates of each sync, and those knobs that the scenario cannot be run with."""
    found: list[KnobResult] = []
    refused: list[LeftOut] = []
    for knob in knobs:
        positions = [*field.best.values(), *(field.wanted.values() if knob.kind == "cap" else ())]
        turned = {position: _with_overlap(field.candidates[position].case, knob) for position in positions}
        if knob.overlap is not None:
            # It may be what the candidate has.
            turned = {
                position: case
                for position, case in turned.items()
                if field.candidates[position].case.overlap != knob.overlap
            }
        if not turned:
            continue
        try:
            result = simulations.of(
                list(turned.values()), minibatches=int(minibatches / knob.samples_factor), settings=knob.settings
            )
        except InputError as error:
            refused.append(LeftOut(knob.label, error.problem))
            continue
        for position, case in zip(turned, result.cases, strict=True):
            own_s_N, baseline_s_N = (field.cases[other].minibatch_s_N[:minibatches] for other in (position, 0))
            found.append(
                KnobResult(
                    position=position,
                    knob=knob,
                    case=replace(
                        case,
                        label=f"{field.candidates[position].label}, {knob.label}",
                        memory=_memory(case, knob, resolved),
                    ),
                    gain=_knob_gain(case.minibatch_s_N, own_s_N, knob, seed=field.seed),
                    total=_knob_gain(case.minibatch_s_N, baseline_s_N, knob, seed=field.seed),
                )
            )
    return tuple(found), tuple(refused)


def _memory(case: CaseResult, knob: Knob, resolved: ResolvedScenario) -> MemoryResult:
    """Peak memory; under another cap that of a full microbatch, which may not have come up in so few minibatches."""
    if knob.kind != "cap":
        return case.memory
    tokens = max(knob.settings[CAP_KEY], case.memory.largest_microbatch_tokens)
    return memory_result(resolved, on_demand=case.sync == "odc", tokens=tokens)


def _with_overlap(case: Case, knob: Knob) -> Case:
    return case if knob.overlap is None else case.model_copy(update={"overlap": knob.overlap})


def _knob_gain(knob_s_N: FloatArray, other_s_N: FloatArray, knob: Knob, *, seed: int) -> Gain:
    """The gain of a knob, over blocks of minibatches that hold the same samples."""
    factor = knob.samples_factor
    # Samples are drawn one after the other: so many minibatches hold what one of the others does.
    knob_s_B, other_s_B = blocks_s(knob_s_N, size=factor.denominator), blocks_s(other_s_N, size=factor.numerator)
    return gain_over(knob_s_B, other_s_B, seed=seed)


def _options(field: _Field, knobs: Sequence[KnobResult]) -> tuple[Option, ...]:
    """What fits in memory and trains the same: the best candidate of each sync, and caps that are worth a change."""
    plain = [field.options[position] for position in field.best.values() if field.cases[position].memory.fits]
    capped = [
        Option(field.candidates[result.position], result.case.minibatch_s_N, result.knob)
        for result in knobs
        if result.knob.kind == "cap"
        and result.case.memory.fits
        and (result.gain.matters or not field.cases[result.position].memory.fits)
    ]
    return (*plain, *capped)


def _advised(field: _Field, knobs: Sequence[KnobResult], options: Sequence[Option]) -> Advised:
    # Where no knob is worth a change, what was chosen from all candidates stands.
    option = choose(options, seed=field.seed).option if any(option.knob for option in options) else field.choice.option
    position = field.candidates.index(option.candidate)
    case, total = field.cases[position], gain_over(option.seconds_N, field.cases[0].minibatch_s_N, seed=field.seed)
    if option.knob is not None:
        case = next(found.case for found in knobs if found.position == position and found.knob is option.knob)
    return Advised(
        position=position,
        option=option,
        case=case,
        total=total,
        plain=field.options.index(field.choice.option),
        as_good=tuple(other.label for other in field.choice.as_good if other is not field.choice.option),
        fastest=field.choice.fastest.label,
    )


def _compared_syncs(options: Sequence[Option], *, seed: int) -> SyncComparison | None:
    """The fastest option of either sync."""
    found: dict[Sync, Option] = {}
    for sync in get_args(Sync):
        of_sync = [option for option in options if option.candidate.case.sync == sync]
        if not of_sync:
            return None
        found[sync] = fastest(of_sync)
    gain = gain_over(found["odc"].seconds_N, found["fsdp"].seconds_N, seed=seed)
    return SyncComparison(found["fsdp"], found["odc"], gain)


def _regret(
    truths: tuple[Truth, ...], field: _Field, simulations: Simulations, *, advised: Advised, minibatches: int
) -> Regret:
    """Of the advised candidate and all others that fit in memory, with the advised knob, or of all where none fits."""
    knob = advised.option.knob
    cases, settings = [candidate.case for candidate in field.candidates], {} if knob is None else knob.settings
    as_modelled = list(field.cases)
    if settings:
        as_modelled = list(simulations.of(cases, minibatches=minibatches, settings=settings).cases)
    positions = tuple(
        position
        for position, case in enumerate(as_modelled)
        if case.memory.fits or not advised.fits or position == advised.position
    )
    seconds_TCN = [np.stack([as_modelled[position].minibatch_s_N[:minibatches] for position in positions])]
    for truth in truths[1:]:
        result = simulations.of(
            [cases[position] for position in positions],
            minibatches=minibatches,
            settings={**settings, **truth.settings},
        )
        seconds_TCN.append(np.stack([case.minibatch_s_N for case in result.cases]))
    return Regret(truths, positions, knob, np.stack(seconds_TCN), field.seed)


def _limits(
    case: CaseResult, knob: Knob | None, longest: LongestSequence, resolved: ResolvedScenario, lengths_NS: IntArray
) -> Limits:
    if case.sync == "odc":
        return limits_of(case, longest, lockstep_s_N=None)
    cap_tokens = resolved.scenario.workload.max_tokens
    if knob is not None:
        cap_tokens = knob.settings.get(CAP_KEY, cap_tokens)
    return limits_of(case, longest, lockstep_s_N=lockstep_bounds_s(resolved, lengths_NS, cap_tokens=cap_tokens))


def _not_fitting(cases: Sequence[CaseResult]) -> list[LeftOut]:
    return [LeftOut(case.label, case.memory.advice) for case in cases if not case.memory.fits]
