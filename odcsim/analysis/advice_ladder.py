"""The ladder from what is run now to the best that was found: a better policy, the other sync, then knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odcsim.analysis.advice import Advised, KnobResult, Step, StepKind
from odcsim.analysis.advice_candidates import Candidate, KnobKind
from odcsim.analysis.advice_gain import gain_over
from odcsim.results import CaseResult
from odcsim.schedule import Sync

__all__ = ["ladder_of"]

# What trains the same comes first.
_KNOBS: tuple[KnobKind, ...] = ("cap", "samples", "overlap")


def ladder_of(
    candidates: Sequence[Candidate],
    cases: Sequence[CaseResult],
    *,
    best: Mapping[Sync, int],
    knobs: Sequence[KnobResult],
    advised: Advised,
    seed: int,
) -> tuple[Step, ...]:
    """The steps, each with its gain over the one before; a knob's is over the advised candidate.

    Args:
        candidates: the first is the baseline.
        cases: what came of each.
        best: position of the best candidate of each sync.
        knobs: turned on these.
        advised: one of these, with a knob or without.
        seed: of the resampling for intervals.
    """

    def step(kind: StepKind, position: int, over: int | None) -> Step:
        seconds_N = cases[position].minibatch_s_N
        return Step(
            kind=kind,
            label=candidates[position].label,
            over="" if over is None else candidates[over].label,
            gain=None if over is None else gain_over(seconds_N, cases[over].minibatch_s_N, seed=seed),
            total=gain_over(seconds_N, cases[0].minibatch_s_N, seed=seed),
            fits=cases[position].memory.fits,
            is_advised=position == advised.position and advised.option.knob is None,
        )

    own_sync = candidates[0].case.sync
    steps = [step("baseline", 0, None)]
    here = best[own_sync]
    if here != 0:
        steps.append(step("policy", here, 0))
    steps += [step("sync", position, here) for sync, position in best.items() if sync != own_sync]
    return (*steps, *_knob_steps(candidates, knobs, advised))


def _knob_steps(candidates: Sequence[Candidate], knobs: Sequence[KnobResult], advised: Advised) -> list[Step]:
    """The best setting of each knob on the advised candidate, where it is worth anything or advised."""
    steps = []
    for kind in _KNOBS:
        found = [
            result
            for result in knobs
            if result.knob.kind == kind
            and result.position == advised.position
            and (result.knob is advised.option.knob or (result.case.memory.fits and result.gain.matters))
        ]
        # Of several, the advised one, else the best.
        result = max(found, key=lambda result: (result.knob is advised.option.knob, result.gain.speedup), default=None)
        if result is not None:
            label = candidates[result.position].label
            steps.append(
                Step(
                    kind=kind,
                    label=f"{label}, {result.knob.label}",
                    over=label,
                    gain=result.gain,
                    total=result.total,
                    fits=result.case.memory.fits,
                    is_advised=result.knob is advised.option.knob,
                )
            )
    return steps
