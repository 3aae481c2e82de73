"""The report of a run as one HTML page: the answer, the comparison, figures, assumptions, and how to repeat it."""

from __future__ import annotations

from odcsim.report.assumptions import assumptions, glossary, repeat
from odcsim.report.comparison import comparison, details
from odcsim.report.figures import all_figures
from odcsim.report.frame import figures_section, framed, tiles_row, top, warnings_box
from odcsim.report.markup import Markup, element, join
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
    return framed(
        f"{result.name}: odcsim report",
        _top(result),
        _answer(result),
        warnings_box(result.warnings),
        comparison(result),
        figures_section("Figures", figures, id_="figures"),
        details(result),
        assumptions(result),
        repeat(result, command or f"odcsim run {result.name}.yaml"),
        glossary(),
        figures=figures,
    )


def _top(result: RunResult) -> Markup:
    how = "measured by odcrt" if result.engine == "measured" else "simulated by odcsim"
    lines = {_CONTEXT_NAMES[name]: text for name, text in context(result).items()}
    return top(f"FSDP against On-Demand Communication, {how}", result.name, lines)


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
    return join([element("p", explained, class_="tiles-of"), tiles_row(tiles)])
