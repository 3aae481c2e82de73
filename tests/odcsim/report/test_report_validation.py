"""The page and the table of a validation: complete, true to the comparison, safe against what users write."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from page_checks import NASTY, Document, check_figures, figure_data, without_plotly
from recorded_samples import sample_case, sample_validation, with_case
from rich.console import Console

from odcsim.analysis.validate import Validation
from odcsim.report import print_validation, render_validation_page
from odcsim.report.validation_bars import error_figure, paired_fractions_figure
from odcsim.report.validation_pairs import paired_speedups_figure, peak_memory_figure
from odcsim.report.validation_scatter import minibatch_scatter
from odcsim.report.validation_wording import verdict


@pytest.fixture(scope="module")
def validation() -> Validation:
    return sample_validation()


@pytest.fixture(scope="module")
def page(validation: Validation) -> str:
    return without_plotly(render_validation_page(validation, command="odcsim validate s.yaml run", costs="analytic"))


@pytest.fixture(scope="module")
def document(page: str) -> Document:
    return Document(page)


def printed(validation: Validation, *, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_validation(validation, console, costs="analytic")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Words


def test_the_verdict_tells_errors_speedups_and_order(validation: Validation) -> None:
    assert verdict(validation).text == (
        "The mean absolute error is 7.5% over 2 judged cases; ODC lb-mini is furthest off, by -10.0%. "
        "Speedups differ by at most 20.4 points. The order of cases is predicted right."
    )


def test_the_verdict_names_pairs_in_the_wrong_order(validation: Validation) -> None:
    wrong = with_case(validation, 2, predicted_s_N=np.array([1.8, 1.8]))
    assert "Predicted the wrong way round: ODC lb-mini is faster than ODC lb-micro." in verdict(wrong).text


def test_of_many_pairs_in_the_wrong_order_a_few_are_named() -> None:
    cases = tuple(sample_case(f"case {number}", [9.0 - number], [[1.0 + number]]) for number in range(4))
    told = verdict(Validation("s", cases, ())).text
    assert (
        "case 0 is faster than case 1; case 0 is faster than case 2; case 0 is faster than case 3; and 3 more" in told
    )


def test_cases_that_are_alike_are_not_asked_for_their_order() -> None:
    cases = (sample_case("a", [2.0], [[2.0]]), sample_case("b", [2.0], [[2.04]]))
    assert "No two cases differ by more than 5%" in verdict(Validation("s", cases, ())).text


def test_a_single_case_has_no_speedups() -> None:
    told = verdict(Validation("s", (sample_case("FSDP lb-micro", [2.02], [[2.0]]),), ())).text
    assert told == "FSDP lb-micro is predicted with an error of +1.0%."


def test_nothing_is_judged_where_everything_was_fitted_to(validation: Validation) -> None:
    told = verdict(Validation("s", validation.cases[:1], ())).text
    assert told.startswith("Costs were fitted to every case here, so none is judged: give runs")


# The table


def test_the_table_has_a_row_a_case(validation: Validation) -> None:
    lines = [line.rstrip() for line in printed(validation, width=80, terminal=False).splitlines()]
    assert lines[:4] == [
        "sample",
        "runs       4 runs of 3 cases, 6 minibatches",
        "ranks      4",
        "costs      analytic",
    ]
    rows = {line[:14].strip(): line[14:].split() for line in lines[5:9]}
    assert " ".join(rows["case"]) == "predicted measured error repeats utilization speedup memory off by"
    assert " ".join(rows["FSDP lb-micro"]) == ("2.02 s 2 s +1.0% 70.0 / 68.0% 1.00 / 1.00 310 MB -3.2% fitted to")
    assert " ".join(rows["ODC lb-micro"]) == "1.68 s 1.6 s +5.0% 13.3% 70.0 / 68.0% 1.20 / 1.25 310 MB -3.2%"


def test_columns_that_no_case_fills_are_left_out() -> None:
    case = sample_case("FSDP lb-micro", [2.0], [[2.0]], predicted_peak_bytes=None, measured_peak_bytes=())
    text = printed(Validation("s", (case,), ()), width=120, terminal=True)
    (header,) = [line for line in text.splitlines() if line.startswith("case")]
    assert header.split() == ["case", "predicted", "measured", "error", "utilization"]


def test_a_narrow_terminal_keeps_errors_and_speedups(validation: Validation) -> None:
    lines = printed(validation, width=78, terminal=True).splitlines()
    assert all(len(line) <= 78 for line in lines)
    (header,) = [line for line in lines if line.startswith("case")]
    assert header.split() == ["case", "predicted", "measured", "error", "speedup", "off", "by"]


# The page


def test_the_page_holds_the_verdict_and_a_row_a_case(document: Document) -> None:
    assert "mean absolute error is 7.5%" in document.text
    assert document.row("FSDP lb-micro")[0] == "FSDP lb-microfitted to"
    assert document.row("ODC lb-mini")[1:4] == ["1.08 s", "1.2 s", "-10.0%"]
    assert document.row("ODC lb-mini")[0] == "ODC lb-mini"
    for text in ("a warning", "odcsim validate s.yaml run", "docs/validate.md", "3 of 3 that differ by over 5%"):
        assert text in document.text


def test_every_figure_is_accepted_by_plotly_and_has_its_place(page: str) -> None:
    assert check_figures(page) == [
        "plot-minibatches",
        "plot-errors",
        "plot-fractions",
        "plot-speedups",
        "plot-memory",
    ]


def test_figures_without_data_are_left_out() -> None:
    case = sample_case("FSDP lb-micro", [2.0], [[2.0]], predicted_peak_bytes=None)
    page = render_validation_page(Validation("s", (case,), ()))
    assert [place for place, _ in figure_data(page)] == ["plot-minibatches", "plot-errors", "plot-fractions"]


def test_what_users_write_is_text(validation: Validation) -> None:
    nasty = dataclasses.replace(with_case(validation, 1, label=NASTY), name=NASTY, warnings=(NASTY,))
    page = without_plotly(render_validation_page(nasty, command=NASTY, costs=NASTY))
    assert "<script>alert" not in page
    assert Document(page).text.count(NASTY) > 10
    assert not [text for _, text in figure_data(page) if "\\u003cscript" in text]


def test_of_very_many_cases_those_furthest_off_are_drawn() -> None:
    cases = tuple(sample_case(f"case {number}", [2.0 + 0.01 * number], [[2.0]]) for number in range(40))
    page = render_validation_page(Validation("s", cases, ()))
    errors = json.loads(dict(figure_data(page))["plot-errors"])
    assert errors["data"][0]["x"] == pytest.approx([0.5 * number for number in range(16, 40)], rel=1e-4)
    assert "Shown are the 24 of 40 cases that are furthest off." in page


def test_the_same_validation_gives_the_same_bytes() -> None:
    assert render_validation_page(sample_validation()) == render_validation_page(sample_validation())


# Figures


def test_the_scatter_draws_every_minibatch_with_its_repeats(validation: Validation) -> None:
    figure = minibatch_scatter(validation.cases)
    marks = figure.data[3:]
    assert [mark["x"] for mark in marks] == [[2.0, 2.0], [1.6, 1.6], [1.2, 1.2]]
    assert [mark["y"] for mark in marks] == [[2.02, 2.02], [1.68, 1.68], [1.08, 1.08]]
    assert [mark["marker"]["symbol"] for mark in marks] == ["circle-open", "square", "diamond"]
    assert marks[1]["error_x"]["array"] == pytest.approx([0.1, 0.1])
    assert "error_x" not in marks[0]
    assert "Of 6 minibatches, 2 lie in the inner band and 4 in the outer." in figure.caption


def test_the_bands_of_the_scatter_are_as_wide_as_they_say(validation: Validation) -> None:
    figure = minibatch_scatter(validation.cases)
    for trace, share in ((figure.data[0], 0.09), (figure.data[1], 0.03)):
        start, end = trace["x"][:2]
        shares = (1 - share, 1 - share, 1 + share, 1 + share)
        edges = [factor * x for factor, x in zip(shares, (start, end, end, start), strict=True)]
        assert trace["y"] == pytest.approx(edges, rel=1e-4)


def test_errors_are_drawn_with_what_repeats_make_of_them(validation: Validation) -> None:
    bars, dots = error_figure(validation.cases).data
    assert bars["x"] == pytest.approx([1.0, 5.0, -10.0])
    # Against the shorter repeat +12%, against the longer one -1.2%.
    assert bars["error_x"]["array"] == pytest.approx([0, 7, 0], abs=1e-9)
    assert bars["error_x"]["arrayminus"] == pytest.approx([0, 5 + 1.17647, 0], abs=1e-3)
    assert bars["marker"]["color"] == ["var(--neutral)", "var(--accent)", "var(--accent)"]
    assert len(dots["x"]) == 6


def test_predicted_and_measured_fractions_are_side_by_side(validation: Validation) -> None:
    figure = paired_fractions_figure(validation.cases)
    assert np.sum([trace["x"] for trace in figure.data], axis=0) == pytest.approx([100] * 6)
    assert figure.data[0]["x"][:2] == [70, 68]
    assert figure.layout["yaxis"]["ticktext"] == ["predicted", "measured"] * 3
    assert [row[0] for row in figure.rows[:2]] == ["FSDP lb-micro, predicted", "FSDP lb-micro, measured"]


def test_speedups_are_over_the_first_case(validation: Validation) -> None:
    figure = paired_speedups_figure(validation, validation.cases)
    assert figure is not None
    assert figure.data[1]["x"] == pytest.approx([2.02 / 1.68, 2.02 / 1.08], rel=1e-5)
    assert figure.data[2]["x"] == pytest.approx([1.25, 2 / 1.2], rel=1e-5)


def test_a_case_without_a_minibatch_of_the_first_has_no_speedup(validation: Validation) -> None:
    apart = with_case(validation, 1, minibatches=(7, 8))
    figure = paired_speedups_figure(apart, apart.cases)
    assert figure is not None
    assert [row[0] for row in figure.rows] == ["ODC lb-mini"]
    assert "ODC lb-micro" in printed(apart, width=120, terminal=True)


def test_memory_is_drawn_in_a_unit_that_can_be_read(validation: Validation) -> None:
    figure = peak_memory_figure(validation.cases)
    assert figure is not None
    assert figure.layout["xaxis"]["title"]["text"] == "MB"
    assert (figure.data[1]["x"], figure.data[2]["x"]) == ([300] * 3, [310] * 3)
    assert figure.rows[0] == ("FSDP lb-micro", "300 MB", "310 MB", "-3.2%")
