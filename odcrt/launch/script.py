"""`odcrt launch SCRIPT.py`: a user's own script on every rank."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from odcrt.launch.outcome import GRACE_BEYOND_DEADLINE_S, log_files, report_failure
from odcrt.launching import Prefix, run_ranks
from odcrt.tracing.versions import available_processors
from odcrt.tracing.window import DEFAULT_WINDOW, RECORD_VARIABLE, WINDOW_VARIABLE
from odcsim.errors import InputError
from odcsim.files import require_output_folder
from odcsim.trace_format import clear_run

__all__ = ["default_ranks", "launch_script"]

_MOST_DEFAULT_RANKS = 8


def default_ranks() -> int:
    """Ranks of a script where the user gives no number: half of the CPUs at hand, from 2 to 8."""
    return min(max(2, available_processors() // 2), _MOST_DEFAULT_RANKS)


def launch_script(
    script: Path,
    arguments: Sequence[str],
    *,
    ranks: int,
    record: Path | None = None,
    window: range = DEFAULT_WINDOW,
    log_folder: Path | None = None,
    prefix: Prefix = Prefix.OTHERS,
    deadline_s: float = 60.0,
) -> int:
    """Run a script on every rank.

    Args:
        script: a Python script.
        arguments: of the script.
        ranks: processes.
        record: folder for a trace of what its handles do.
        window: minibatches to record.
        log_folder: keeps what every rank prints; a temporary one by default.
        prefix: which ranks' lines get one.
        deadline_s: longest that ranks wait for each other, as the script says; others get a little more to end by
            themselves once one has failed.

    Returns:
        Exit code.

    Raises:
        InputError: no such script, or a folder that cannot be written to.
    """
    if not script.exists():
        raise InputError("no such file; give a Python script, or a scenario (.yaml)", key="TARGET", value=str(script))
    if script.is_dir():
        raise InputError("is a folder; give a Python script, or a scenario (.yaml)", key="TARGET", value=str(script))
    environment = {}
    if record is not None:
        require_output_folder(record, key="--record")
        clear_run(record)
        environment[RECORD_VARIABLE] = str(record.absolute())
        environment[WINDOW_VARIABLE] = f"{window.start}:{len(window)}"
    with tempfile.TemporaryDirectory(prefix="odcrt-") as folder, log_files(log_folder) as logs:
        run = run_ranks(
            [str(script), *arguments],
            ranks=ranks,
            grace_s=deadline_s + GRACE_BEYOND_DEADLINE_S,
            folder=Path(folder),
            log_folder=logs.folder,
            prefix=prefix,
            environment=environment,
        )
        code = report_failure(run, logs)
    if record is not None and code == 0:
        if (record / "run.json").exists():
            print(f"odcrt: trace: {record}", file=sys.stderr)
        else:
            print(
                "odcrt: warning: --record has no effect: no minibatch of the window went through a handle "
                "(odcrt.on_demand or odcrt.per_unit, more than one rank)",
                file=sys.stderr,
            )
    return code
