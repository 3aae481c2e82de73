"""What commands on recorded runs share: reading the runs that their arguments stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odcsim.trace_format import RecordedRun

__all__ = ["read_runs"]


def read_runs(folders: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Every run that the folders stand for, once; a progress bar shows on a terminal.

    Args:
        folders: run folders, or folders of run folders.

    Raises:
        InputError: one of them holds no run, or a run is damaged.
    """
    import sys

    from rich.console import Console
    from rich.progress import track

    from odcsim.trace_format import find_runs, read_run

    found = {path.resolve(): path for folder in folders for path in find_runs(folder)}
    paths = track(
        found.values(),
        description="reading runs",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    return tuple(read_run(path) for path in paths)
