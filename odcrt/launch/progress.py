"""How far a scenario is, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from odcrt.workload.job import Job, read_progress

__all__ = ["Progress", "progress_of", "terminal_progress"]

Progress = Callable[[str, int, int, int, int], None]
"""Told the label of the case, its position and the number of cases, minibatches done and all of them."""


def progress_of(folder: Path, job: Job, told: Progress | None) -> Callable[[], None] | None:
    """What to call now and then so that somebody is told what rank 0 writes to a folder."""
    if told is None:
        return None
    latest: list[tuple[int, int, int] | None] = [None]

    def look() -> None:
        found = read_progress(folder)
        if found is not None and found != latest[0]:
            latest[0] = found
            case, done, total = found
            told(job.cases[case].label, case, len(job.cases), done, total)

    return look


@contextmanager
def terminal_progress() -> Iterator[Progress | None]:
    """A progress bar on the terminal, a line a case; none in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[int, TaskID] = {}

        def show(label: str, case: int, cases: int, done: int, total: int) -> None:
            if case not in tasks:
                tasks[case] = bars.add_task(f"case {case + 1}/{cases} {label}", total=total)
            for earlier, task in tasks.items():
                bars.update(task, completed=total if earlier < case else done)

        yield show
