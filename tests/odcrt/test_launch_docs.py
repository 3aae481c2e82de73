"""docs/launch.md holds: its commands run, in small, its scenarios too, and its table lists every option and default."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from launched import odcrt
from typer.main import get_command

from odcrt.cli import app
from odcsim import load_scenario
from odcsim.resolve import resolve

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "launch.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(odcrt launch .*?)(?:\s*#.*)?$", PAGE, flags=re.MULTILINE)
SCENARIOS = sorted((ROOT / "scenarios" / "runtime").glob("*.yaml"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, tmp_path):
    pytest.importorskip("torch")
    for name in ("scenarios", "traces"):
        (tmp_path / name).symlink_to(ROOT / name, target_is_directory=True)
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    words = shlex.split(command)[1:]
    if any(word.endswith(".yaml") for word in words):
        # One minibatch of the first and the last case: what takes long is left out.
        words += ["--nproc", "2", "--set", "workload.minibatches=1", "--set", "workload.samples_per_rank=2"]
    run = odcrt(*words, folder=tmp_path)
    assert run.code == 0, run.err
    if "train.py" in words:
        assert run.out.splitlines()[0].endswith("['--learning-rate', '1e-4']")
    else:
        assert re.search(r"^report: reports/[\w-]+\.measured\.html$", run.out, re.MULTILINE)


def test_there_are_commands_for_every_scenario_and_a_script():
    assert len(COMMANDS) == len(SCENARIOS) + 1
    for scenario in SCENARIOS:
        assert any(scenario.name in command for command in COMMANDS)


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
