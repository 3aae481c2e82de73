"""What people read of a run, of fitted costs, of a validation: a page for the browser and a table for the terminal.

Each is made of its result alone and is deterministic: the same result gives the same bytes. Importing this package
costs next to nothing; rich is imported by the tables' functions when they are called, and plotly is never imported (a
page takes its JavaScript file and writes figures in plotly's JSON form).

Shared by all pages and tables:

    palette        colours: of the parts that time and memory are split into, and of cases
    scales         units of axes
    plotting       plotly's JSON form, and what figures have in common
    markup         HTML with everything escaped
    frame          a page's head, scripts, and the pieces that pages share
    terminal       what tables share

Of a run:

    wording        numbers and sentences that page and table share
    bars, distributions, lanes, timeline
                   the figures, which `figures` puts in order
    comparison, assumptions
                   sections of the page
    page, table    the page, the table

Of fitted costs: `calibration_wording`, `cost_terms`, and `calibration_figures`, `_page`, `_table`.
Of a validation: `validation_wording`, and `validation_scatter`, `_bars`, `_pairs`, `_page`, `_table`.
Of an advice: `advice_wording`, `advice_cells`, and `advice_figures`, `_page`, `_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from odcsim.analysis.calibrate import Calibration
    from odcsim.analysis.validate import Validation
    from odcsim.results import RunResult

__all__ = [
    "print_calibration",
    "print_table",
    "print_validation",
    "render_calibration_page",
    "render_page",
    "render_table",
    "render_validation_page",
]


def render_page(result: RunResult, *, command: str | None = None) -> str:
    """The report of a run as one HTML page that needs no network.

    Args:
        result: the run.
        command: the command line that repeats it; `odcsim run NAME.yaml` when left out.
    """
    from odcsim.report.page import page

    return page(result, command=command)


def render_table(result: RunResult) -> RenderableType:
    """The comparison of a run's cases for the terminal; a narrow one leaves out the least important columns."""
    from odcsim.report.table import RunTable

    return RunTable(result)


def print_table(result: RunResult, console: Console) -> None:
    """Print `render_table(result)`.

    A pipe has no width of its own (rich assumes 80 columns): there, the table is at least 100 columns wide.
    """
    from odcsim.report.table import print_run

    print_run(result, console)


def render_calibration_page(
    calibration: Calibration, *, command: str = "odcsim calibrate RUN_DIR", costs_file: str = "costs.yaml"
) -> str:
    """Fitted costs, and how well they fit, as one HTML page that needs no network.

    Args:
        calibration: the costs with the fits that they come from.
        command: the command line that repeats it.
        costs_file: where the costs are.
    """
    from odcsim.report.calibration_page import calibration_page

    return calibration_page(calibration, command=command, costs_file=costs_file)


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print the fitted terms with their intervals; in a pipe at least 120 columns wide."""
    from odcsim.report.calibration_table import print_calibration_table

    print_calibration_table(calibration, console)


def render_validation_page(
    validation: Validation, *, command: str = "odcsim validate SCENARIO RUN_DIR", costs: str = ""
) -> str:
    """Predicted against measured, as one HTML page that needs no network.

    Args:
        validation: of a scenario.
        command: the command line that repeats it.
        costs: which costs were put to the test, in a few words; empty: not said.
    """
    from odcsim.report.validation_page import validation_page

    return validation_page(validation, command=command, costs=costs)


def print_validation(validation: Validation, console: Console, *, costs: str = "") -> None:
    """Print a row a case, and what it comes to; in a pipe at least 120 columns wide. `costs`: as for the page."""
    from odcsim.report.validation_table import print_validation_table

    print_validation_table(validation, console, costs=costs)
