"""The `odcsim` program: its commands."""

from __future__ import annotations

import typer

from odcsim.cli.advise import advise
from odcsim.cli.calibrate import calibrate
from odcsim.cli.catalog import catalog
from odcsim.cli.ingest import ingest
from odcsim.cli.replay import replay
from odcsim.cli.run import run
from odcsim.cli.schema import schema
from odcsim.cli.validate import validate
from odcsim.console_program import run_program

__all__ = ["app", "main"]

app = typer.Typer(
    name="odcsim",
    help="Simulate LLM post-training under FSDP and under On-Demand Communication (ODC): utilization, throughput, "
    "memory and speedup, on real sequence lengths.\n\nExample: odcsim run scenarios/quickstart.yaml",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(advise)
app.command()(calibrate)
app.command()(validate)
app.command()(schema)
app.command()(catalog)
app.command()(ingest)
app.command()(replay)


def main() -> None:
    """Entry point of the console script."""
    run_program(app, name="odcsim")
