"""`odcsim schema`: JSON Schema of a scenario file."""

from __future__ import annotations

import typer

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON Schema of a scenario file, for editors and checks.

    Example: odcsim schema > scenario.schema.json
    """
    import json

    from odcsim.scenario import scenario_schema

    typer.echo(json.dumps(scenario_schema(), indent=1))
