"""The page and the table of fitted costs: complete, true to the fits, in units that people read, safe."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import numpy as np
import pytest
from page_checks import NASTY, Document, check_figures, without_plotly
from recorded_samples import UNKNOWN, sample_calibration, sample_costs, sample_part, term
from report_samples import sample_result
from rich.console import Console

from odcsim.analysis.calibrate import Calibration
from odcsim.costs.calibrated import VISIT_KINDS
from odcsim.report import print_calibration, render_calibration_page
from odcsim.report.calibration_figures import part_figures
from odcsim.report.cost_terms import term_tables


def rows_of(calibration: Calibration) -> dict[str, list[str]]:
    """Rows of all tables of terms by their first column, without it."""
    return {row[0]: list(row[1:]) for table in term_tables(calibration.costs) for row in table.rows}


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return sample_calibration()


@pytest.fixture(scope="module")
def page(calibration: Calibration) -> str:
    return without_plotly(render_calibration_page(calibration, command="odcsim calibrate run", costs_file="c.yaml"))


@pytest.fixture(scope="module")
def document(page: str) -> Document:
    return Document(page)


def printed(calibration: Calibration, *, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    print_calibration(calibration, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terms_are_in_units_that_people_read(calibration: Calibration) -> None:
    rows = rows_of(calibration)
    assert rows["block forward"] == [
        "109 us [106, 112]",
        "4.74 ms [4.59, 4.88]",
        "39.4 ms [35.7, 43.2]",
        "0.04%",
        "1,234",
    ]
    assert rows["all-gather over gloo"] == ["1 ms [0.9, 1.1]", "6.25 GB/s [5, 8]", "", "25.0%", "99"]
    assert rows["optimizer"] == ["4.65 ms [3.45, 6.24]"]
    assert rows["1K tokens of a microbatch"] == ["56 MB [50.4, 61.6]"]
    assert rows["training under ODC, whatever a microbatch holds"] == ["188 MB [169, 207]"]
    assert rows["training under FSDP over gloo, whatever a microbatch holds"] == ["180 MB [162, 198]"]


def test_what_is_not_known_is_said(calibration: Calibration) -> None:
    rows = rows_of(calibration)
    assert rows["one-sided gather"][1:3] == ["not told apart", "343% [85, 730]"]
    assert rows["one-sided scatter-accumulate"][1:3] == ["over 5 GB/s", "not seen"]
    assert rows["reduce-scatter over gloo"][1] == "6.25 GB/s [5, no limit]"
    assert "publish" not in rows


def test_nothing_costs_nothing() -> None:
    visit = sample_costs().compute.block_forward.model_copy(update={"constant": term(0.0), "tokens": UNKNOWN})
    costs = sample_costs()
    costs = costs.model_copy(update={"compute": costs.compute.model_copy(update={"head_forward": visit})})
    assert rows_of(Calibration(costs, ()))["head forward"][1:3] == ["not told apart", "0"]


@pytest.mark.parametrize("missing", ["memory", "one_sided"])
def test_what_runs_did_not_show_has_no_rows(missing: str) -> None:
    text = printed(sample_calibration(**{missing: None}), width=120, terminal=True)
    assert {"memory": "process before", "one_sided": "one-sided"}[missing] not in text
    render_calibration_page(sample_calibration(**{missing: None}))


def test_the_table_names_what_was_fitted(calibration: Calibration) -> None:
    text = printed(calibration, width=120, terminal=True)
    assert text.startswith("Costs of sample\n")
    assert "2 runs: FSDP lb-micro over gloo; ODC lb-micro over shm" in text
    assert "4 ranks; those of a host share 2 processors" in text
    assert text.isascii()


def test_a_pipe_has_room_for_a_line_a_part(calibration: Calibration) -> None:
    lines = printed(calibration, width=80, terminal=False).splitlines()
    (line,) = [line for line in lines if line.startswith("one-sided scatter-accumulate")]
    assert line.split() == ["one-sided", "scatter-accumulate", "300", "us", "[270,", "330]", "over", "5", "GB/s",
                            "not", "seen", "25.0%", "99"]  # fmt: skip


def test_a_narrow_terminal_keeps_values_and_intervals(calibration: Calibration) -> None:
    text = printed(calibration, width=60, terminal=True)
    assert all(len(line) <= 60 for line in text.splitlines())
    for part in ("109 us", "[106, 112]", "39.4 ms", "[35.7, 43.2]"):
        assert part in text
    assert "seen" not in text.split("model", 1)[1]


def test_the_page_has_the_terms_the_warnings_and_the_origin(document: Document, calibration: Calibration) -> None:
    shown = {row[0]: row[1:] for row in document.rows if row}
    for name, cells in rows_of(calibration).items():
        assert shown[name] == cells
    assert shown["0-fsdp-lb-micro"] == ["FSDP lb-micro over gloo", "0123456789abcdef"]
    for text in (
        "block_forward: constant is known to lie from 0 to 1 only",
        "odcsim calibrate run",
        "compute: {calibrated: c.yaml}",
        "follows its fit within 0.04% forward",
    ):
        assert text in document.text


def test_the_page_fetches_nothing(page: str, document: Document) -> None:
    assert all(not {"src", "srcset", "data"} & set(attributes) for _, attributes in document.tags)
    assert "default-src 'none'" in page


def test_every_part_has_a_figure_that_plotly_accepts(page: str, calibration: Calibration) -> None:
    places = check_figures(page)
    assert len(set(places)) == len(places) == len(calibration.parts)


def test_a_figure_draws_measured_against_fitted_and_residuals() -> None:
    part = sample_part("block_forward", count=50)
    (figure,) = part_figures([part], key="visit")
    points, residuals = figure.data[1], figure.data[2]
    assert sorted(points["x"]) == pytest.approx(sorted(1e3 * part.fitted_s_K), rel=1e-4)
    assert sorted(points["y"]) == pytest.approx(sorted(1e3 * part.measured_s_K), rel=1e-4)
    assert sorted(residuals["y"]) == pytest.approx(
        sorted(100 * (part.measured_s_K / part.fitted_s_K - 1)), rel=1e-3, abs=1e-3
    )
    assert figure.title == "Block forward"
    assert sum(int(row[1]) for row in figure.rows) == 50


def test_what_lies_far_off_is_drawn_at_the_rim_and_counted() -> None:
    part = sample_part("block_forward", count=50)
    part.measured_s_K[7] = 3 * part.fitted_s_K[7]
    (figure,) = part_figures([part], key="visit")
    assert "1 observation more than 10.0% off" in figure.caption
    rim = figure.data[3]
    assert rim["y"] == [pytest.approx(10.6)]
    assert rim["marker"]["symbol"] == ["triangle-up"]
    assert "+200.0%" in rim["hovertext"][0]


def test_many_observations_stay_light() -> None:
    (figure,) = part_figures([sample_part("one-sided gather", count=50_000, axis="bytes")], key="transfer")
    assert "One in 42 is drawn" in figure.caption
    assert len(json.dumps(figure.to_json())) < 500_000
    assert [row[1] for row in figure.rows] == [f"{int(row[1].replace(',', '')):,}" for row in figure.rows]
    assert sum(int(row[1].replace(",", "")) for row in figure.rows) == 50_000
    assert len(figure.rows) == 2


def test_a_part_that_takes_no_time_has_no_figure() -> None:
    part = dataclasses.replace(sample_part("embedding_forward"), measured_s_K=np.zeros(60), fitted_s_K=np.zeros(60))
    assert part_figures([part], key="visit") == []


def test_what_users_write_is_text() -> None:
    costs = sample_costs(model={"name": NASTY}, warnings=(NASTY,))
    origin = costs.origin.model_copy(update={"scenario": NASTY, "runs": (NASTY, "b"), "versions": {NASTY: NASTY}})
    parts = (sample_part(f"all-gather over {NASTY}", axis="bytes"),)
    calibration = Calibration(costs.model_copy(update={"origin": origin}), parts)
    page = without_plotly(render_calibration_page(calibration, command=NASTY, costs_file=NASTY))
    assert "<script>alert" not in page
    assert Document(page).text.count(NASTY) >= 6


def test_the_same_costs_give_the_same_bytes() -> None:
    assert render_calibration_page(sample_calibration()) == render_calibration_page(sample_calibration())


def test_visits_come_in_the_order_of_a_microbatch(calibration: Calibration) -> None:
    assert [row[0].replace(" ", "_") for row in term_tables(calibration.costs)[0].rows] == list(VISIT_KINDS)


def test_the_page_of_a_run_has_the_same_look(page: str) -> None:
    from odcsim.report import render_page

    styles = re.findall(r"<style>(.*?)</style>", render_page(sample_result(minibatches=2)), flags=re.DOTALL)
    assert styles == re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
