"""`odcsim replay`: what ODC would give a recorded FSDP run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from odcsim.analysis.replay import Replay

__all__ = ["replay"]


def replay(
    folder: Annotated[Path, typer.Argument(help="Folder of a run recorded under FSDP.", metavar="RUN_DIR")],
    *,
    one_sided_factor: Annotated[
        float,
        typer.Option(
            "--one-sided-factor",
            help="How many times as long as a collective a one-sided transfer takes: more than 1 across nodes.",
            metavar="FACTOR",
        ),
    ] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and no table.")] = False,
) -> None:
    """Replay a recorded FSDP run's own compute under ODC: same plan, same compute, other waits.

    Nothing needs to be known of tokens or of the model, so it works on any ingested trace.

    Example: odcsim replay run --one-sided-factor 2
    """
    from odcsim.analysis.replay import replay as replay_run
    from odcsim.trace_format import read_run

    found = replay_run(read_run(folder), one_sided_factor=one_sided_factor)
    if json:
        import json as json_module

        typer.echo(json_module.dumps(_document(found, folder), indent=1, allow_nan=False))
    else:
        _print_table(found)


def _document(found: Replay, folder: Path) -> dict[str, Any]:
    return {
        "schema": "odcsim.replay/1",
        "run": str(folder),
        "one_sided_factor": found.one_sided_factor,
        "seconds_per_minibatch": {
            "measured": float(found.measured_s_N.mean()),
            "fsdp": float(found.fsdp.minibatch_s_N.mean()),
            "odc": float(found.odc.minibatch_s_N.mean()),
            "odc_balanced": float(found.balanced_s_N.mean()),
        },
        "replay_error": found.error,
        "speedup": {"odc": found.speedup, "odc_balanced": found.balanced_speedup},
        "time_fractions": {
            "fsdp": found.fsdp.fractions.to_document(),
            "odc": found.odc.fractions.to_document(),
        },
    }


def _print_table(found: Replay) -> None:
    from rich.console import Console
    from rich.table import Table

    from odcsim.units import format_seconds

    table = Table("", "minibatch", "speedup", "computing", "waiting", "exposed communication")
    table.add_row("as recorded", format_seconds(float(found.measured_s_N.mean())), "", "", "", "")
    for name, replayed, speedup in (
        ("replayed: FSDP", found.fsdp, "baseline"),
        ("replayed: ODC", found.odc, f"{found.speedup:.2f}"),
    ):
        parts = replayed.fractions
        shares = (f"{share:.1%}" for share in (parts.compute, parts.synchronization, parts.exposed_communication))
        table.add_row(name, format_seconds(float(replayed.minibatch_s_N.mean())), speedup, *shares)
    balanced = (format_seconds(float(found.balanced_s_N.mean())), f"{found.balanced_speedup:.2f}")
    table.add_row("ODC, compute shared evenly", *balanced, "", "", "")
    Console().print(table)
    typer.echo(
        f"ODC with the same plan: {found.speedup:.2f}x; with a plan that shares compute evenly, which nothing can "
        f"beat: {found.balanced_speedup:.2f}x. Replayed as it was run, the run is {found.error:+.1%} off what it took: "
        "trust the speedups no further than that."
    )
