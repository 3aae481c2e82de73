"""`odcsim advise`: which sync, policy and knobs suit a workload, and why; table, NAME-advice.json, NAME-advice.html."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["advise"]


def advise(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", metavar="SCENARIO")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the advice as one JSON document, and no table.")] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for NAME-advice.json and NAME-advice.html.", metavar="DIR")
    ] = Path("reports"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the scenario; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    minibatches: Annotated[
        int | None,
        typer.Option("--minibatches", help="Compare on so many minibatches instead of the scenario's.", metavar="N"),
    ] = None,
) -> None:
    """Tell which sync, policy and knobs suit a scenario's workload, by how much, and why.

    Every sync is simulated with every policy that fits it; the scenario's first case is what you run now.

    Example: odcsim advise scenarios/quickstart.yaml --minibatches 100
    """
    from odcsim.analysis.advice_document import advice_document
    from odcsim.analysis.advise import advise as advise_on
    from odcsim.cli.progress import simulation_progress
    from odcsim.files import require_output_folder, write_together
    from odcsim.report.advice_page import advice_page
    from odcsim.scenario import load_scenario

    settings = [*(overrides or []), *([] if minibatches is None else [f"workload.minibatches={minibatches}"])]
    loaded = load_scenario(scenario, overrides=settings)
    require_output_folder(out, key="--out")
    with simulation_progress() as progress:
        advice = advise_on(loaded, base_folder=scenario.parent, file=scenario, progress=progress)
    document = _as_json(advice_document(advice))
    command = _command(scenario, overrides or [], minibatches)
    json_file, page_file = (out / f"{advice.name}-advice.{kind}" for kind in ("json", "html"))
    write_together({json_file: document, page_file: advice_page(advice, command=command)})
    if json:
        typer.echo(document, nl=False)
    else:
        from rich.console import Console

        from odcsim.report.advice_table import print_advice_table

        print_advice_table(advice, Console())
        typer.echo(f"report: {page_file}\nresult: {json_file}")
    for warning in advice.warnings:
        typer.echo(f"odcsim: warning: {warning}", err=True)


def _command(scenario: Path, overrides: list[str], minibatches: int | None) -> str:
    """The command that repeats it."""
    settings = [part for override in overrides for part in ("--set", override)]
    few = [] if minibatches is None else ["--minibatches", str(minibatches)]
    return shlex.join(["odcsim", "advise", str(scenario), *settings, *few])


def _as_json(document: object) -> str:
    import json

    return json.dumps(document, indent=1, allow_nan=False) + "\n"
