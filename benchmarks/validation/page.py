"""docs/validation.md and its picture, from a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gamma

import numpy as np

from odcsim.analysis.validate import DISTINCT_SHARE, CaseComparison
from validation.compare import Predicted, Study
from validation.settings import CALIBRATION_POLICY, CALIBRATION_SETTINGS, KINDS, Kind

__all__ = ["Verdict", "picture", "render", "verdict_of"]

MEAN_ERROR, WORST_ERROR, SPEEDUP_POINTS, MEMORY_ERROR = 0.03, 0.09, 0.03, 0.01

LEGEND = """\
Time per minibatch is the mean over the recorded minibatches, measured the median over repeats; *spread* is the longest
over the shortest mean of a repeat, less 1. *Util.* is the share of rank-time spent computing, *speedup* is over the
setting's first case, both predicted / measured. Memory: predicted over measured peak of the fullest rank, less 1, and
the repeats' spread. Cases marked * are those that costs were fitted to; they are not judged."""

STRICT = """\
## From one run of ODC alone

The same with costs fitted to the ODC run alone: a collective over shared memory is then taken to cost a one-sided
transfer and a meeting. What gloo costs cannot be known from it, so those cases are left out."""

REPLAYED = """\
What `odcsim replay` makes of each recorded FSDP run, which knows neither tokens nor costs: the speedup that the same
plan would have under ODC, beside the one that it had. A prediction from one noisy run carries that run's noise."""

AGAIN = """\
## Recorded again

Everything, recorded a second time on other virtual machines of the same kind: emulated compute at the A100's own pace
on one, fast and real compute on another. Costs are fitted to this recording's own calibrated cases, and nothing else
of it. Its traces are under `traces/measured_again/`; fast compute on 16 ranks was recorded three times,
`emulated-16-reasoning-2` four times. At the A100's pace the calibrated case on gloo was recorded ten times: two, as
everywhere else, tell the mean of its collectives to a half alone, and with them gloo on 16 ranks was predicted too long
and one speedup missed. The eight others, and two of the four repeats, were recorded after that was seen, in the same
hour on the same machine.

How well real compute is predicted depends on the machine: on one whose repeats differed by 16% in the mean, predictions
were off by 7% (the recording that the one above took the place of when peaks of memory became exact)."""

MISSING = """\
## What the model leaves out

- A machine's own noise. Costs are means; a run on a machine that shares its cores with others is not. Under FSDP every
  unit waits for the slowest of all ranks, so even noise that averages out costs time there, and the model has none of
  it.
- How processors are shared. Ranks that outnumber the processors wait for one whenever they meet, and leave one after
  another. The model counts a step for every rank of a meeting, and lets the last one leave late by a share of the
  collective's time that does not depend on the number of ranks. A ring of messages (gloo) is taken to slow down with
  the square root of ranks per processor, halfway between waiting for messages and waiting for processors. Where
  transfers weigh much (4 times as fast, recorded again) gloo on 16 ranks and 2 processors is further off than asked,
  though by less than its costs are uncertain by there. That exponent was chosen on trial recordings,
  which are not shown; that it holds for bytes too, and the law by which ranks leave, were settled with both recordings
  of fast compute at hand, before compute at the A100's own pace was recorded.
- What a case of few minibatches cannot tell. Where what a transfer takes varies by half from one to the next, the mean
  of two dozen is known to a third alone, and predictions on more ranks are as far off.
- What the allocator keeps. Memory is counted by the operating system. Of small allocations a process keeps what it once
  had, and when it gives something back is chance. Large ones are given back as soon as they are freed; when real
  compute was recorded again they were not yet, so its peaks are up to a third higher and differ from run to run.
- The end of a minibatch: clipping meets all ranks once more, which is part of the optimizer's step here.
- Nothing here was measured on a GPU. What carries over is the model of time: who waits for whom, and when.
"""


@dataclass(frozen=True)
class Requirement:
    """What was asked, what came out, and whether that is enough."""

    asked: str
    figure: str
    is_met: bool

    @property
    def word(self) -> str:
        """For tables."""
        return "met" if self.is_met else "missed"


