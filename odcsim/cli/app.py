"""The `odcsim` program: its commands, and how errors become exit codes.

0: done. 1: a run failed. 2: the user's input is at fault; one line on standard error says where and what is allowed.
"""

from __future__ import annotations

import os
import sys

import typer

from odcsim.cli.catalog import catalog
from odcsim.cli.run import run
from odcsim.cli.schema import schema
from odcsim.errors import InputError, OdcError

__all__ = ["app", "main"]

app = typer.Typer(
    name="odcsim",
    help="Simulate LLM post-training under FSDP and under On-Demand Communication (ODC): utilization, throughput, "
    "memory and speedup, on real sequence lengths.\n\nExample: odcsim run scenarios/quickstart.yaml",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(schema)
app.command()(catalog)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except InputError as error:
        _fail(error, 2)
    except OdcError as error:
        _fail(error, 1)
    except BrokenPipeError:
        # The reader of our output has gone (`odcsim ... | head`): nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _fail(error: OdcError, code: int) -> None:
    print(f"odcsim: error: {error}", file=sys.stderr)
    sys.exit(code)
