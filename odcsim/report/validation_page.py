"""Predicted against measured as one HTML page: the verdict, a row a case, figures, and how to read them."""

from __future__ import annotations

from odcsim.analysis.validate import CaseComparison, Validation
from odcsim.analysis.validation_document import summarize
from odcsim.report.frame import figures_section, framed, tiles_row, top, warnings_box
from odcsim.report.markup import Markup, element, join, section
from odcsim.report.plotting import Figure
from odcsim.report.validation_bars import error_figure, paired_fractions_figure
from odcsim.report.validation_pairs import paired_speedups_figure, peak_memory_figure
from odcsim.report.validation_scatter import minibatch_scatter
from odcsim.report.validation_wording import (
    FITTED,
    case_cells,
    cell_headings,
    speedup_points,
    validation_context,
    verdict,
)
from odcsim.report.wording import percent, signed_percent

__all__ = ["validation_page"]

# A figure with more rows than these is longer than anyone reads; the table has all cases.
_MOST_CASES = 24

_READING = {
    "predicted": "What the simulator makes of the very microbatches that the run's ranks had, on the scenario's costs. "
    "Nothing of what the run took is looked at.",
    "measured": "From the first rank's start to the last one's end; the median where a case was recorded repeatedly.",
    "error": "Predicted / measured - 1.",
    "repeats": "Longest over shortest mean of a repeat, less 1: how well the machine agrees with itself. No prediction "
    "can be closer than that but by chance.",
    "off by": "Predicted / measured peak memory of a rank, less 1.",
    "utilization": "Predicted / measured share of rank-time spent computing.",
    "speedup": "Predicted / measured, over the first case.",
    FITTED: "Costs were fitted to a run of this case: it is shown, and not judged.",
}
_LEFT_OUT = (
    "What is not predicted: pauses of the machine, other programs on it, and memory that an allocator keeps after it "
    "was used. docs/validate.md tells what else the model leaves out, and where its laws end."
)


def validation_page(validation: Validation, *, command: str, costs: str) -> str:
    """The page; see `odcsim.report.render_validation_page`."""
    figures = _figures(validation)
    return framed(
        f"{validation.name}: odcsim validate",
        top(
            "Predicted against measured, by odcsim validate",
            validation.name,
            validation_context(validation, costs=costs),
        ),
        _answer(validation),
        warnings_box(validation.warnings),
        _table(validation),
        figures_section("Figures", figures, id_="figures"),
        section("How to repeat this", element("pre", element("code", command)), id_="repeat"),
        _glossary(),
        figures=figures,
    )


def _figures(validation: Validation) -> list[Figure]:
    cases, remark = validation.cases, ""
    if len(cases) > _MOST_CASES:
        furthest = sorted(range(len(cases)), key=lambda position: -abs(cases[position].error))[:_MOST_CASES]
        remark = f"Shown are the {_MOST_CASES} of {len(cases)} cases that are furthest off."
        cases = tuple(cases[position] for position in sorted(furthest))
    found = [
        minibatch_scatter(cases, remark=remark),
        error_figure(cases, remark=remark),
        paired_fractions_figure(cases, remark=remark),
        paired_speedups_figure(validation, cases, remark=remark),
        peak_memory_figure(cases, remark=remark),
    ]
    return [figure for figure in found if figure is not None]


def _answer(validation: Validation) -> Markup:
    told, summary = verdict(validation), summarize(validation)
    tiles = [("judged cases", f"{summary.judged_cases} of {len(validation.cases)}", "")]
    if summary.mean_absolute_error is not None and summary.worst_error is not None:
        tiles += [
            ("mean absolute error", percent(summary.mean_absolute_error), ""),
            ("furthest off", signed_percent(summary.worst_error), str(summary.worst_case)),
        ]
    if summary.largest_speedup_difference is not None:
        tiles.append(("speedups differ by", speedup_points(summary.largest_speedup_difference), "at most"))
    if summary.distinct_pairs:
        right = summary.distinct_pairs - len(summary.misordered)
        tiles.append(("order of pairs right", f"{right} of {summary.distinct_pairs}", "that differ by over 5%"))
    return element(
        "section",
        element("p", element("strong", told.lead), " ", told.support, class_="lead"),
        tiles_row(tiles),
        id="answer",
        aria_label="The answer",
    )


def _table(validation: Validation) -> Markup:
    title = "Comparison of the cases"
    head = element("tr", *(element("th", text, scope="col") for text in ("case", *cell_headings(validation))))
    content = element(
        "table",
        element("caption", title, class_="unseen"),
        element("thead", head),
        element("tbody", *(_row(validation, case) for case in validation.cases)),
        class_="comparison",
    )
    return section(
        title,
        element("div", content, class_="scroll", tabindex="0", role="region", aria_label=title),
        element("p", _LEFT_OUT, class_="intro after"),
        id_="comparison",
    )


def _row(validation: Validation, case: CaseComparison) -> Markup:
    badge = [element("span", FITTED, class_="badge caution")] if case.is_fitted else []
    return element(
        "tr",
        element("th", element("span", case.label, class_="label"), *badge, scope="row"),
        *(element("td", text) for text in case_cells(validation, case)),
    )


def _glossary() -> Markup:
    items = join(join([element("dt", name), element("dd", meaning)]) for name, meaning in _READING.items())
    return section("What the words mean", element("dl", items, class_="glossary"), id_="glossary")
