"""Which sync, policy and knobs suit a scenario's workload, by how much, why, and what if the cost model is wrong.

Everything is simulated on the scenario's own minibatches, and everything is compared on the same samples: candidates on
all minibatches; knobs and wrong models on the first ones. A minibatch of another number of samples is compared with
those minibatches that hold the same samples together.

Legend: N minibatches, S samples of one, T truths, C candidates.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from odcsim.analysis.advice import Advice, Advised, KnobResult, SyncComparison
from odcsim.analysis.advice_candidates import CAP_KEY, Knob, LeftOut, knobs_of, policy_candidates
from odcsim.analysis.advice_choice import Option, choose, fastest
from odcsim.analysis.advice_field import Field
from odcsim.analysis.advice_gain import gain_over
from odcsim.analysis.advice_knobs import KnobTrials, best_pair
from odcsim.analysis.advice_ladder import ladder_of
from odcsim.analysis.advice_limits import Limits, LongestSequence, limits_of, longest_sequence
from odcsim.analysis.advice_regret import Regret, Truth, truths_of
from odcsim.analysis.advice_runs import Simulations
from odcsim.arrays import IntArray
from odcsim.lower_bounds import any_sync_bounds_s_N
from odcsim.minibatches import draw_lengths
from odcsim.plan_cache import PlanCache
from odcsim.resolve import ResolvedScenario, resolve
from odcsim.results import CaseResult
from odcsim.scenario import Scenario
from odcsim.schedule import Sync
from odcsim.simulation import Progress

__all__ = ["advise"]

# Enough for knobs and wrong models, whose gains need no third digit.
_FEW_MINIBATCHES = 40


def advise(
    scenario: Scenario,
    *,
    base_folder: Path,
    file: Path | None = None,
    progress: Progress | None = None,
    plans: PlanCache | None = None,
) -> Advice:
    """Advise on a scenario.

    Args:
        scenario: a valid scenario; its first case is what is run now.
        base_folder: what its paths are relative to.
        file: the scenario's file, for messages.
        progress: called again and again with how much is done, and of how much.
        plans: plans that were made already, of this scenario or one like it; None: plans are shared by what is
            simulated here alone.

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
    # Of pairs of knobs, one on the best candidate of each sync: how many there will be is not known yet.
    beside = few * (2 * (len(knobs) + 1) + len(truths) * len(candidates))
    simulations = Simulations(
        scenario,
        base_folder=base_folder,
        file=file,
        progress=progress,
        samples=samples * (minibatches * len(candidates) + beside),
        # Knobs and wrong models plan what candidates planned.
        plans=PlanCache(first_samples=few * samples) if plans is None else plans,
    )
    result = simulations.of([candidate.case for candidate in candidates], minibatches=minibatches, settings={})
    field = Field.of(candidates, result.cases, seed=scenario.workload.seed)
    trials = KnobTrials(field, simulations, resolved, minibatches=few)
    found, refused = trials.alone(knobs)
    options = _options(field, found)
    advised = _advised(field, found, options)
    pairs, refused_pairs = trials.together(found, advised=advised)
    pair = best_pair(pairs, position=advised.position)
    regret = _regret(truths, field, simulations, advised=advised, minibatches=few)
    longest = longest_sequence(resolved, lengths_NS)
    return Advice(
        scenario=resolved.to_document(),
        result=replace(result, cases=field.cases, warnings=simulations.warnings),
        candidates=candidates,
        advised=advised,
        syncs=_compared_syncs((*field.fitting, *options), seed=field.seed),
        own_syncs=_compared_syncs(field.fitting, seed=field.seed),
        ladder=ladder_of(field, knobs=found, pair=pair, advised=advised),
        knobs=found,
        pairs=pairs,
        best_pair=pair,
        baseline_limits=_limits(field.cases[0], None, longest, resolved, lengths_NS),
        advised_limits=_limits(advised.case, advised.option.knob, longest, resolved, lengths_NS),
        longest=longest,
        regret=regret,
        left_out=(*_not_fitting(field.cases), *refused, *refused_pairs),
        few_minibatches=few,
        warnings=simulations.warnings,
    )


def _options(field: Field, knobs: Sequence[KnobResult]) -> tuple[Option, ...]:
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


def _advised(field: Field, knobs: Sequence[KnobResult], options: Sequence[Option]) -> Advised:
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
    truths: tuple[Truth, ...], field: Field, simulations: Simulations, *, advised: Advised, minibatches: int
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
        return limits_of(case, longest, any_sync_s_N=None)
    cap_tokens = resolved.scenario.workload.max_tokens
    if knob is not None:
        cap_tokens = knob.settings.get(CAP_KEY, cap_tokens)
    lengths_NS = lengths_NS[: len(case.minibatch_s_N)]
    return limits_of(case, longest, any_sync_s_N=any_sync_bounds_s_N(resolved, lengths_NS, cap_tokens=cap_tokens))


def _not_fitting(cases: Sequence[CaseResult]) -> list[LeftOut]:
    return [LeftOut(case.label, case.memory.advice) for case in cases if not case.memory.fits]
