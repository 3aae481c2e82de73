"""The progress bar of commands that simulate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odcsim.simulation import Progress

__all__ = ["simulation_progress"]


@contextmanager
def simulation_progress() -> Iterator[Progress | None]:
    """A progress bar on the terminal; none in a pipe."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
