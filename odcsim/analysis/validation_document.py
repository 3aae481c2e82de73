"""A validation in figures: what it comes to, and the JSON document of `odcsim validate` (`odcsim.validation/1`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from odcsim.analysis.validate import CaseComparison, Validation

__all__ = ["VALIDATION_SCHEMA", "ValidationSummary", "speedups_of", "summarize", "validation_document"]

VALIDATION_SCHEMA = "odcsim.validation/1"


@dataclass(frozen=True)
class ValidationSummary:
    """What a validation comes to. Errors are predicted / measured - 1, speedups are over the first case.

    Attributes:
        judged_cases: how many cases no cost was fitted to.
        mean_absolute_error: of their mean minibatch; None without any.
        worst_error: the one furthest off, with its sign.
        worst_case: its label.
        largest_speedup_difference: predicted - measured, of the case where they differ most, without sign; a speedup
            counts if its case or the first one is judged. None without any.
        misordered: pairs that clearly differ and are predicted the other way round: labels (measured faster, slower).
        distinct_pairs: pairs that clearly differ, which are asked which is faster.
    """

    judged_cases: int
    mean_absolute_error: float | None
    worst_error: float | None
    worst_case: str | None
    largest_speedup_difference: float | None
    misordered: tuple[tuple[str, str], ...]
    distinct_pairs: int


def summarize(validation: Validation) -> ValidationSummary:
    """What a validation comes to."""
    first, worst = validation.cases[0], validation.worst
    differences = [
        abs(found[0] - found[1])
        for case in validation.cases[1:]
        if not (case.is_fitted and first.is_fitted) and (found := speedups_of(validation, case)) is not None
    ]
    return ValidationSummary(
        judged_cases=len(validation.judged),
        mean_absolute_error=validation.mean_absolute_error,
        worst_error=None if worst is None else worst.error,
        worst_case=None if worst is None else worst.label,
        largest_speedup_difference=max(differences, default=None),
        misordered=tuple((faster.label, slower.label) for faster, slower in validation.misordered),
        distinct_pairs=len(validation.distinct_pairs),
    )


def speedups_of(validation: Validation, case: CaseComparison) -> tuple[float, float] | None:
    """Predicted and measured speedup of a case over the first; None where they have no minibatch in common."""
    if not set(case.minibatches) & set(validation.cases[0].minibatches):
        return None
    return validation.speedups(case)


def validation_document(validation: Validation) -> dict[str, Any]:
    """The document that `odcsim validate --json` prints. docs/validate.md describes it."""
    summary = summarize(validation)
    return {
        "schema": VALIDATION_SCHEMA,
        "scenario": validation.name,
        "cases": [_case_document(validation, case) for case in validation.cases],
        "summary": {
            "judged_cases": summary.judged_cases,
            "mean_absolute_error": summary.mean_absolute_error,
            "worst_error": summary.worst_error,
            "worst_case": summary.worst_case,
            "largest_speedup_difference": summary.largest_speedup_difference,
            "misordered": [list(pair) for pair in summary.misordered],
        },
        "warnings": list(validation.warnings),
    }


def _case_document(validation: Validation, case: CaseComparison) -> dict[str, Any]:
    speedups = speedups_of(validation, case)
    minibatches = zip(case.minibatches, case.predicted_s_N, case.measured_s_N, case.errors_N, strict=True)
    return {
        "label": case.label,
        "sync": case.sync,
        "policy": case.policy,
        "transport": case.transport,
        "ranks": case.ranks,
        "runs": list(case.runs),
        "fitted": case.is_fitted,
        "minibatches": [
            {"minibatch": n, "predicted_s": float(predicted_s), "measured_s": float(measured_s), "error": float(error)}
            for n, predicted_s, measured_s, error in minibatches
        ],
        "seconds_per_minibatch": {
            "predicted": float(case.predicted_s_N.mean()),
            "measured": float(case.measured_s_N.mean()),
            "error": case.error,
            "repeat_spread": case.repeat_spread,
        },
        "utilization": {"predicted": case.predicted.compute, "measured": case.measured.compute},
        "time_fractions": {"predicted": case.predicted.to_document(), "measured": case.measured.to_document()},
        "speedup": None if speedups is None else {"predicted": speedups[0], "measured": speedups[1]},
        "peak_memory_bytes": {
            "predicted": case.predicted_peak_bytes,
            "measured": float(np.median(case.measured_peak_bytes_R)) if case.measured_peak_bytes_R else None,
            "error": case.memory_error,
            "repeat_spread": case.memory_spread,
        },
    }
