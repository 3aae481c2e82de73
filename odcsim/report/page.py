"""The report of a run as one HTML page: the answer, the comparison, figures, assumptions, and how to repeat it.

The page holds plotly's JavaScript, its styles and its data, and forbids itself any network access (its content security
policy). All numbers are in tables too, so nothing depends on seeing the figures.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from odcsim.report.assumptions import assumptions, glossary, repeat
from odcsim.report.comparison import comparison, details
from odcsim.report.figures import all_figures
from odcsim.report.markup import Markup, element, join, section, table
from odcsim.report.plotting import Figure
from odcsim.report.wording import (
    best_case,
    context,
    headline,
    interval_text,
    memory_text,
    percent,
    rate,
)
from odcsim.results import RunResult
from odcsim.units import format_bytes, format_seconds

__all__ = ["page"]

_NO_NETWORK = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_CONTEXT_NAMES = {
    "lengths": "Sequence lengths",
    "minibatch": "Minibatch",
    "model": "Model",
    "cluster": "Cluster",
    "engine": "Run",
}


def page(result: RunResult, *, command: str | None = None) -> str:
    """The page; see `odcsim.report.render_page`."""
    figures = all_figures(result)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_NO_NETWORK}">'),
        element("title", f"{result.name}: odcsim report"),
        Markup(f"<style>{_asset('page.css')}</style>"),
    )
    main = element(
        "main",
        _answer(result),
        _warnings(result),
        comparison(result),
        _figures(figures),
        details(result),
        assumptions(result),
        repeat(result, command or f"odcsim run {result.name}.yaml"),
        glossary(),
    )
    scripts = [
        *(_figure_data(figure) for figure in figures),
        Markup(f"<script>{_plotly_javascript()}</script>"),
        Markup(f"<script>{_asset('page.js')}</script>"),
    ]
    body = element("body", _top(result), main, *scripts)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


@cache
def _asset(name: str) -> str:
    return (files("odcsim.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly_javascript() -> str:
    """plotly.js, found beside plotly's Python package without importing that (0.1 s)."""
    spec = find_spec("plotly")
    assert spec is not None, "plotly, which odcsim depends on, is not installed"
    assert spec.submodule_search_locations, "plotly is not a package"
    script = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    text = script.read_text(encoding="utf-8")
    assert "</script" not in text
    return text


def _figure_data(figure: Figure) -> Markup:
    """A figure for page.js; `<` is written so that nothing in it can end the script element."""
    text = json.dumps(figure.to_json(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" data-figure="plot-{figure.key}">{text}</script>')


def _top(result: RunResult) -> Markup:
    how = "measured by odcrt" if result.engine == "measured" else "simulated by odcsim"
    lines = (
        element("div", element("dt", _CONTEXT_NAMES[name]), element("dd", text))
        for name, text in context(result).items()
    )
    return element(
        "header",
        element("p", f"FSDP against On-Demand Communication, {how}", class_="kicker"),
        element("h1", result.name),
        element("dl", *lines, class_="context"),
    )


def _answer(result: RunResult) -> Markup:
    answer = headline(result)
    notes = (element("p", note, class_="note") for note in answer.notes)
    return element(
        "section",
        element("p", element("strong", answer.lead), " ", answer.support, class_="lead"),
        *notes,
        _tiles(result),
        id="answer",
        aria_label="The answer",
    )


def _tiles(result: RunResult) -> Markup:
    baseline, best = result.cases[0], best_case(result)
    several = best is not baseline

    def change(before: str, after: str) -> str:
        return f"{before} → {after}" if several else before

    tiles = [
        ("GPU time spent waiting", change(percent(baseline.bubble_rate), percent(best.bubble_rate)), ""),
        (
            "mean minibatch",
            change(*(format_seconds(case.seconds_per_minibatch["mean"]) for case in (baseline, best))),
            "",
        ),
        ("tokens per second", change(rate(baseline.tokens_per_second), rate(best.tokens_per_second)), ""),
        (
            "peak memory",
            memory_text(best) if not best.memory.fits else format_bytes(best.memory.peak_bytes),
            f"of {format_bytes(best.memory.capacity_bytes)} usable",
        ),
    ]
    if several:
        tiles.insert(
            0, ("speedup", f"{best.speedup:.2f}", f"95% interval {interval_text(best)}" * bool(interval_text(best)))
        )
    explained = f"{baseline.label} → {best.label}" if several else baseline.label
    return join(
        [
            element("p", explained, class_="tiles-of"),
            element(
                "div",
                *(
                    element(
                        "div",
                        element("span", name, class_="name"),
                        element("span", value, class_="value"),
                        element("span", more, class_="more") if more else "",
                        class_="tile",
                    )
                    for name, value, more in tiles
                ),
                class_="tiles",
            ),
        ]
    )


def _warnings(result: RunResult) -> Markup:
    if not result.warnings:
        return Markup("")
    items = element("ul", *(element("li", warning) for warning in result.warnings))
    return element("aside", element("h2", "Warnings"), items, class_="callout", aria_label="Warnings")


def _figures(figures: list[Figure]) -> Markup:
    without_script = element("p", "Figures need JavaScript; the numbers behind each are in the table below it.")
    drawn = element("div", *(_figure(figure) for figure in figures), class_="figures")
    return section("Figures", element("noscript", without_script), drawn, id_="figures")


def _figure(figure: Figure) -> Markup:
    legend = element(
        "ul",
        *(
            element("li", element("span", class_="swatch", style=f"background:{part.color}"), part.label)
            for part in figure.legend
        ),
        class_="legend",
    )
    return element(
        "figure",
        element("figcaption", element("h3", figure.title), element("p", figure.caption)),
        legend if figure.legend else "",
        element(
            "div",
            id=f"plot-{figure.key}",
            class_="plot",
            role="img",
            aria_label=f"{figure.title}. {figure.description}",
            style=f"min-height:{figure.layout['height']}px",
        ),
        element(
            "details",
            element("summary", "Numbers"),
            table(figure.header, figure.rows, caption=f"{figure.title}: numbers"),
        ),
        class_="wide" if figure.wide else False,
    )
