"""The comparison of a run's cases on the terminal.

Plain characters only, so that it survives every pipe and encoding that its labels survive; colour carries nothing that
the text does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from odcsim.report.terminal import GAP, paragraph, print_wide
from odcsim.report.wording import (
    METRICS,
    best_case,
    context,
    headline,
    percent,
    rate,
    speedup_text,
)
from odcsim.results import CaseResult, RunResult
from odcsim.units import format_bytes, format_seconds

__all__ = ["RunTable", "print_run"]

# Labels are wrapped to this many cells where the table would be too wide without.
_LEAST_LABEL = 16


@dataclass(frozen=True)
class _Column:
    """A column: its key among the metrics, and a case's text; where space is short, a high `rank` goes first."""

    key: str
    text: Callable[[CaseResult], str]
    rank: int = 0


def _memory_cell(case: CaseResult) -> str:
    peak = format_bytes(case.memory.peak_bytes)
    return peak if case.memory.fits else f"{peak} OVER"


def _columns(baseline: CaseResult) -> list[_Column]:
    return [
        _Column("mean", lambda case: format_seconds(case.seconds_per_minibatch["mean"])),
        _Column("p95", lambda case: format_seconds(case.seconds_per_minibatch["p95"]), rank=7),
        _Column("speedup", lambda case: speedup_text(case, baseline=baseline)),
        _Column("samples", lambda case: rate(case.samples_per_second / case.ranks), rank=8),
        _Column("tokens", lambda case: rate(case.tokens_per_second), rank=4),
        _Column("utilization", lambda case: percent(case.utilization), rank=3),
        _Column("bubble", lambda case: percent(case.bubble_rate), rank=1),
        _Column("mfu", lambda case: percent(case.mfu), rank=6),
        _Column("memory", _memory_cell, rank=2),
        _Column("bound", lambda case: f"{case.lower_bound_ratio:.3f}", rank=5),
    ]


_HEADINGS = {
    "mean": "minibatch",
    "samples": "smp/s/rank",
    "utilization": "util.",
    "bubble": "bubble",
    "memory": "memory",
}


class RunTable:
    """What `render_table` returns: header lines, the table, advice on memory, and the headline."""

    def __init__(self, result: RunResult) -> None:
        self._result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rendered for the width at hand."""
        result = self._result
        yield Text(result.name, style="bold")
        width = options.max_width
        for name, line in context(result).items():
            yield paragraph(f"{name:<10} {line}", width, indent=11)
        yield Text()
        yield self._table(width)
        for case in result.cases:
            if not case.memory.fits:
                yield paragraph(_advice(case), width, style="red")
        yield Text()
        yield paragraph(headline(result).text, width, indent=0, style="bold")

    def _table(self, width: int) -> Table:
        result = self._result
        baseline, best = result.cases[0], best_case(result)
        labels = [case.label for case in result.cases]
        texts = {column.key: [column.text(case) for case in result.cases] for column in _columns(baseline)}
        columns, fitting = _fitting(_columns(baseline), labels, texts, width)
        table = Table(
            Column("case", min_width=min(_LEAST_LABEL, _widest(labels)), overflow="fold"),
            *(Column(_heading(column.key), justify="right", no_wrap=fitting) for column in columns),
            box=None,
            padding=(0, GAP, 0, 0),
            pad_edge=False,
            header_style="dim",
        )
        for row, case in enumerate(result.cases):
            style = "bold green" if case is best and case is not baseline else ""
            cells = [Text(labels[row])]
            for column in columns:
                over = column.key == "memory" and not case.memory.fits
                cells.append(Text(texts[column.key][row], style="bold red" if over else ""))
            table.add_row(*cells, style=style)
        return table


def _advice(case: CaseResult) -> str:
    """By how much a case does not fit in memory, and what would make it fit."""
    over = format_bytes(case.memory.over_bytes)
    if over in case.memory.advice:
        return f"{case.label}: {case.memory.advice}"
    return f"{case.label}: over by {over}" + (f"; {case.memory.advice}" if case.memory.advice else "")


def _heading(key: str) -> str:
    return _HEADINGS.get(key, METRICS[key].heading)


def _widest(texts: Sequence[str]) -> int:
    return max(cell_len(text) for text in texts)


def _fitting(
    columns: list[_Column], labels: Sequence[str], texts: dict[str, list[str]], width: int
) -> tuple[list[_Column], bool]:
    """The columns that fit into `width` beside the labels, and whether they do.

    Labels may be wrapped before a column is left out; the indispensable columns are kept even where they do not fit.
    """
    least_label = min(_LEAST_LABEL, _widest(labels))
    kept = list(columns)
    while True:
        taken = least_label + sum(GAP + _widest([_heading(column.key), *texts[column.key]]) for column in kept)
        dispensable = max(kept, key=lambda column: column.rank)
        if taken <= width or dispensable.rank == 0:
            return kept, taken <= width
        kept.remove(dispensable)


def print_run(result: RunResult, console: Console) -> None:
    """Print the table; see `odcsim.report.print_table`."""
    print_wide(RunTable(result), console)
