"""`odcsim run`: simulate every case of a scenario; table on the terminal, NAME.json and NAME.html in a folder."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from odcsim.results import RunResult

__all__ = ["run"]


class Engine(StrEnum):
    """Choices of --engine."""

    AUTO = "auto"
    RECURRENCE = "recurrence"
    EVENTS = "events"


def run(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", metavar="SCENARIO")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document, and no table.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for NAME.json and NAME.html.", metavar="DIR")] = Path(
        "reports"
    ),
    engine: Annotated[
        Engine, typer.Option(help="recurrence is fast; events also models shared links; auto takes what is needed.")
    ] = Engine.AUTO,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the scenario; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Simulate every case of a scenario.

    Example: odcsim run scenarios/quickstart.yaml --set workload.samples_per_rank=8
    """
    from odcsim.cli.progress import simulation_progress
    from odcsim.files import require_output_folder, write_together
    from odcsim.report import render_page
    from odcsim.scenario import load_scenario
    from odcsim.simulation import simulate

    loaded = load_scenario(scenario, overrides=overrides or [])
    require_output_folder(out, key="--out")
    with simulation_progress() as progress:
        result = simulate(loaded, base_folder=scenario.parent, file=scenario, engine=engine.value, progress=progress)
    document = _as_json(result)
    page = render_page(result, command=_command(scenario, engine, overrides or []))
    json_file, page_file = out / f"{result.name}.json", out / f"{result.name}.html"
    write_together({json_file: document, page_file: page})
    if json:
        typer.echo(document, nl=False)
    else:
        from rich.console import Console

        from odcsim.report import print_table

        print_table(result, Console())
        typer.echo(f"report: {page_file}\nresult: {json_file}")
    for warning in result.warnings:
        typer.echo(f"odcsim: warning: {warning}", err=True)


def _command(scenario: Path, engine: Engine, overrides: list[str]) -> str:
    """The command that repeats the run."""
    chosen = [] if engine is Engine.AUTO else ["--engine", engine.value]
    settings = [part for override in overrides for part in ("--set", override)]
    return shlex.join(["odcsim", "run", str(scenario), *chosen, *settings])


def _as_json(result: RunResult) -> str:
    import json

    return json.dumps(result.to_document(), indent=1, allow_nan=False) + "\n"
