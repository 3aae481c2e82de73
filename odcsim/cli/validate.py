"""`odcsim validate`: predicted against measured; table on the terminal, document and page in a folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from odcsim.scenario import Scenario

__all__ = ["validate"]


def validate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (YAML).", metavar="SCENARIO")],
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of recorded runs of the scenario, or folders of such.", metavar="RUN_DIR..."),
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document, and no table.")] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for NAME.validation.json and NAME.validation.html.", metavar="DIR")
    ] = Path("reports"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the scenario; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
) -> None:
    """Predict what recorded runs of a scenario took, and tell how far off each prediction is.

    Several runs of one case are repeats. Runs that the scenario's costs were fitted to are shown, and not judged.

    Example: odcsim validate scenarios/quickstart.yaml traces/run

    Example: odcsim validate s.yaml runs/a runs/b --set 'compute={calibrated: costs.yaml}'
    """
    from odcsim.analysis.validate import validate as compare
    from odcsim.analysis.validation_document import validation_document
    from odcsim.cli.recorded_runs import read_runs
    from odcsim.files import require_output_folder, write_together
    from odcsim.report import render_validation_page
    from odcsim.scenario import load_scenario

    loaded = load_scenario(scenario, overrides=overrides or [])
    require_output_folder(out, key="--out")
    validation = compare(loaded, read_runs(runs), base_folder=scenario.parent, file=scenario)
    document = _as_json(validation_document(validation))
    costs = _costs(loaded)
    settings = [part for override in overrides or [] for part in ("--set", override)]
    command = shlex.join(["odcsim", "validate", str(scenario), *map(str, runs), *settings])
    page = render_validation_page(validation, command=command, costs=costs)
    json_file, page_file = (out / f"{validation.name}.validation.{kind}" for kind in ("json", "html"))
    write_together({json_file: document, page_file: page})
    if json:
        typer.echo(document, nl=False)
    else:
        from rich.console import Console

        from odcsim.report import print_validation

        print_validation(validation, Console(), costs=costs)
        typer.echo(f"report: {page_file}\nresult: {json_file}")
    for warning in validation.warnings:
        typer.echo(f"odcsim: warning: {warning}", err=True)


def _costs(scenario: Scenario) -> str:
    """Which costs are put to the test, in a few words."""
    compute = scenario.compute
    if compute.calibrated is not None:
        return f"calibrated, {compute.calibrated}"
    return "analytic" if compute.fitted is None else "compute fitted by the scenario, transfers by the catalog"


def _as_json(document: object) -> str:
    import json

    return json.dumps(document, indent=1, allow_nan=False) + "\n"
