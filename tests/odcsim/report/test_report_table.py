"""The terminal table: the right values in plain text, at the widths of terminals and pipes."""

from __future__ import annotations

import io

import pytest
from report_samples import over_memory, sample_result, with_case
from rich.console import Console

from odcsim.report import print_table, render_table
from odcsim.results import RunResult
from odcsim.units import format_seconds


@pytest.fixture(scope="module")
def result() -> RunResult:
    return with_case(sample_result(record_spans=False), 2, speedup=1.294, speedup_ci95=(1.27, 1.31))


def printed(result: RunResult, *, width: int) -> str:
    stream = io.StringIO()
    # A terminal without colour: what a pipe or a log shows, but with a width of its own.
    console = Console(file=stream, width=width, no_color=True, color_system=None, force_terminal=True, highlight=False)
    print_table(result, console)
    return stream.getvalue()


def row_of(text: str, label: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{label}  ")]
    return line


def test_a_hundred_columns_show_the_comparison(result: RunResult) -> None:
    text = printed(result, width=100)
    assert max(map(len, text.splitlines())) <= 100
    baseline, best = result.cases[0], result.cases[2]
    assert "1.29 [1.27, 1.31]" in row_of(text, "ODC lb-mini")
    assert format_seconds(float(best.minibatch_s_N.mean())) in row_of(text, "ODC lb-mini")
    assert f"{100 * best.fractions.compute:.1f}%" in row_of(text, "ODC lb-mini")
    assert f"{100 * baseline.fractions.synchronization:.1f}%" in row_of(text, "FSDP lb-micro")
    assert "baseline" in row_of(text, "FSDP lb-micro")
    assert "48.9 GB" in row_of(text, "FSDP lb-micro")
    assert f"{best.lower_bound_ratio:.3f}" in row_of(text, "ODC lb-mini")
    assert "31.0%" in row_of(text, "ODC lb-mini")
    assert "ODC lb-mini is 29% faster than FSDP lb-micro" in text


def test_wider_terminals_show_every_column_and_narrower_ones_the_essential(result: RunResult) -> None:
    columns = {width: printed(result, width=width).split("case  ")[1].splitlines()[0] for width in (120, 80, 40)}
    assert columns[120].split() == [
        "minibatch",
        "p95",
        "speedup",
        "smp/s/rank",
        "tokens/s",
        "util.",
        "bubble",
        "MFU",
        "memory",
        "x",
        "bound",
    ]
    assert columns[80].split() == ["minibatch", "speedup", "tokens/s", "util.", "bubble", "memory"]
    assert columns[40].split() == ["minibatch", "speedup"]
    # Numbers are wrapped there, never cut.
    assert row_of(printed(result, width=40), "ODC lb-mini").split()[-2:] == ["1.29", "[1.27,"]


def test_what_does_not_fit_is_marked_with_the_excess_and_the_advice(result: RunResult) -> None:
    memory = over_memory(result.cases[2], over_bytes=7.9e9, advice="would fit with cluster.nodes: 2")
    text = printed(with_case(result, 2, memory=memory), width=110)
    assert "88.6 GB OVER" in row_of(text, "ODC lb-mini")
    assert "ODC lb-mini: over by 7.9 GB; would fit with cluster.nodes: 2" in text.splitlines()


def test_advice_that_names_the_excess_is_not_preceded_by_it(result: RunResult) -> None:
    memory = over_memory(result.cases[2], over_bytes=7.9e9, advice="needs 7.9 GB more than there is")
    text = printed(with_case(result, 2, memory=memory), width=110)
    assert "ODC lb-mini: needs 7.9 GB more than there is" in text.splitlines()


def test_a_pipe_gets_a_hundred_columns_without_escapes_and_only_ascii(result: RunResult) -> None:
    stream = io.StringIO()
    print_table(result, Console(file=stream, width=80))
    text = stream.getvalue()
    assert "x bound" in text
    assert "\x1b" not in text
    assert text.isascii()
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_labels_are_not_read_as_markup_and_long_ones_wrap(result: RunResult) -> None:
    label = "[bold red]mine[/] " + "x" * 40
    text = printed(with_case(result, 1, label=label), width=100)
    assert "[bold red]mine[/]" in text
    assert max(map(len, text.splitlines())) <= 100
    folded = [line.split()[0] for line in text.split("case  ")[1].splitlines() if line.startswith("xx")]
    assert "".join(folded) == "x" * 40


def test_one_case_and_one_minibatch(result: RunResult) -> None:
    single = sample_result(minibatches=1, record_spans=False)
    text = printed(single, width=100)
    assert "[" not in row_of(text, "ODC lb-mini")
    assert "one minibatch, so no interval" in " ".join(text.split())


def test_the_renderable_can_be_printed_by_any_console(result: RunResult) -> None:
    stream = io.StringIO()
    Console(file=stream, width=120).print(render_table(result))
    assert "ODC lb-mini" in stream.getvalue()
