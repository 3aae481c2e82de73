"""The figures of an advice: candidates with their intervals, the ladder, and what is lost where the model is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odcsim.analysis.advice import Advice
from odcsim.analysis.advice_gain import Gain
from odcsim.report.advice_cells import LADDER_HEADINGS, ladder_rows, regret_headings, regret_rows
from odcsim.report.advice_wording import gain_text
from odcsim.report.palette import Part, case_part
from odcsim.report.plotting import (
    Figure,
    Json,
    axis,
    case_axis,
    digits,
    layout,
    note,
    plain,
    rows_px,
    sentences,
    vertical,
)
from odcsim.report.wording import percent

__all__ = ["candidates_figure", "ladder_figure", "regret_figure"]

_NOW = Part("now", "what you run now", "var(--neutral)", "")
_ADVISED = Part("advised", "advised", "var(--memory-unit-1)", "")
_OTHER = Part("other", "other", "var(--accent)", "")
_SYMBOLS = ("circle", "triangle-up", "square", "diamond", "cross")
# Marks of one candidate lie beside each other, not on top.
_SPREAD = 0.5


@dataclass(frozen=True)
class _Bar:
    """A row of a figure of gains; hatched where it cannot be had as things are."""

    label: str
    gain: Gain
    part: Part
    is_hatched: bool


def candidates_figure(advice: Advice) -> Figure:
    """Samples a second of every candidate over the baseline's."""
    bars = [
        _Bar(
            candidate.label,
            Gain(case.speedup, case.speedup_ci95, advice.minibatches),
            _part(is_now=position == 0, is_advised=position == advice.advised.position),
            is_hatched=not case.memory.fits,
        )
        for position, (candidate, case) in enumerate(zip(advice.candidates, advice.result.cases, strict=True))
    ]
    return _gains_figure(
        bars,
        key="candidates",
        title="Every sync with every policy that fits it",
        caption=sentences(
            f"Samples a second over those of {bars[0].label}. Whiskers: 95% interval.",
            "Hatched: does not fit in memory." if any(bar.is_hatched for bar in bars) else "",
        ),
        header=("candidate", "gain", "95% interval"),
        rows=tuple((bar.label, f"{100 * bar.gain.share:+.2f}%", _interval(bar.gain)) for bar in bars),
    )


def ladder_figure(advice: Advice) -> Figure:
    """The steps from what is run now, each over that."""
    bars = [
        _Bar(
            step.label,
            step.total,
            _part(is_now=step.kind == "baseline", is_advised=step.is_advised),
            is_hatched=not step.fits or (step.kind in {"samples", "overlap", "pair"} and not step.is_advised),
        )
        for step in advice.ladder
    ]
    return _gains_figure(
        bars,
        key="ladder",
        title="Step by step",
        caption=sentences(
            f"Samples a second over those of {bars[0].label}, step by step. Whiskers: 95% interval.",
            "Hatched: asks for more than settings (another recipe, software that overlaps, memory)."
            if any(bar.is_hatched for bar in bars)
            else "",
        ),
        header=LADDER_HEADINGS,
        rows=tuple(tuple(cell or "none" for cell in row) for row in ladder_rows(advice)),
    )


def _part(*, is_now: bool, is_advised: bool) -> Part:
    if is_advised:
        return _ADVISED
    return _NOW if is_now else _OTHER


def _interval(gain: Gain) -> str:
    if gain.ci95 is None:
        return "none"
    return " to ".join(f"{100 * (end - 1):+.2f}%" for end in gain.ci95)


def _gains_figure(
    bars: Sequence[_Bar],
    *,
    key: str,
    title: str,
    caption: str,
    header: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
) -> Figure:
    ends = [bar.gain.ci95 or (bar.gain.speedup, bar.gain.speedup) for bar in bars]
    marks: Json = {
        "type": "bar",
        "orientation": "h",
        "x": [digits(bar.gain.speedup) for bar in bars],
        "y": list(range(len(bars))),
        "width": 0.62,
        "marker": {
            "color": [bar.part.color for bar in bars],
            "pattern": {"shape": ["/" if bar.is_hatched else "" for bar in bars], "fgcolor": "var(--card)"},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [digits(max(0.0, high - bar.gain.speedup)) for bar, (_, high) in zip(bars, ends, strict=True)],
            "arrayminus": [digits(max(0.0, bar.gain.speedup - low)) for bar, (low, _) in zip(bars, ends, strict=True)],
            "color": "var(--ink)",
            "thickness": 1.5,
            "width": 5,
        },
        "hovertext": [f"{plain(bar.label)}<br>{gain_text(bar.gain)}" for bar in bars],
        "hoverinfo": "text",
    }
    notes = [
        note(
            # Beyond the line at 1, which would cross the text.
            digits(max(bar.gain.speedup, high, 1.0)),
            row,
            "now" if bar.part is _NOW else f"<b>{gain_text(bar.gain)}</b>",
            align="left",
        )
        for row, (bar, (_, high)) in enumerate(zip(bars, ends, strict=True))
    ]
    largest = max(max(bar.gain.speedup, high) for bar, (_, high) in zip(bars, ends, strict=True))
    used = {bar.part.key for bar in bars}
    return Figure(
        key=key,
        title=title,
        caption=caption,
        description="Bars: " + "; ".join(f"{bar.label} {gain_text(bar.gain)}" for bar in bars),
        data=[marks],
        layout=layout(
            height_px=rows_px(bars) + 60,
            xaxis=axis("times as many samples a second", range=[0, digits(largest * 1.9)], zeroline=True),
            yaxis=case_axis(bars),
            shapes=[vertical(1)],
            annotations=notes,
        ),
        legend=tuple(part for part in (_NOW, _ADVISED, _OTHER) if part.key in used),
        header=header,
        rows=rows,
    )


def regret_figure(advice: Advice) -> Figure | None:
    """What each candidate loses under each truth; None where there is no choice."""
    regret = advice.regret
    if len(regret.positions) < 2:
        return None
    cases = [advice.result.cases[position] for position in regret.positions]
    losses_TC = regret.losses_TC
    truths = [case_part(truth.label, position) for position, truth in enumerate(regret.truths)]
    marks: list[Json] = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [digits(100 * loss) for loss in losses_TC[place].tolist()],
            "y": [digits(row + _SPREAD * ((place + 0.5) / len(truths) - 0.5)) for row in range(len(cases))],
            "marker": {"symbol": _SYMBOLS[place % len(_SYMBOLS)], "color": part.color, "size": 9},
            "hovertext": [
                f"{plain(case.label)}<br>{plain(part.label)}: {percent(loss)} behind the best"
                for case, loss in zip(cases, losses_TC[place].tolist(), strict=True)
            ],
            "hoverinfo": "text",
        }
        for place, part in enumerate(truths)
    ]
    largest = 100 * float(losses_TC.max())
    rows = regret_rows(advice)
    return Figure(
        key="regret",
        title="What is lost where the model is wrong",
        caption="How far each candidate's mean minibatch lies behind the best candidate's, if the world is as the "
        "colour says. Plans do not know of it. Left is good.",
        description="Marks: " + "; ".join(f"{row[0]} at most {row[-1]}" for row in rows),
        data=marks,
        layout=layout(
            height_px=rows_px(cases) + 60,
            xaxis=axis(
                "behind the best", range=[digits(-0.03 * largest - 0.05), digits(1.08 * largest + 0.1)], ticksuffix="%"
            ),
            yaxis=case_axis(cases),
        ),
        legend=tuple(truths),
        header=("candidate", *regret_headings(advice)[1:]),
        rows=tuple(rows),
    )
