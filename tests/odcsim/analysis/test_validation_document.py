"""What a validation comes to, and its document."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from odcsim.analysis.validate import CaseComparison, Validation
from odcsim.analysis.validation_document import speedups_of, summarize, validation_document
from odcsim.results import TimeFractions

PREDICTED, MEASURED = TimeFractions(0.7, 0.1, 0.15, 0.03, 0.02), TimeFractions(0.68, 0.12, 0.15, 0.03, 0.02)


def case(label, predicted_s, measured_s, **changes):
    """Minibatches count from 0; `measured_s` of every repeat."""
    made = CaseComparison(
        label=label,
        sync="odc",
        policy="lb-mini",
        transport="shm",
        ranks=4,
        runs=("a", "b")[: len(measured_s)],
        is_fitted=False,
        minibatches=tuple(range(len(predicted_s))),
        predicted_s_N=np.array(predicted_s),
        measured_s_RN=np.array(measured_s),
        predicted=PREDICTED,
        measured=MEASURED,
        predicted_peak_bytes=None,
        measured_peak_bytes_R=(),
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def validation():
    """+1% and fitted to; +5% of two repeats; -10%."""
    return Validation(
        "sample",
        (
            case("first", [2.0, 2.04], [[2.0, 2.0]], is_fitted=True),
            case("second", [1.68, 1.68], [[1.5, 1.5], [1.7, 1.7]], predicted_peak_bytes=3e8,
                 measured_peak_bytes_R=(2e8, 2.5e8)),
            case("third", [1.08, 1.08], [[1.2, 1.2]]),
        ),
        ("something",),
    )  # fmt: skip


def test_the_document_has_every_figure(validation):
    document = json.loads(json.dumps(validation_document(validation), allow_nan=False))
    assert (document["schema"], document["scenario"]) == ("odcsim.validation/1", "sample")
    assert document["warnings"] == ["something"]
    first, second, third = document["cases"]
    assert (first["fitted"], second["fitted"]) == (True, False)
    assert first["minibatches"][1] == {
        "minibatch": 1,
        "predicted_s": 2.04,
        "measured_s": 2.0,
        "error": pytest.approx(0.02),
    }
    assert second["seconds_per_minibatch"] == {
        "predicted": pytest.approx(1.68),
        "measured": pytest.approx(1.6),
        "error": pytest.approx(0.05),
        "repeat_spread": pytest.approx(1.7 / 1.5 - 1),
    }
    assert first["seconds_per_minibatch"]["repeat_spread"] is None
    assert second["peak_memory_bytes"] == {
        "predicted": 3e8,
        "measured": 2.25e8,
        "error": pytest.approx(1 / 3),
        "repeat_spread": pytest.approx(0.25),
    }
    assert third["peak_memory_bytes"] == dict.fromkeys(("predicted", "measured", "error", "repeat_spread"))
    assert third["speedup"] == {"predicted": pytest.approx(2.02 / 1.08), "measured": pytest.approx(2 / 1.2)}
    assert first["utilization"] == {"predicted": 0.7, "measured": 0.68}
    assert first["time_fractions"] == {"predicted": PREDICTED.to_document(), "measured": MEASURED.to_document()}
    assert (second["runs"], second["ranks"], second["transport"]) == (["a", "b"], 4, "shm")


def test_the_summary_judges_cases_that_were_not_fitted_to(validation):
    assert validation_document(validation)["summary"] == {
        "judged_cases": 2,
        "mean_absolute_error": pytest.approx(0.075),
        "worst_error": pytest.approx(-0.1),
        "worst_case": "third",
        "largest_speedup_difference": pytest.approx(2.02 / 1.08 - 2 / 1.2),
        "misordered": [],
    }
    assert summarize(validation).distinct_pairs == 3


def test_pairs_in_the_wrong_order_are_named(validation):
    slow = dataclasses.replace(validation.cases[2], predicted_s_N=np.array([1.7, 1.7]))
    wrong = dataclasses.replace(validation, cases=(*validation.cases[:2], slow))
    assert validation_document(wrong)["summary"]["misordered"] == [["third", "second"]]


def test_speedups_count_where_one_of_the_two_cases_is_judged(validation):
    fitted = tuple(dataclasses.replace(found, is_fitted=True) for found in validation.cases)
    all_fitted = summarize(dataclasses.replace(validation, cases=fitted))
    assert (all_fitted.judged_cases, all_fitted.mean_absolute_error, all_fitted.worst_case) == (0, None, None)
    assert all_fitted.largest_speedup_difference is None
    judged_first = (validation.cases[0], *fitted[1:])
    judged_first = (dataclasses.replace(judged_first[0], is_fitted=False), *judged_first[1:])
    assert summarize(dataclasses.replace(validation, cases=judged_first)).largest_speedup_difference > 0.2


def test_cases_without_a_minibatch_in_common_have_no_speedup(validation):
    apart = dataclasses.replace(validation.cases[1], minibatches=(5, 6))
    found = dataclasses.replace(validation, cases=(validation.cases[0], apart))
    assert speedups_of(found, apart) is None
    document = validation_document(found)
    assert document["cases"][1]["speedup"] is None
    assert document["summary"]["largest_speedup_difference"] is None
