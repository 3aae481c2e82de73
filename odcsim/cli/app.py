"""The `odcsim` program: its commands, and how errors become exit codes.

0: done. 1: a run failed. 2: the user's input is at fault; one line on standard error says where and what is allowed.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from odcsim.cli.catalog import catalog
from odcsim.cli.run import run
from odcsim.cli.schema import schema
from odcsim.errors import InputError, OdcError

__all__ = ["app", "main"]

# What Typer raises for a wrong command line and would show in several lines; it exports this class of it only.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="odcsim",
    help="Simulate LLM post-training under FSDP and under On-Demand Communication (ODC): utilization, throughput, "
    "memory and speedup, on real sequence lengths.\n\nExample: odcsim run scenarios/quickstart.yaml",
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
        # Without a command, the answer is the help.
        code = app(sys.argv[1:] or ["--help"], prog_name="odcsim", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except InputError as error:
        _fail(error, 2)
    except _UsageError as error:
        _fail(_usage_error(error), 2)
    except OdcError as error:
        _fail(error, 1)
    except (BrokenPipeError, SystemExit):
        # The reader of our output has gone (`odcsim ... | head`), which Typer and rich make an exit of: nothing more to
        # say.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # Files are read and written elsewhere, with errors of their own: this is standard output on a full disk.
        _drop_output()
        _fail(error, 1)
    sys.exit(code)


def _drop_output() -> None:
    """Let nothing that is still buffered fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_error(error: Exception) -> InputError:
    """A usage error on one line."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "odcsim"
    # Some versions of Typer add where they found the fault: pydantic's "Value error".
    problem = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "").rstrip(".")
    return InputError(f"{problem[0].lower()}{problem[1:]}; see {command} --help")


def _fail(error: Exception, code: int) -> NoReturn:
    print(f"odcsim: error: {error}", file=sys.stderr)
    sys.exit(code)
