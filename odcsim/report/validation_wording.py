"""Sentences and cells on a validation that page and terminal share. Errors are predicted / measured - 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcsim.analysis.validate import CaseComparison, Validation
from odcsim.analysis.validation_document import ValidationSummary, speedups_of, summarize
from odcsim.report.wording import percent, plural, signed_percent
from odcsim.units import format_bytes, format_seconds

__all__ = [
    "FITTED",
    "Verdict",
    "case_cells",
    "cell_headings",
    "measured_peak_bytes",
    "speedup_points",
    "validation_context",
    "verdict",
]

FITTED = "fitted to"
"""Mark of a case that costs were fitted to."""

_MOST_PAIRS = 3


@dataclass(frozen=True)
class Verdict:
    """What a validation comes to: how far times are off, and whether the comparison of cases holds."""

    lead: str
    support: str

    @property
    def text(self) -> str:
        """Both, as one paragraph."""
        return f"{self.lead} {self.support}".rstrip()


def verdict(validation: Validation) -> Verdict:
    """What a validation comes to, in a sentence or two."""
    summary = summarize(validation)
    return Verdict(_errors_sentence(summary), _order_sentences(validation, summary))


def _errors_sentence(summary: ValidationSummary) -> str:
    if summary.mean_absolute_error is None or summary.worst_error is None:
        return (
            "Costs were fitted to every case here, so none is judged: give runs that they were not fitted to, of "
            "another policy, sync or number of ranks."
        )
    if summary.judged_cases == 1:
        return f"{summary.worst_case} is predicted with an error of {signed_percent(summary.worst_error)}."
    return (
        f"The mean absolute error is {percent(summary.mean_absolute_error)} over "
        f"{plural(summary.judged_cases, 'judged case')}; {summary.worst_case} is furthest off, by "
        f"{signed_percent(summary.worst_error)}."
    )


def _order_sentences(validation: Validation, summary: ValidationSummary) -> str:
    found = []
    if summary.largest_speedup_difference is not None:
        found.append(f"Speedups differ by at most {speedup_points(summary.largest_speedup_difference)}.")
    if summary.misordered:
        shown = summary.misordered[:_MOST_PAIRS]
        pairs = "; ".join(f"{faster} is faster than {slower}" for faster, slower in shown)
        more = len(summary.misordered) - len(shown)
        found.append(
            f"Predicted the wrong way round: {pairs}" + (f"; and {plural(more, 'more pair')}." if more else ".")
        )
    elif summary.distinct_pairs:
        found.append("The order of cases is predicted right.")
    elif len(validation.cases) > 1:
        found.append("No two cases differ by more than 5%, so their order is not asked.")
    return " ".join(found)


def speedup_points(difference: float) -> str:
    """A difference of two speedups: "2.3 points" for 0.023."""
    shown = f"{100 * difference:.1f}"
    return f"{shown} point" if shown == "1.0" else f"{shown} points"


def validation_context(validation: Validation, *, costs: str = "") -> dict[str, str]:
    """What was compared, in a few lines."""
    runs = sum(len(case.runs) for case in validation.cases)
    minibatches = sum(len(case.minibatches) for case in validation.cases)
    ranks = sorted({case.ranks for case in validation.cases})
    lines = {
        "Runs": f"{plural(runs, 'run')} of {plural(len(validation.cases), 'case')}, {plural(minibatches, 'minibatch')}",
        "Ranks": " and ".join(f"{count:,}" for count in ranks),
        "Costs": costs,
    }
    return {name: line for name, line in lines.items() if line}


def measured_peak_bytes(case: CaseComparison) -> float | None:
    """Peak memory, median over repeats; None where no run tells."""
    return float(np.median(case.measured_peak_bytes_R)) if case.measured_peak_bytes_R else None


def cell_headings(validation: Validation) -> tuple[str, ...]:
    """Headings of `case_cells`; what no case can fill is left out."""
    return tuple(heading for heading, _ in _columns(validation, validation.cases[0]))


def case_cells(validation: Validation, case: CaseComparison) -> tuple[str, ...]:
    """A case's figures as texts, under `cell_headings`."""
    return tuple(text for _, text in _columns(validation, case))


def _columns(validation: Validation, case: CaseComparison) -> list[tuple[str, str]]:
    cases = validation.cases
    columns = [
        ("predicted", format_seconds(float(case.predicted_s_N.mean()))),
        ("measured", format_seconds(float(case.measured_s_N.mean()))),
        ("error", signed_percent(case.error)),
    ]
    if any(found.repeat_spread is not None for found in cases):
        columns.append(("repeats", "" if case.repeat_spread is None else percent(case.repeat_spread)))
    columns.append(("utilization", f"{100 * case.predicted.compute:.1f} / {percent(case.measured.compute)}"))
    if len(cases) > 1:
        speedups = speedups_of(validation, case)
        columns.append(("speedup", "" if speedups is None else f"{speedups[0]:.2f} / {speedups[1]:.2f}"))
    if any(measured_peak_bytes(found) is not None for found in cases):
        peak_bytes = measured_peak_bytes(case)
        columns.append(("memory", "" if peak_bytes is None else format_bytes(peak_bytes)))
    if any(found.memory_error is not None for found in cases):
        columns.append(("off by", "" if case.memory_error is None else signed_percent(case.memory_error)))
    return columns
