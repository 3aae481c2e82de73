"""The `odcrt` program: its command, and how errors become exit codes.

0: done. 1: a run failed. 2: the user's input is at fault; one line on standard error says where and what is allowed.
A script's own exit code is passed on, and 128 + the signal where a signal ended it.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from odcrt.launching.output import Prefix
from odcsim.console_program import run_program
from odcsim.errors import InputError, RunError

if TYPE_CHECKING:
    from odcsim.results import RunResult

__all__ = ["app", "main"]

_SCENARIO_SUFFIXES = {".yaml", ".yml"}
# A lone backspace keeps the lines of the paragraph after it.
_LAUNCH_HELP = """Run every case of a scenario for real, or a script of your own as torchrun would.

\b
Examples:
  odcrt launch scenarios/runtime/two-ranks.yaml --set workload.minibatches=4
  odcrt launch scenarios/runtime/emulated-8.yaml --json --record traces-of-it
  odcrt launch --nproc 2 train.py --learning-rate 1e-4
"""
_INSTALL = "PyTorch is not installed; the runtime needs it: pip install 'odcsim[rt]'"

app = typer.Typer(
    name="odcrt",
    help="Run LLM post-training on PyTorch FSDP2, with collectives or with On-Demand Communication (ODC).\n\n"
    "Example: odcrt launch scenarios/runtime/two-ranks.yaml",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program() -> None:
    """Keeps `launch` a command of its own while it is the only one."""


def _is_scenario(target: object) -> bool:
    return Path(str(target)).suffix.lower() in _SCENARIO_SUFFIXES


class _LaunchCommand(TyperCommand):
    """Options may follow a scenario; what follows a script is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer does not export the type
        ctx.allow_interspersed_args = False
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.allow_interspersed_args = _is_scenario(found.get("target"))
        return super().parse_args(ctx, args)


@app.command(cls=_LaunchCommand, help=_LAUNCH_HELP)
def launch(
    target: Annotated[
        Path, typer.Argument(help="Scenario file (.yaml), or a Python script.", metavar="SCENARIO|SCRIPT")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.", metavar="ARGS")] = None,
    *,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc",
            min=1,
            max=1024,
            help="Processes, one a rank. A scenario's ranks, or half of the CPUs (2 to 8) for a script.",
            metavar="N",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Folder for traces: one folder a case.", metavar="DIR")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", help="Minibatches that --record keeps, 0:20 by default.", metavar="FIRST:COUNT"),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", help="Keep what every rank prints, in rank-N.log.", metavar="DIR"),
    ] = None,
    prefix: Annotated[
        Prefix, typer.Option("--prefix", help="Whose lines begin with [rank N]; others: all but rank 0's.")
    ] = Prefix.OTHERS,
    deadline: Annotated[
        float,
        typer.Option(
            "--deadline",
            min=0.1,
            help="Longest that ranks wait for each other; once one has failed, others get 5 s more to end.",
            metavar="SECONDS",
        ),
    ] = 60.0,
    json: Annotated[
        bool, typer.Option("--json", help="Scenario: print the result as one JSON document, and no table.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Scenario: folder for NAME.measured.json and .html; reports.", metavar="DIR"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Scenario: override a key; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
) -> int:
    """See `_LAUNCH_HELP`."""
    from odcrt.tracing.window import DEFAULT_WINDOW, parse_window

    if window is not None and record is None:
        raise InputError("has no effect without --record DIR", key="--window", value=window)
    recorded = DEFAULT_WINDOW if window is None else parse_window(window, key="--window")
    if not _is_scenario(target):
        for option, given in (("--json", json), ("--out", out is not None), ("--set", bool(overrides))):
            if given:
                raise InputError("is for scenarios (.yaml); options of a script come after it", key=option)
        from odcrt.launch.script import default_ranks, launch_script

        if find_spec("torch") is None:
            print(f"odcrt: warning: {_INSTALL}", file=sys.stderr)
        return launch_script(
            target,
            arguments or [],
            ranks=nproc or default_ranks(),
            record=record,
            window=recorded,
            log_folder=log_dir,
            prefix=prefix,
            deadline_s=deadline,
        )
    if arguments:
        raise InputError("a scenario takes no arguments; keys are set with --set KEY=VALUE", value=arguments[0])
    if find_spec("torch") is None:
        raise RunError(_INSTALL)
    from odcrt.launch.progress import terminal_progress
    from odcrt.launch.scenario import ScenarioOptions, run_scenario
    from odcsim.files import require_output_folder
    from odcsim.scenario import load_scenario

    settings = [*(overrides or []), *([] if nproc is None else ["cluster.nodes=1", f"cluster.gpus_per_node={nproc}"])]
    scenario = load_scenario(target, overrides=settings)
    out = out or Path("reports")
    require_output_folder(out, key="--out")
    if record is not None:
        require_output_folder(record, key="--record")
    with terminal_progress() as progress:
        options = ScenarioOptions(
            record=record,
            window=recorded,
            log_folder=log_dir,
            prefix=prefix,
            deadline_s=deadline,
            progress=progress,
        )
        result = run_scenario(scenario, file=target, options=options)
    if isinstance(result, int):
        return result
    words = ["odcrt", "launch", str(target), *(part for setting in settings for part in ("--set", setting))]
    _show(result, command=shlex.join(words), out=out, record=record, as_json=json)
    return 0


def _show(result: RunResult, *, command: str, out: Path, record: Path | None, as_json: bool) -> None:
    """Write the result's files, and print the table or the document."""
    import json

    from odcsim.files import write_together
    from odcsim.report import render_page

    document = json.dumps(result.to_document(), indent=1, allow_nan=False) + "\n"
    json_file, page_file = out / f"{result.name}.measured.json", out / f"{result.name}.measured.html"
    write_together({json_file: document, page_file: render_page(result, command=command)})
    if as_json:
        typer.echo(document, nl=False)
    else:
        from rich.console import Console

        from odcsim.report import print_table

        print_table(result, Console())
        typer.echo(f"report: {page_file}\nresult: {json_file}")
        if record is not None:
            typer.echo(f"traces: {record}")
    for warning in result.warnings:
        typer.echo(f"odcrt: warning: {warning}", err=True)


def main() -> None:
    """Entry point of the console script."""
    run_program(app, name="odcrt")
