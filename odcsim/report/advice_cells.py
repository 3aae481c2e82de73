"""Cells of the tables of an advice, that page and terminal share: candidates, ladder, knobs, regret."""

from __future__ import annotations

from odcsim.analysis.advice import Advice, KnobResult, StepKind
from odcsim.analysis.advice_gain import Gain
from odcsim.report.advice_wording import gain_text, signed_gain
from odcsim.report.wording import percent, rate
from odcsim.results import CaseResult
from odcsim.units import format_bytes, format_seconds

__all__ = [
    "CANDIDATE_HEADINGS",
    "LADDER_HEADINGS",
    "PAIR_HEADINGS",
    "candidate_cells",
    "candidate_mark",
    "knob_headings",
    "knob_rows",
    "ladder_rows",
    "pair_rows",
    "regret_headings",
    "regret_rows",
]

CANDIDATE_HEADINGS = ("minibatch", "samples/s", "gain", "computing", "waiting", "transfers", "memory", "x bound")
"""Headings of `candidate_cells`."""

LADDER_HEADINGS = ("to", "step", "gain", "over", "gain over now")
"""Headings of `ladder_rows`."""

PAIR_HEADINGS = ("knobs", "candidate", "gain", "over the better one", "gain over now")
"""Headings of `pair_rows`."""

_STEPS: dict[StepKind, str] = {
    "baseline": "now",
    "policy": "better policy",
    "sync": "other sync",
    "cap": "another cap",
    "samples": "another recipe",
    "overlap": "if software can",
    "pair": "two knobs",
}


def candidate_cells(advice: Advice, position: int) -> tuple[str, ...]:
    """A candidate's figures as texts."""
    case = advice.result.cases[position]
    memory = format_bytes(case.memory.peak_bytes)
    gain = f"{signed_gain(case.speedup - 1)}"
    if case.speedup_ci95 is not None:
        low, high = (signed_gain(end - 1) for end in case.speedup_ci95)
        gain += f" [{low}, {high}]"
    return (
        format_seconds(case.seconds_per_minibatch["mean"]),
        rate(case.samples_per_second),
        "baseline" if position == 0 else gain,
        percent(case.fractions.compute),
        percent(case.fractions.synchronization),
        percent(case.fractions.exposed_communication),
        memory if case.memory.fits else f"{memory} OVER",
        f"{case.lower_bound_ratio:.3f}",
    )


def candidate_mark(advice: Advice, position: int) -> str:
    """What a candidate is: what is run now, what is advised, or as good as the fastest; nothing for the others."""
    advised = advice.advised
    marks = []
    if position == 0:
        marks.append("now")
    if position == advised.position and advised.fits:
        marks.append("advised" if advised.option.knob is None else f"advised, {advised.option.knob.label}")
    elif position == advised.plain and advice.result.cases[position].memory.fits:
        marks.append("best without")
    elif advice.candidates[position].label in advised.as_good:
        marks.append("as good")
    return ", ".join(marks)


def ladder_rows(advice: Advice) -> list[tuple[str, ...]]:
    """A row a step; two knobs are named without their candidate, which is that of the steps before."""
    rows: list[tuple[str, ...]] = []
    for step in advice.ladder:
        label, over = step.label, step.over
        if step.kind == "pair" and advice.best_pair is not None:
            label, over = advice.best_pair.pair.label, advice.best_pair.better.knob.label
        what = _STEPS[step.kind] + (", advised" if step.is_advised else "") + ("" if step.fits else ", OVER memory")
        gains = ("", "") if step.gain is None else (gain_text(step.gain), gain_text(step.total))
        rows.append((label, what, gains[0], over, gains[1]))
    return rows


def _turned_positions(advice: Advice) -> list[int]:
    return list(dict.fromkeys(found.position for found in advice.knobs))


def knob_headings(advice: Advice) -> tuple[str, ...]:
    """Headings of `knob_rows`; knobs are turned on the best candidate of each sync."""
    return ("knob", *(advice.candidates[position].label for position in _turned_positions(advice)))


def knob_rows(advice: Advice) -> list[tuple[str, ...]]:
    """A row a knob: what it gains over the candidate with the scenario's own settings."""
    found = {(result.knob.label, result.position): result for result in advice.knobs}
    positions = _turned_positions(advice)
    return [
        (label, *(_knob_cell(found.get((label, position))) for position in positions))
        for label in dict.fromkeys(result.knob.label for result in advice.knobs)
    ]


def _knob_cell(result: KnobResult | None) -> str:
    return "as it is" if result is None else _gain_cell(result.gain, result.case)


def _gain_cell(gain: Gain, case: CaseResult) -> str:
    """A gain, or that it cannot be had."""
    if not case.memory.fits:
        return f"does not fit, OVER by {format_bytes(case.memory.over_bytes)}"
    return gain_text(gain)


def pair_rows(advice: Advice) -> list[tuple[str, ...]]:
    """A row a pair of knobs: what both gain over the candidate, over the better one alone, and over what is run now."""
    return [
        (
            result.pair.label,
            advice.candidates[result.position].label,
            _gain_cell(result.gain, result.case),
            gain_text(result.beyond),
            gain_text(result.total),
        )
        for result in advice.pairs
    ]


def regret_headings(advice: Advice) -> tuple[str, ...]:
    """Headings of `regret_rows`."""
    return ("loss if", *(truth.label for truth in advice.regret.truths), "at most")


def regret_rows(advice: Advice) -> list[tuple[str, ...]]:
    """A row a candidate: what it loses against the best one under each truth."""
    regret = advice.regret
    losses_TC = regret.losses_TC
    return [
        (
            advice.candidates[position].label,
            *("best" if loss == 0 else percent(loss) for loss in losses_TC[:, place].tolist()),
            percent(float(losses_TC[:, place].max())),
        )
        for place, position in enumerate(regret.positions)
    ]
