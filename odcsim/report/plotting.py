"""What every figure is made of: plotly's JSON form with the figure's texts, and the pieces that figures share.

Figures are plain dictionaries, because building them with plotly's Python classes would cost more time than the whole
run. Colours are CSS custom properties (see `palette`). Texts in figures are the small subset of HTML that plotly reads,
so whatever comes from the user goes through `plain` or `wrapped`.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from odcsim.report.palette import Part
from odcsim.results import CaseResult, RunResult

__all__ = [
    "Figure",
    "Json",
    "Labelled",
    "ShownCases",
    "axis",
    "case_axis",
    "digits",
    "layout",
    "note",
    "plain",
    "rows_px",
    "sentences",
    "shown_cases",
    "vertical",
    "wrapped",
]

Json = dict[str, Any]

_LINE_PX = 16
_LEAST_ROW_PX = 46
_LABEL_WIDTH = 18
_LABEL_LINES = 3
# A figure with more rows than these is longer than anyone reads; the table has all cases.
_MOST_CASES = 24


class Labelled(Protocol):
    """Whatever has a row of its own in a figure."""

    @property
    def label(self) -> str:
        """What tells it from the others."""
        ...


@dataclass(frozen=True)
class Figure:
    """A figure with its texts.

    Attributes:
        key: names its elements in the page.
        title: what it shows.
        caption: how to read it, and what it leaves out; plain text.
        description: what it shows, in words, for those who cannot see it.
        data: plotly's traces.
        layout: plotly's layout.
        legend: what its colours mean.
        header: of the numbers behind it.
        rows: the numbers behind it, as texts; the first column names the row.
        zoomable: whether time can be zoomed into.
        wide: whether it needs the whole width of the page.
    """

    key: str
    title: str
    caption: str
    description: str
    data: list[Json]
    layout: Json
    legend: tuple[Part, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    zoomable: bool = False
    wide: bool = False

    def to_json(self) -> Json:
        """What assets/page.js draws."""
        config = {
            "responsive": True,
            "displaylogo": False,
            "displayModeBar": "hover" if self.zoomable else False,
            "modeBarButtons": [["zoomIn2d", "zoomOut2d", "resetScale2d"]],
            "doubleClick": "reset",
            "showTips": False,
        }
        return {"data": self.data, "layout": self.layout, "config": config}


@dataclass(frozen=True)
class ShownCases:
    """The cases that a figure shows, in the scenario's order, and a sentence where these are not all."""

    cases: tuple[CaseResult, ...]
    remark: str = field(default="")


def shown_cases(result: RunResult, *, most: int = _MOST_CASES) -> ShownCases:
    """All cases, or the baseline and the fastest of the others where there are more than `most`."""
    cases = result.cases
    if len(cases) <= most:
        return ShownCases(cases)
    fastest = sorted(range(1, len(cases)), key=lambda position: -cases[position].speedup)[: most - 1]
    return ShownCases(
        tuple(cases[position] for position in [0, *sorted(fastest)]),
        f"Shown are the baseline and the {most - 1} fastest of the other {len(cases) - 1} cases.",
    )


def plain(text: str) -> str:
    """`text` as plotly shows it letter by letter."""
    return html.escape(text, quote=False)


def wrapped(label: str) -> str:
    """A label on up to three short lines."""
    lines = textwrap.wrap(label, _LABEL_WIDTH) or ["(no name)"]
    if len(lines) > _LABEL_LINES:
        lines = [*lines[: _LABEL_LINES - 1], f"{lines[_LABEL_LINES - 1][: _LABEL_WIDTH - 1]}…"]
    return "<br>".join(plain(line) for line in lines)


def rows_px(cases: Sequence[Labelled]) -> int:
    """Height of the rows of a `case_axis`, with room for the longest label in each."""
    lines = max(wrapped(case.label).count("<br>") + 1 for case in cases)
    return len(cases) * max(_LEAST_ROW_PX, lines * _LINE_PX + 12)


def axis(title: str = "", **settings: Any) -> Json:  # noqa: ANN401 - plotly's own settings
    """An axis with the look of the page."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": "var(--muted)"}, "standoff": 10},
        "gridcolor": "var(--grid)",
        "linecolor": "var(--axis)",
        "zerolinecolor": "var(--axis)",
        "tickfont": {"size": 12, "color": "var(--muted)"},
        "automargin": True,
        "fixedrange": True,
        **settings,
    }


def case_axis(cases: Sequence[Labelled]) -> Json:
    """A vertical axis with one row a case, the first on top; rows lie at 0, 1, 2, ..."""
    return axis(
        tickvals=list(range(len(cases))),
        ticktext=[wrapped(case.label) for case in cases],
        tickfont={"size": 12.5, "color": "var(--ink)"},
        range=[len(cases) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        ticklabelstandoff=6,
    )


def layout(*, height_px: float, **settings: Any) -> Json:  # noqa: ANN401 - plotly's own settings
    """A layout with the look of the page; margins are for axes that make room for their own labels."""
    return {
        "height": round(height_px),
        "margin": {"l": 10, "r": 12, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 12.5, "color": "var(--ink)"},
        "hoverlabel": {
            "bgcolor": "var(--card)",
            "bordercolor": "var(--axis)",
            "font": {"family": "var(--font)", "size": 12.5, "color": "var(--ink)"},
            "align": "left",
        },
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "uirevision": "kept",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--muted)", "activecolor": "var(--ink)"},
        **settings,
    }


def note(x: float, y: float, text: str, **settings: object) -> Json:
    """A text beside a mark, in plotly's HTML."""
    return {
        "x": x,
        "y": y,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "xshift": 8,
        "font": {"size": 12.5, "color": "var(--ink)"},
        **settings,
    }


def vertical(x: float, *, color: str = "var(--ink)", dash: str = "dot", **settings: object) -> Json:
    """A vertical line across the figure."""
    line = {"color": color, "width": 1.5, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line, **settings}


def digits(number: float, count: int = 6) -> float:
    """`number` with so many significant digits: what can be seen, and no more, keeps the page small."""
    return float(f"{number:.{count}g}")


def sentences(*parts: str) -> str:
    """Sentences as one paragraph, empty ones left out."""
    return " ".join(part for part in parts if part)