@dataclass(frozen=True)
class Verdict:
    """Requirements by kind of compute."""

    of_kind: dict[Kind, tuple[Requirement, ...]]

    @property
    def lines(self) -> list[str]:
        """For the terminal."""
        return [
            f"{KINDS[kind]:26} {entry.asked:50} {entry.figure:50} {entry.word}"
            for kind, entries in self.of_kind.items()
            for entry in entries
        ]


def percent(value: float, *, digits: int = 1) -> str:
    """A share with its sign."""
    return f"{100 * value:+.{digits}f}%"


def verdict_of(study: Study) -> Verdict:
    """Hold the study against what is asked."""
    return Verdict({kind: tuple(requirements(study, kind)) for kind in study.costs})


def requirements(study: Study, kind: Kind) -> Iterator[Requirement]:
    """Every requirement, for one kind of compute."""
    cases = study.judged(kind)
    errors = np.array([case.error for case in cases])
    yield Requirement(
        f"mean absolute error of time at most {MEAN_ERROR:.0%}",
        f"{np.abs(errors).mean():.1%} over {len(cases)} cases",
        bool(np.abs(errors).mean() <= MEAN_ERROR),
    )
    worst = cases[int(np.abs(errors).argmax())]
    yield Requirement(
        f"worst error of time at most {WORST_ERROR:.0%}",
        f"{percent(worst.error)} ({worst.label}, {worst.ranks} ranks)",
        bool(np.abs(errors).max() <= WORST_ERROR),
    )
    found = [one for one in study.predicted if one.setting.kind == kind]
    differences = np.array([difference for one in found for difference in one.speedup_differences])
    yield Requirement(
        f"speedups within {100 * SPEEDUP_POINTS:.0f} points",
        f"mean {100 * np.abs(differences).mean():.1f}, worst {100 * np.abs(differences).max():.1f} points, "
        f"{(np.abs(differences) <= SPEEDUP_POINTS).mean():.0%} within",
        bool(np.abs(differences).max() <= SPEEDUP_POINTS),
    )
    wrong = [(one, pair) for one in found for pair in one.validation.misordered]
    told = "" if not wrong else f": {wrong[0][1][0].label} and {wrong[0][1][1].label} of {wrong[0][0].setting.name}"
    yield Requirement(
        f"order of cases that differ by more than {DISTINCT_SHARE:.0%}",
        f"{len(wrong)} pairs the wrong way round{told}",
        not wrong,
    )
    memory = np.array([case.memory_error for case in cases if case.memory_error is not None])
    if memory.size:
        yield Requirement(
            f"peak memory within {MEMORY_ERROR:.0%}",
            f"mean {np.abs(memory).mean():.1%}, worst {np.abs(memory).max():.1%}",
            bool(np.abs(memory).max() <= MEMORY_ERROR),
        )


def render(study: Study, again: Study) -> str:
    """The page.

    Args:
        study: the recording that it shows in full.
        again: a second recording, of which it gives the verdict.
    """
    return "\n".join(
        [
            "# How far off predictions are",
            "",
            "Written by `python benchmarks/validate.py`: do not edit. With `--recorded` it is written again from the "
            "traces under `traces/`, without it from new runs.",
            "",
            *_method(study),
            "## Verdict",
            "",
            *_verdict(study),
            *_noise(study),
            *_missed_speedups(study, again),
            "![Predicted against measured time per minibatch](figures/validation.svg)",
            "",
            *_by_ranks(study),
            AGAIN,
            "",
            *_known_badly(again),
            *_verdict(again),
            *_noise(again),
            *_missed_speedups(again, study),
            *_by_ranks(again),
            *_strict(study),
            *_replayed(study),
            MISSING,
            "## All cases",
            "",
            LEGEND,
            "",
            *(line for found in study.predicted for line in _setting(found)),
        ]
    )


def _verdict(study: Study) -> list[str]:
    return [
        "| compute | asked | found | |",
        "|---|---|---|---|",
        *(
            f"| {KINDS[kind]} | {entry.asked} | {entry.figure} | {entry.word} |"
            for kind, entries in verdict_of(study).of_kind.items()
            for entry in entries
        ),
        "",
    ]


