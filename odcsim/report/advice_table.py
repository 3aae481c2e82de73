"""An advice on the terminal: candidates, ladder, knobs and regret, why, and what to do. Plain characters only."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from odcsim.analysis.advice import Advice
from odcsim.report.advice_cells import (
    CANDIDATE_HEADINGS,
    LADDER_HEADINGS,
    PAIR_HEADINGS,
    candidate_cells,
    candidate_mark,
    knob_headings,
    knob_rows,
    ladder_rows,
    pair_rows,
    regret_headings,
    regret_rows,
)
from odcsim.report.advice_wording import answer, explanation, how_compared
from odcsim.report.terminal import paragraph, plain_table, print_wide
from odcsim.report.wording import context

__all__ = ["AdviceTable", "print_advice_table"]

# Left out where space is short, in this order.
_SPARE = ("x bound", "transfers", "memory", "computing", "samples/s", "waiting")
_PIPE_WIDTH = 120


class AdviceTable:
    """Context lines, the tables, why, what was left out, and what to do."""

    def __init__(self, advice: Advice) -> None:
        self._advice = advice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rendered for the width at hand."""
        advice, width = self._advice, options.max_width
        yield Text(advice.name, style="bold")
        for name, line in context(advice.result).items():
            yield paragraph(f"{name:<10} {line}", width, indent=11)
        yield Text()
        yield self._candidates(width)
        yield from _titled("ladder", LADDER_HEADINGS, ladder_rows(advice), width=width)
        if advice.knobs:
            yield from _titled("knobs, one at a time", knob_headings(advice), knob_rows(advice), width=width)
        if advice.pairs:
            yield from _titled("two knobs that gain alone, together", PAIR_HEADINGS, pair_rows(advice), width=width)
        if len(advice.regret.positions) > 1:
            knob = "" if advice.regret.knob is None else f" ({advice.regret.knob.label})"
            title = f"what is lost where the model is wrong{knob}"
            yield from _titled(title, regret_headings(advice), regret_rows(advice), width=width)
        yield Text()
        for left_out in advice.left_out:
            yield paragraph(f"left out: {left_out.label}: {left_out.reason}", width, style="red")
        for text in (*explanation(advice), how_compared(advice)):
            yield paragraph(text, width, indent=2)
        yield Text()
        yield paragraph(answer(advice).text, width, indent=0, style="bold")

    def _candidates(self, width: int) -> RenderableType:
        advice = self._advice
        positions = range(len(advice.candidates))
        return plain_table(
            ("candidate", *CANDIDATE_HEADINGS, ""),
            [
                (
                    advice.candidates[position].label,
                    *candidate_cells(advice, position),
                    candidate_mark(advice, position),
                )
                for position in positions
            ],
            width=width,
            spare=_SPARE,
            styles=[
                "bold green"
                if position == advice.advised.position and advice.advised.fits
                else ""
                if advice.result.cases[position].memory.fits
                else "red"
                for position in positions
            ],
        )


def _titled(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> RenderResult:
    yield Text()
    yield Text(title, style="bold")
    yield plain_table(header, rows, width=width)


def print_advice_table(advice: Advice, console: Console) -> None:
    """Print the advice, in a pipe at least 120 columns wide."""
    print_wide(AdviceTable(advice), console, least=_PIPE_WIDTH)
