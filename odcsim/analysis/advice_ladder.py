"""The ladder from what is run now to the best that was found: a better policy, the other sync, knobs, two knobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from odcsim.analysis.advice import Advised, KnobResult, PairResult, Step, StepKind
from odcsim.analysis.advice_candidates import KnobKind
from odcsim.analysis.advice_field import Field
from odcsim.analysis.advice_gain import gain_over
from odcsim.analysis.advice_knobs import best_of_kind

__all__ = ["ladder_of"]


def ladder_of(
    field: Field, *, knobs: Sequence[KnobResult], pair: PairResult | None, advised: Advised
) -> tuple[Step, ...]:
    """The steps, each with its gain over the one before; a knob's is over the advised candidate.

    Args:
        field: the candidates.
        knobs: turned on the best of these.
        pair: of knobs on the advised candidate that is worth more than either, if any; its gain is over the better one.
        advised: a candidate, with a knob or without.
    """

    def step(kind: StepKind, position: int, over: int | None) -> Step:
        seconds_N, baseline_s_N = (field.cases[place].minibatch_s_N for place in (position, 0))
        gain = None
        if over is not None:
            gain = gain_over(seconds_N, field.cases[over].minibatch_s_N, seed=field.seed)
        return Step(
            kind=kind,
            label=field.candidates[position].label,
            over="" if over is None else field.candidates[over].label,
            gain=gain,
            total=gain_over(seconds_N, baseline_s_N, seed=field.seed),
            fits=field.cases[position].memory.fits,
            is_advised=position == advised.position and advised.option.knob is None,
        )

    own_sync = field.candidates[0].case.sync
    steps = [step("baseline", 0, None)]
    here = field.best[own_sync]
    if here != 0:
        steps.append(step("policy", here, 0))
    steps += [step("sync", position, here) for sync, position in field.best.items() if sync != own_sync]
    on_advised = [result for result in knobs if result.position == advised.position]
    steps += _knob_steps(on_advised, advised, over=field.candidates[advised.position].label)
    if pair is not None:
        steps.append(
            Step(
                kind="pair",
                label=pair.case.label,
                over=pair.better.case.label,
                gain=pair.beyond,
                total=pair.total,
                fits=pair.case.memory.fits,
                is_advised=False,
            )
        )
    return tuple(steps)


def _knob_steps(knobs: Sequence[KnobResult], advised: Advised, *, over: str) -> Iterator[Step]:
    """The best setting of each knob on the advised candidate, where it is worth anything or advised."""
    for kind in get_args(KnobKind):
        result = best_of_kind(knobs, kind, advised=advised.option.knob)
        if result is not None:
            yield Step(
                kind=kind,
                label=result.case.label,
                over=over,
                gain=result.gain,
                total=result.total,
                fits=result.case.memory.fits,
                is_advised=result.knob is advised.option.knob,
            )