def _method(study: Study) -> list[str]:
    lines = [
        "Runs of `odcrt` on two cores are recorded, costs are fitted to one case, and all other cases are predicted "
        "from the plans that were run. Emulated compute: 4, 8 and 16 ranks, whose parameters, transfers and meetings "
        "are real and whose compute is slept, at the pace of an A100. The same 4 times as fast, which makes transfers "
        "a larger share of the time than users see: up to a third of it for 16 ranks on gloo. Real compute: two ranks, "
        "one core each.",
        "",
    ]
    for kind, setting in CALIBRATION_SETTINGS.items():
        origin = study.costs[kind].origin
        lines.append(
            f"- {KINDS[kind]}: fitted to `{setting.name}`, policy {CALIBRATION_POLICY}, {origin.ranks} ranks: what it "
            f"ran as ODC, as FSDP over shared memory and over gloo ({origin.microbatches} microbatches). Every other "
            "run is predicted; none of their figures is looked at."
        )
    return [*lines, "", *_known_badly(study)]


def _known_badly(study: Study) -> list[str]:
    """Whose mean the calibrated cases do not tell well, in the words of `odcsim calibrate`."""
    found = {
        kind: [warning.partition(": record")[0] for warning in costs.warnings if "is known to within" in warning]
        for kind, costs in study.costs.items()
    }
    rows = [f"- {KINDS[kind]}: {warning}" for kind, warnings in found.items() for warning in warnings]
    if not rows:
        return []
    return [
        "Of transfers that vary much one case may be too little to fit costs to; `odcsim calibrate` warns:",
        "",
        *rows,
        "",
    ]


def _noise(study: Study) -> list[str]:
    lines = []
    for kind in study.costs:
        repeated = [case for case in study.judged(kind) if case.repeat_spread is not None]
        if not repeated:
            continue
        spreads = np.array([case.repeat_spread for case in repeated])
        errors = np.array([abs(case.error) for case in repeated])
        inside = float((errors <= spreads).mean())
        speedups = list(_speedup_spreads(study, kind).values())
        peaks = [case.memory_spread for case in repeated if case.memory_spread is not None]
        lines.append(
            f"The machine against itself, compute {KINDS[kind]}: repeats of one and the same case differ by "
            f"{spreads.mean():.1%} in the mean and {spreads.max():.1%} at worst ({len(repeated)} cases). Predictions "
            f"of these cases are off by {errors.mean():.1%} in the mean; {inside:.0%} of them lie closer to the median "
            "than the repeats lie to each other. By the repeats' noise alone a perfect prediction would be off by "
            f"{np.mean([noise_share(case) for case in repeated]):.1%} in the mean. Speedups of single repeats differ "
            f"by {100 * np.mean(speedups):.1f} points in the mean and {100 * np.max(speedups):.1f} at worst, peaks of "
            f"memory by {np.mean(peaks):.1%} and {np.max(peaks):.1%}."
        )
        lines.append("")
    return lines


def _speedup_spreads(study: Study, kind: Kind) -> dict[tuple[str, str], float]:
    """For every case but the first of a repeated setting: largest less smallest speedup over its repeats.

    Keys are names of settings and labels of cases.
    """
    spreads = {}
    for found in study.predicted:
        first, *others = found.validation.cases
        repeats = len(first.measured_s_RN)
        if found.setting.kind != kind or repeats == 1:
            continue
        baseline_s_R = first.measured_s_RN.mean(axis=1)
        for case in others:
            if len(case.measured_s_RN) == repeats:
                speedups_R = baseline_s_R / case.measured_s_RN.mean(axis=1)
                spreads[found.setting.name, case.label] = float(speedups_R.max() - speedups_R.min())
    return spreads


def _missed_speedups(study: Study, other: Study) -> list[str]:
    """The speedups of emulated compute that are further off than asked, beside what repeats of the case differ by.

    Args:
        study: whose speedups.
        other: the other recording, whose repeats tell of the noise where this one has none.
    """
    spreads, other_spreads = (
        {key: spread for kind in one.costs for key, spread in _speedup_spreads(one, kind).items()}
        for one in (study, other)
    )

    def repeats(key: tuple[str, str]) -> str:
        if key in spreads:
            return f"{100 * spreads[key]:.1f} points"
        return f"{100 * other_spreads[key]:.1f} points in the other recording" if key in other_spreads else ""

    rows = []
    for found in study.predicted:
        if found.setting.kind == "real":
            continue
        for case, difference in zip(found.validation.judged, found.speedup_differences, strict=True):
            if abs(difference) > SPEEDUP_POINTS:
                predicted, measured = found.validation.speedups(case)
                rows.append(
                    f"| {case.label} of `{found.setting.name}` | {predicted:.3f} | {measured:.3f} | "
                    f"{100 * difference:+.1f} points | {repeats((found.setting.name, case.label))} |"
                )
    if not rows:
        return []
    return [
        f"Speedups of emulated compute that are further off than {100 * SPEEDUP_POINTS:.0f} points, and by how much "
        "those of single repeats of the case differ, where there are any:",
        "",
        "| case | predicted | measured | off by | repeats differ by |",
        "|---|--:|--:|--:|--:|",
        *rows,
        "",
    ]


