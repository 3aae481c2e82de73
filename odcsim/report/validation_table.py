"""Predicted against measured on the terminal: a row a case, and what it comes to. Plain characters only."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from odcsim.analysis.validate import Validation
from odcsim.report.terminal import paragraph, plain_table, print_wide
from odcsim.report.validation_wording import FITTED, case_cells, cell_headings, validation_context, verdict

__all__ = ["ValidationTable", "print_validation_table"]

# Left out where space is short, in this order.
_SPARE = ("memory", "utilization", "repeats", "off by")
_PIPE_WIDTH = 120


class ValidationTable:
    """Context lines, the table, and the verdict."""

    def __init__(self, validation: Validation, *, costs: str = "") -> None:
        self._validation = validation
        self._costs = costs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rendered for the width at hand."""
        validation, width = self._validation, options.max_width
        marked = any(case.is_fitted for case in validation.cases)
        yield Text(validation.name, style="bold")
        for name, line in validation_context(validation, costs=self._costs).items():
            yield paragraph(f"{name.lower():<10} {line}", width, indent=11)
        yield Text()
        yield plain_table(
            ("case", *cell_headings(validation), *([""] if marked else [])),
            [
                (case.label, *case_cells(validation, case), *([FITTED * case.is_fitted] if marked else []))
                for case in validation.cases
            ],
            width=width,
            spare=_SPARE,
            styles=["dim" if case.is_fitted else "" for case in validation.cases],
        )
        yield Text()
        yield paragraph(verdict(validation).text, width, indent=0, style="bold")


def print_validation_table(validation: Validation, console: Console, *, costs: str = "") -> None:
    """Print the table; see `odcsim.report.print_validation`."""
    print_wide(ValidationTable(validation, costs=costs), console, least=_PIPE_WIDTH)
