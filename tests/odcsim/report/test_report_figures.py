"""Figures: valid for plotly, true to the result, light, and in colours that the page defines."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from page_checks import CSS, in_colours, tokens_of
from report_samples import over_memory, sample_result, with_case

from odcsim.report.bars import memory_figure, speedup_figure
from odcsim.report.distributions import lengths_figure, minibatches_figure
from odcsim.report.figures import all_figures
from odcsim.report.palette import FRACTIONS, TIMELINE_KINDS
from odcsim.report.plotting import Figure, Json
from odcsim.report.timeline import timeline_figure
from odcsim.results import RunResult

KEYS = ["speedup", "fractions", "timeline", "lengths", "minibatches", "memory"]


@pytest.fixture(scope="module")
def result() -> RunResult:
    return sample_result()


@pytest.fixture(scope="module")
def figures(result: RunResult) -> dict[str, Figure]:
    return {figure.key: figure for figure in all_figures(result)}


def test_a_run_has_all_figures(figures: dict[str, Figure]) -> None:
    assert list(figures) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_plotly_accepts_every_figure(figures: dict[str, Figure], key: str) -> None:
    document = json.loads(json.dumps(figures[key].to_json(), allow_nan=False))
    drawn = in_colours(document)
    assert isinstance(drawn, dict)
    go.Figure(data=drawn["data"], layout=drawn["layout"])  # refuses unknown keys and values


def test_every_colour_is_defined_for_light_and_dark(figures: dict[str, Figure]) -> None:
    light, dark = (
        set(re.findall(r"(--[a-z0-9-]+):", block)) for block in re.findall(r"\n *:root[^{]*\{([^}]*)\}", CSS)
    )
    used = tokens_of([figure.to_json() for figure in figures.values()])
    used |= tokens_of([[part.color, part.ink] for part in (*FRACTIONS, *TIMELINE_KINDS)])
    assert used <= light
    # The same on both: fonts, and white text on marks that are dark in either.
    assert light - dark == {"--font", "--mono", "--on-dark-mark"}


def test_speedups_are_drawn_with_their_intervals(result: RunResult) -> None:
    result = with_case(result, 2, speedup=1.5, speedup_ci95=(1.4, 1.7))
    (bars,) = speedup_figure(result).data
    assert bars["x"][2] == 1.5
    assert bars["error_x"]["array"][2] == pytest.approx(0.2)
    assert bars["error_x"]["arrayminus"][2] == pytest.approx(0.1)
    assert bars["y"] == [0, 1, 2]


def test_time_fractions_of_a_case_sum_to_a_hundred(figures: dict[str, Figure]) -> None:
    sums = np.sum([trace["x"] for trace in figures["fractions"].data], axis=0)
    assert sums == pytest.approx([100, 100, 100], abs=1e-3)


def test_the_histogram_counts_every_sample_and_marks_the_cap(result: RunResult) -> None:
    figure = lengths_figure(result)
    assert figure is not None
    bars, line = figure.data
    assert sum(bars["y"]) == pytest.approx(100, abs=0.1)
    assert sum(line["y"]) == pytest.approx(100, abs=0.1)
    # Long samples hold more of the tokens than of the samples.
    upper = np.array(bars["x"]) > 30_000
    assert np.array(line["y"])[upper].sum() > 1.5 * np.array(bars["y"])[upper].sum()
    assert 65_536 in [shape["x0"] for shape in figure.layout["shapes"]]
    assert "microbatch cap 65.5K" in [note["text"] for note in figure.layout["annotations"]]


def test_a_cap_far_beyond_the_lengths_is_mentioned_instead_of_drawn(result: RunResult) -> None:
    short = dataclasses.replace(result, sampled_lengths=np.arange(1, 500))
    figure = lengths_figure(short)
    assert figure is not None
    assert "65,536 tokens, lies beyond" in figure.caption
    assert figure.layout["xaxis"]["range"][1] < 1000


@pytest.mark.parametrize("lengths", [[1], [7] * 20, [65_536], [1, 1_000_000]])
def test_histograms_of_odd_lengths_hold_them_all(result: RunResult, lengths: list[int]) -> None:
    figure = lengths_figure(dataclasses.replace(result, sampled_lengths=np.array(lengths)))
    assert figure is not None
    assert sum(figure.data[0]["y"]) == pytest.approx(100, abs=0.1)
    assert 1 <= len(figure.data[0]["y"]) <= 72


def test_minibatch_times_are_boxes_of_the_right_quantiles(result: RunResult) -> None:
    figure = minibatches_figure(result)
    assert figure is not None
    box = figure.data[0]
    times = result.cases[0].minibatch_s_N
    assert box["median"] == [pytest.approx(float(np.median(times)), rel=1e-5)]
    assert box["lowerfence"] == [pytest.approx(float(np.quantile(times, 0.05)), rel=1e-5)]
    assert box["upperfence"] == [pytest.approx(float(np.quantile(times, 0.95)), rel=1e-5)]


def test_memory_parts_sum_to_the_peak_and_excess_is_named(result: RunResult) -> None:
    result = with_case(result, 2, memory=over_memory(result.cases[2], over_bytes=7.9e9))
    figure = memory_figure(result)
    sums = np.sum([trace["x"] for trace in figure.data], axis=0)
    assert sums == pytest.approx([case.memory.peak_bytes / 1e9 for case in result.cases], rel=1e-5)
    notes = " ".join(note["text"] for note in figure.layout["annotations"])
    assert "88.6 GB<br>OVER by 7.9 GB" in notes
    assert "usable: 80.7 GB" in notes


def test_memory_parts_without_a_colour_of_their_own_are_drawn_too(result: RunResult) -> None:
    memory = dataclasses.replace(result.cases[0].memory, parts_bytes={"kv_cache": 2e9, "parameters": 1e9})
    figure = memory_figure(with_case(result, 0, memory=memory))
    assert "kv cache" in [part.label for part in figure.legend]


def panels(figure: Figure) -> dict[str, list[Json]]:
    """Paths of each panel, by the axis they refer to."""
    found: dict[str, list[Json]] = {}
    for shape in figure.layout["shapes"]:
        if shape["type"] == "path":
            found.setdefault(shape["yref"], []).append(shape)
    return found


def drawn_seconds(shapes: list[Json], color: str) -> float:
    """Seconds that the rectangles of one colour cover, over all lanes."""
    (path,) = [shape["path"] for shape in shapes if shape["fillcolor"] == color]
    corners = re.findall(r"M([\d.]+),[\d.]+H([\d.]+)V", path)
    return sum(float(right) - float(left) for left, right in corners)


def test_the_timeline_draws_what_each_case_did_over_one_axis(result: RunResult) -> None:
    figure = timeline_figure(result)
    assert figure is not None
    by_axis = panels(figure)
    assert list(by_axis) == ["y", "y2", "y3"]
    for case, shapes in zip(result.cases, by_axis.values(), strict=True):
        waited_s = sum(span.end_s - span.start_s for span in case.spans if span.name == "wait")
        assert drawn_seconds(shapes, "var(--waiting)") == pytest.approx(waited_s, rel=0.01)
        forward_s = sum(span.end_s - span.start_s for span in case.spans if span.name == "forward")
        assert drawn_seconds(shapes, "var(--forward)") == pytest.approx(forward_s, rel=0.01)
    longest_s = max(float(case.minibatch_s_N[0]) for case in result.cases)
    assert figure.layout["xaxis"]["range"][1] == pytest.approx(longest_s * 1.005, rel=1e-3)
    assert figure.layout["yaxis"]["ticktext"] == [f"rank {rank}" for rank in range(8)]
    domains = [figure.layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert all(lower[1] < upper[0] for upper, lower in itertools.pairwise(domains)), "panels overlap"


def test_hovering_tells_what_a_microbatch_of_a_rank_did(result: RunResult) -> None:
    figure = timeline_figure(result)
    assert figure is not None
    bars = figure.data[2]
    texts = [text for text in bars["hovertext"] if text.startswith("rank 3, microbatch 1: ")]
    assert len(texts) == 1
    assert "<br>forward " in texts[0]
    assert "<br>backward " in texts[0]
    assert len(bars["x"]) == len(bars["base"]) == len(bars["y"]) == len(bars["hovertext"])


def test_many_ranks_and_microbatches_stay_light_and_say_what_is_left_out() -> None:
    large = sample_result(minibatches=1, ranks=20, samples=20)
    figure = timeline_figure(large)
    assert figure is not None
    assert "The first 16 of 20 ranks are shown." in figure.caption
    assert re.search(r"Drawn in \d+ columns", figure.caption)
    assert len(json.dumps(figure.to_json())) < 1_500_000
    case, shapes = large.cases[0], panels(figure)["y"]
    waited_s = sum(span.end_s - span.start_s for span in case.spans if span.name == "wait" and span.rank < 16)
    assert drawn_seconds(shapes, "var(--waiting)") == pytest.approx(waited_s, rel=0.02)


def test_of_many_cases_the_baseline_and_the_fastest_are_drawn(result: RunResult) -> None:
    cases = [
        dataclasses.replace(result.cases[0], label=f"case {number}", speedup=1 + ((number * 7) % 40) / 100)
        for number in range(40)
    ]
    many = dataclasses.replace(result, cases=tuple(cases))
    figure = speedup_figure(many)
    assert "the baseline and the 23 fastest of the other 39 cases" in figure.caption
    drawn = figure.data[0]["x"]
    assert len(drawn) == 24
    assert drawn[0] == 1.0
    assert min(drawn[1:]) == pytest.approx(1.17)
    timeline = timeline_figure(many)
    assert timeline is not None
    assert len(panels(timeline)) == 8


def test_figures_without_data_are_left_out(result: RunResult) -> None:
    bare = dataclasses.replace(
        result,
        sampled_lengths=None,
        cases=tuple(
            dataclasses.replace(case, spans=(), minibatch_s_N=case.minibatch_s_N[:1], speedup_ci95=None)
            for case in result.cases[:1]
        ),
    )
    assert [figure.key for figure in all_figures(bare)] == ["fractions", "memory"]


@pytest.mark.parametrize("factor", [1e-3, 1e-6, 1e3])
def test_the_timeline_chooses_a_unit_that_can_be_read(result: RunResult, factor: float) -> None:
    case = result.cases[2]
    spans = tuple(
        dataclasses.replace(span, start_s=span.start_s * factor, end_s=span.end_s * factor) for span in case.spans
    )
    scaled = dataclasses.replace(result, cases=(dataclasses.replace(case, spans=spans),))
    figure = timeline_figure(scaled)
    assert figure is not None
    unit, seconds = {1e-3: ("ms", 1e-3), 1e-6: ("us", 1e-6), 1e3: ("s", 1.0)}[factor]
    assert figure.layout["xaxis"]["title"]["text"].endswith(f", {unit}")
    drawn_s = drawn_seconds(panels(figure)["y"], "var(--backward)") * seconds
    backward_s = sum(span.end_s - span.start_s for span in spans if span.name == "backward")
    assert drawn_s == pytest.approx(backward_s, rel=0.01)