def noise_share(case: CaseComparison) -> float:
    """How far off a perfect prediction of a repeated case would be in the mean, by the noise of its repeats alone.

    Of R repeats' mean the deviation is that of one over the root of R; the mean absolute value of a normal error is
    its deviation times the root of 2 / pi. The deviation of few values is too small by a known factor.
    """
    means_R = case.measured_s_RN.mean(axis=1)
    repeats = len(means_R)
    bias = float(np.sqrt(2 / (repeats - 1)) * gamma(repeats / 2) / gamma((repeats - 1) / 2))
    deviation = float(means_R.std(ddof=1) / means_R.mean()) / bias
    return deviation / float(np.sqrt(repeats)) * float(np.sqrt(2 / np.pi))


def _by_ranks(study: Study) -> list[str]:
    lines = [
        "| compute | ranks | transport | cases | mean error | mean absolute | worst |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for kind in study.costs:
        cases = study.judged(kind)
        for ranks in sorted({case.ranks for case in cases}):
            for transport in ("shm", "collective", "gloo"):
                here = [case for case in cases if (case.ranks, case.transport) == (ranks, transport)]
                errors = np.array([case.error for case in here])
                if errors.size:
                    name = {"shm": "ODC", "collective": "FSDP, shared memory", "gloo": "FSDP, gloo"}[transport]
                    worst = float(errors[np.abs(errors).argmax()])
                    lines.append(
                        f"| {KINDS[kind]} | {ranks} | {name} | {len(errors)} | {percent(float(errors.mean()))} | "
                        f"{np.abs(errors).mean():.1%} | {percent(worst)} |"
                    )
    return [*lines, ""]


def _strict(study: Study) -> list[str]:
    lines = [
        STRICT,
        "",
        "| compute | cases | mean absolute error | worst | speedups: mean difference | worst |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for kind in study.costs:
        errors = np.array([case.error for case in study.judged(kind, strict=True)])
        worst = float(errors[np.abs(errors).argmax()])
        found = [one for one in study.strict if one.setting.kind == kind]
        differences = np.abs([difference for one in found for difference in one.speedup_differences])
        lines.append(
            f"| {KINDS[kind]} | {len(errors)} | {np.abs(errors).mean():.1%} | {percent(worst)} | "
            f"{100 * differences.mean():.1f} points | {100 * differences.max():.1f} points |"
        )
    return [*lines, ""]


def _replayed(study: Study) -> list[str]:
    lines = [
        "## From an FSDP trace alone",
        "",
        REPLAYED,
        "",
        "| compute | runs | replay against the run | mean difference of speedups | worst |",
        "|---|--:|--:|--:|--:|",
    ]
    for kind in study.costs:
        found = [one for one in study.replayed if one.setting.kind == kind]
        errors = np.array([one.replay_error for one in found])
        differences = np.array([one.predicted - one.measured for one in found])
        lines.append(
            f"| {KINDS[kind]} | {len(found)} | {np.abs(errors).mean():.1%} | "
            f"{100 * np.abs(differences).mean():.1f} points | {100 * np.abs(differences).max():.1f} points |"
        )
    return [*lines, ""]


def _setting(found: Predicted) -> Iterator[str]:
    setting = found.setting
    slowed = (
        ""
        if setting.slowed_rank is None
        else f", rank {setting.slowed_rank[0]} at {setting.slowed_rank[1]} of the speed"
    )
    yield (
        f"### {KINDS[setting.kind].capitalize()}: {setting.ranks} ranks, {setting.trace}, {setting.samples_per_rank} "
        f"samples a rank{slowed}"
    )
    yield ""
    yield "| case | predicted | measured | error | spread | util. | speedup | memory | spread |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for case in found.validation.cases:
        predicted, measured = found.validation.speedups(case)
        yield (
            f"| {case.label}{'*' if case.is_fitted else ''} | {case.predicted_s_N.mean():.3f} s | "
            f"{case.measured_s_N.mean():.3f} s | {percent(case.error)} | {_share(case.repeat_spread)} | "
            f"{case.predicted.compute:.3f} / {case.measured.compute:.3f} | {predicted:.3f} / {measured:.3f} | "
            f"{_signed(case.memory_error)} | {_share(case.memory_spread)} |"
        )
    yield ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _signed(value: float | None) -> str:
    return "" if value is None else percent(value)


# The picture: predicted against measured, on logarithmic axes. Okabe and Ito's colours.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 760, 520, 64, 52, 20, 20
_COLOURS = {"shm": "#0072b2", "collective": "#e69f00", "gloo": "#009e73"}
_FILLED: dict[Kind, float] = {"emulated": 0.75, "fast": 0.25, "real": 0.0}
_NAMES = {"shm": "ODC", "collective": "FSDP, shared memory", "gloo": "FSDP, gloo"}


def picture(study: Study) -> str:
    """Every judged case as a point, with the band of 9% around equality."""
    cases_of: dict[Kind, list[CaseComparison]] = {kind: study.judged(kind) for kind in study.costs}
    cases = [case for of_kind in cases_of.values() for case in of_kind]
    times = [float(values.mean()) for case in cases for values in (case.predicted_s_N, case.measured_s_N)]
    low, high = min(times) / 1.15, max(times) * 1.15

    def place(seconds: float, *, of_height: bool) -> float:
        share = float(np.log(seconds / low) / np.log(high / low))
        if of_height:
            return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def point(measured_s: float, predicted_s: float) -> str:
        return f"{place(measured_s, of_height=False):.1f},{place(predicted_s, of_height=True):.1f}"

    wide = 1 + WORST_ERROR
    corners = [(low, low * wide), (high / wide, high), (high, high), (high, high / wide), (low * wide, low), (low, low)]
    band = " ".join(point(*corner) for corner in corners)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="Predicted against measured seconds per minibatch, a point a case">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<polygon points="{band}" fill="#eeeeee"/>',
        f'<polyline points="{point(low, low)} {point(high, high)}" stroke="#777777" fill="none"/>',
        *_axes(low, high, place),
    ]
    for kind, of_kind in cases_of.items():
        for case in of_kind:
            x, y = point(float(case.measured_s_N.mean()), float(case.predicted_s_N.mean())).split(",")
            colour = _COLOURS[case.transport]
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="4.5" fill="{colour}" fill-opacity="{_FILLED[kind]}" stroke="{colour}"/>'
            )
    parts += _legend()
    return "\n".join([*parts, "</svg>", ""])


