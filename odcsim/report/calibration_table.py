"""Fitted costs on the terminal: a line for every part, with its terms and their intervals. Plain characters only."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from odcsim.analysis.calibrate import Calibration
from odcsim.report.calibration_wording import calibration_context, calibration_name
from odcsim.report.cost_terms import term_tables
from odcsim.report.terminal import paragraph, plain_table, print_wide

__all__ = ["CalibrationTable", "print_calibration_table"]

_PIPE_WIDTH = 120
# Left out where space is short, in this order.
_SPARE = ("seen", "spread", "lag", "contention")


class CalibrationTable:
    """Context lines, and a table for each kind of term."""

    def __init__(self, calibration: Calibration) -> None:
        self._costs = calibration.costs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rendered for the width at hand."""
        width = options.max_width
        yield Text(calibration_name(self._costs), style="bold")
        for name, line in calibration_context(self._costs).items():
            yield paragraph(f"{name.lower():<10} {line}", width, indent=11)
        for table in term_tables(self._costs):
            yield Text()
            yield plain_table(table.header, table.rows, width=width, spare=_SPARE)


def print_calibration_table(calibration: Calibration, console: Console) -> None:
    """Print the tables; see `odcsim.report.print_calibration`."""
    print_wide(CalibrationTable(calibration), console, least=_PIPE_WIDTH)
