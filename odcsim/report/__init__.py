"""What people read of a run: a page for the browser and a table for the terminal.

Both are made of a `RunResult` alone and are deterministic: the same result gives the same bytes. Importing this package
costs next to nothing; rich is imported by the table's functions when they are called, and plotly is never imported (the
page takes its JavaScript file and writes figures in plotly's JSON form).

    wording        numbers and sentences that page and table share
    palette        the parts that time and memory are split into, with their colours
    plotting       plotly's JSON form, and what figures have in common
    bars, distributions, lanes, timeline
                   the figures, which `figures` puts in order
    markup         HTML with everything escaped
    comparison, assumptions
                   sections of the page
    page           the page
    table          the table
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from odcsim.results import RunResult

__all__ = ["print_table", "render_page", "render_table"]


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
