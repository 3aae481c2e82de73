"""docs/launch.md holds: its commands run, its scenarios too, and its table lists every option and default."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from launch_page import COMMANDS, PAGE, SCENARIOS
from launched import odcrt
from typer.main import get_command

from odcrt.cli import app
from odcsim import load_scenario
from odcsim.resolve import resolve


@pytest.mark.timeout(60)
def test_the_command_on_a_script_runs(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    (command,) = (words for words in map(shlex.split, COMMANDS) if "train.py" in words)
    run = odcrt(*command, folder=tmp_path)
    assert run.code == 0, run.err
    assert run.out.splitlines()[0].endswith("['--learning-rate', '1e-4']")


def test_there_are_commands_for_every_scenario_and_a_script():
    assert len(COMMANDS) == len(SCENARIOS) + 1
    for scenario in SCENARIOS:
        assert any(scenario.name in command for command in COMMANDS)


def test_every_command_on_a_scenario_is_run():
    """In small, by the tests that look at what comes of it."""
    sources = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    run = {name for source in sources for name in re.findall(r'command_on\("([\w.-]+)"\)', source)}
    assert run == {scenario.name for scenario in SCENARIOS}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_resolve_without_warnings(path):
    assert resolve(load_scenario(path), base_folder=path.parent).warnings == ()


def test_the_table_lists_every_option_with_its_default():
    table = PAGE[PAGE.index("## Options") : PAGE.index("## What a scenario runs")]
    documented = dict(re.findall(r"^\| `(--[\w-]+)[^|]*\| ([^|]*?) *\|", table, flags=re.MULTILINE))
    parameters = {
        option: parameter.default
        for parameter in get_command(app).commands["launch"].params
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    }
    assert set(documented) == set(parameters)
    assert documented["--prefix"] == f"`{parameters['--prefix'].value}`"
    assert documented["--deadline"] == f"`{parameters['--deadline']:g}`"
