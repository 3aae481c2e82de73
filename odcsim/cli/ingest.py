"""`odcsim ingest`: turn the files of PyTorch's profiler into a run folder; a table of where each rank's time went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from odcsim.foreign import IngestedRun

__all__ = ["ingest"]

_PARTS = ("compute", "waiting", "transfer", "optimizer", "other")


def ingest(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of PyTorch's profiler (.json, .json.gz), one of each rank.", metavar="FILE"),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder to write.", metavar="RUN_DIR")],
    lengths: Annotated[
        Path | None,
        typer.Option(help="What every microbatch held: JSON or JSON lines like run.json's plans.", metavar="FILE"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and no table.")] = False,
) -> None:
    """Turn a profiled FSDP2 run into a run folder, so that everything that reads one can be asked about it.

    Example: odcsim ingest rank0.json.gz rank1.json.gz -o run
    """
    import warnings

    from odcsim.files import require_output_folder
    from odcsim.foreign import ingest as read_files
    from odcsim.trace_format import write_run

    require_output_folder(out, key="--out")
    ingested = read_files(files, lengths=lengths, warn=_warn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_run(out, ingested.info, ingested.spans_of_ranks)
    if json:
        import json as json_module

        typer.echo(json_module.dumps(_document(ingested, out), indent=1, allow_nan=False))
    else:
        _print_table(ingested, out)
    for text in [*ingested.notes, *(str(warning.message) for warning in caught)]:
        _warn(text)


def _warn(text: str) -> None:
    typer.echo(f"odcsim: warning: {text}", err=True)


def _document(ingested: IngestedRun, out: Path) -> dict[str, Any]:
    from dataclasses import asdict

    from odcsim.foreign import shares_of

    info = ingested.info
    return {
        "run": str(out),
        "ranks": info.world_size,
        "transport": info.case["transport"],
        "minibatches": {"first": info.window.start, "count": len(info.window)},
        "microbatches": [list(counts) for counts in ingested.microbatches_ND],
        "units": list(ingested.units),
        "clock": asdict(info.clock),
        "shares": [
            {"rank": rank, "host": info.hosts[rank], **asdict(shares_of(spans))}
            for rank, spans in enumerate(ingested.spans_of_ranks)
        ],
        "notes": list(ingested.notes),
    }


def _print_table(ingested: IngestedRun, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from odcsim.foreign import shares_of
    from odcsim.units import format_seconds

    info = ingested.info
    table = Table("rank", "host", "time", *_PARTS)
    for rank, spans in enumerate(ingested.spans_of_ranks):
        shares = shares_of(spans)
        parts = (f"{getattr(shares, part):.1%}" for part in _PARTS)
        table.add_row(str(rank), info.hosts[rank], format_seconds(shares.seconds), *parts)
    Console().print(table)
    counts = [count for counts in ingested.microbatches_ND for count in counts]
    microbatches = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    typer.echo(
        f"{info.world_size} ranks under {info.case['transport']}; minibatches {info.window.start} to "
        f"{info.window.stop - 1}, {microbatches} microbatches a rank in each; {len(ingested.units)} units"
    )
    farthest_s = max(map(abs, info.clock.offsets_s))
    uncertainty = format_seconds(info.clock.uncertainty_s)
    if info.clock.alignment == "shared":
        typer.echo(f"clock: one for all ranks, within {uncertainty}")
    else:
        typer.echo(f"clocks: aligned by collectives, up to {format_seconds(farthest_s)} apart, within {uncertainty}")
    typer.echo(f"run: {out}")
