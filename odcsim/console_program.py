"""How a command-line program ends: errors become one line on standard error, and an exit code.

0: done. 1: a run failed. 2: the user's input is at fault; the line says where, and what is allowed.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from odcsim.errors import InputError, OdcError

__all__ = ["run_program"]

# What Typer raises for a wrong command line and would show in several lines; it exports this class of it only.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run_program(app: typer.Typer, *, name: str) -> NoReturn:
    """Run `app` on the command line of this process, and end it.

    Args:
        app: the program; a command that returns a number ends it with that exit code.
        name: of the program, in messages.
    """
    try:
        # Without a command, the answer is the help.
        code = app(sys.argv[1:] or ["--help"], prog_name=name, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except InputError as error:
        _fail(name, error, 2)
    except _UsageError as error:
        _fail(name, _usage_error(error, name), 2)
    except OdcError as error:
        _fail(name, error, 1)
    except (BrokenPipeError, SystemExit):
        # The reader of our output has gone (`odcsim ... | head`), which Typer and rich make an exit of: nothing more to
        # say.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # Files are read and written elsewhere, with errors of their own: this is standard output on a full disk.
        _drop_output()
        _fail(name, error, 1)
    sys.exit(code)


def _drop_output() -> None:
    """Let nothing that is still buffered fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_error(error: Exception, name: str) -> InputError:
    """A usage error on one line."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else name
    # Some versions of Typer add where they found the fault: pydantic's "Value error".
    problem = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "").rstrip(".")
    return InputError(f"{problem[0].lower()}{problem[1:]}; see {command} --help")


def _fail(name: str, error: Exception, code: int) -> NoReturn:
    print(f"{name}: error: {error}", file=sys.stderr)
    sys.exit(code)