def _axes(low: float, high: float, place: object) -> Iterator[str]:
    assert callable(place)
    for seconds in (0.5, 1, 2, 4, 8, 16, 32):
        if low < seconds < high:
            x, y = place(seconds, of_height=False), place(seconds, of_height=True)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#dddddd"/>'
            yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
            yield f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{seconds:g}</text>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{seconds:g}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">measured, seconds a minibatch</text>'
    yield (
        f'<text x="16" y="{(_HEIGHT - _BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(_HEIGHT - _BOTTOM) / 2})">predicted, seconds a minibatch</text>'
    )


def _legend() -> Iterator[str]:
    entries: Sequence[tuple[str, str, str]] = [
        *((_COLOURS[key], _COLOURS[key], _NAMES[key]) for key in _COLOURS),
        ("#777777", "#cccccc", "pale: 4 times as fast"),
        ("#777777", "none", "hollow: real compute"),
        ("#eeeeee", "#eeeeee", f"within {WORST_ERROR:.0%}"),
    ]
    for row, (stroke, fill, text) in enumerate(entries):
        y = _TOP + 16 + 20 * row
        yield f'<circle cx="{_LEFT + 18}" cy="{y - 4}" r="4.5" fill="{fill}" stroke="{stroke}"/>'
        yield f'<text x="{_LEFT + 30}" y="{y}">{text}</text>'
