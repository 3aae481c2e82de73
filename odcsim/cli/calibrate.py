"""`odcsim calibrate`: costs fitted to recorded runs; table on the terminal, the costs and a page in files."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from odcsim.costs.calibrated import CalibratedCosts

__all__ = ["calibrate"]


def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of recorded runs, or folders of such.", metavar="RUN_DIR...")
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the costs.", metavar="FILE")] = Path(
        "costs.yaml"
    ),
    report: Annotated[
        Path | None,
        typer.Option("--report", help="File for the page; by default, FILE.html beside the costs.", metavar="FILE"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the costs as one JSON document, and no table.")] = False,
) -> None:
    """Fit the costs of compute, transfers, steps and memory to recorded runs of one scenario.

    A scenario takes them by `compute: {calibrated: FILE}`.

    Example: odcsim calibrate traces/run -o costs.yaml

    Example: odcsim calibrate traces/run/0-fsdp-lb-micro traces/run/1-odc-lb-micro
    """
    from odcsim.analysis.calibrate import calibrate as fit
    from odcsim.cli.recorded_runs import read_runs
    from odcsim.costs.calibrated import costs_text
    from odcsim.errors import InputError
    from odcsim.files import require_output_folder, write_together
    from odcsim.report import render_calibration_page

    page_file = output.with_suffix(".html") if report is None else report
    if page_file.absolute() == output.absolute():
        raise InputError("is the file of the costs too; allowed: another file", key="--report", value=str(page_file))
    require_output_folder(output.parent, key="--output")
    require_output_folder(page_file.parent, key="--report")
    calibration = fit(read_runs(runs))
    costs = calibration.costs
    page = render_calibration_page(
        calibration, command=shlex.join(_command(runs, output, report)), costs_file=str(output)
    )
    write_together({output: costs_text(costs), page_file: page})
    if json:
        typer.echo(_as_json(costs), nl=False)
    else:
        from rich.console import Console

        from odcsim.report import print_calibration

        print_calibration(calibration, Console())
        typer.echo(f"costs: {output}\nreport: {page_file}")
    for warning in costs.warnings:
        typer.echo(f"odcsim: warning: {warning}", err=True)


def _command(runs: list[Path], output: Path, report: Path | None) -> list[str]:
    """The command that repeats it."""
    page = [] if report is None else ["--report", str(report)]
    return ["odcsim", "calibrate", *map(str, runs), "-o", str(output), *page]


def _as_json(costs: CalibratedCosts) -> str:
    import json

    document = costs.model_dump(mode="json", by_alias=True)
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
