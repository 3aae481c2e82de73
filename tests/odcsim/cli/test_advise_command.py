"""`odcsim advise`: what it writes and prints, and one line, exit code 2 and no file for whatever is at fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import typer

from odcsim.cli.app import app

FILES = ["out/small-advice.html", "out/small-advice.json"]


def files_in(folder):
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != "s.yaml"
    )


def test_files_and_tables(odcsim, scenario_file, tmp_path):
    ended = odcsim("advise", scenario_file, "--out", "out")
    assert (ended.code, ended.err) == (0, "")
    assert files_in(tmp_path) == FILES
    for text in (
        "FSDP lb-micro",
        "ODC dynamic",
        "ladder",
        "knobs, one at a time",
        "what is lost where the model is wrong",
    ):
        assert text in ended.out
    assert ended.out.splitlines()[-2:] == ["report: out/small-advice.html", "result: out/small-advice.json"]
    page = (tmp_path / "out" / "small-advice.html").read_text()
    assert page.startswith("<!")
    assert f"odcsim advise {scenario_file}" in page


def test_json_is_one_document_and_the_file(odcsim, scenario_file, tmp_path):
    ended = odcsim("advise", scenario_file, "--json", "--out", "out")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (tmp_path / "out" / "small-advice.json").read_text()
    document = json.loads(ended.out)
    assert document["schema"] == "odcsim.advice/1"
    assert document["minibatches"] == {"candidates": 3, "knobs_and_regret": 3}


def test_json_stays_one_document_with_warnings(odcsim, scenario_file):
    ended = odcsim("advise", scenario_file, "--json", "--set", "cluster.contention=true")
    warning = "cluster.contention has no effect: there is one node only"
    assert json.loads(ended.out)["warnings"] == [warning]
    assert ended.err == f"odcsim: warning: {warning}\n"


def test_minibatches_take_the_place_of_the_scenarios(odcsim, scenario_file, tmp_path):
    ended = odcsim("advise", scenario_file, "--json", "--set", "workload.minibatches=9", "--minibatches", "5")
    document = json.loads(ended.out)
    assert document["minibatches"]["candidates"] == 5
    page = (tmp_path / "reports" / "small-advice.html").read_text()
    assert "--set workload.minibatches=9 --minibatches 5" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minibatches", "0"], "s.yaml: workload.minibatches: 0: must be at least 1"),
        (["--minibatches", "many"], "invalid value for '--minibatches'"),
        (["--set", "cases.0.policy=lb-mirco"], "s.yaml: cases.0.policy: 'lb-mirco': unknown policy"),
        (["--set", "cases.1.policy=lb-mirco"], "s.yaml: cases.1.policy: 'lb-mirco': unknown policy"),
        (["--set", "cases.0.policy=lb-mini"], "s.yaml: cases.0.policy: 'lb-mini': lb-mini gives ranks unequal"),
        (["--set", "cluster.gpu=a101"], "s.yaml: cluster.gpu: 'a101': unknown GPU"),
        (["--set", "workload.max_tokens=3000"], "s.yaml: workload.oversize: 'error': minibatch 0: sample "),
        (["--engine", "events"], "no such option: --engine"),
    ],
)
def test_what_is_at_fault_ends_in_one_line(odcsim, scenario_file, tmp_path, arguments, message):
    ended = odcsim("advise", scenario_file, "--out", tmp_path / "out", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("odcsim: error: ")
    assert ended.err.count("\n") == 1
    assert message in ended.err
    assert files_in(tmp_path) == []


def test_out_is_a_file(odcsim, scenario_file, tmp_path, monkeypatch):
    """Said before anything is simulated."""
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("odcsim.analysis.advise.advise", None)
    ended = odcsim("advise", scenario_file, "--out", "file")
    assert ended == (2, "", "odcsim: error: --out: 'file': is no folder; allowed: a folder, which is made if missing\n")


def test_neither_file_is_written_if_one_cannot_be(odcsim, scenario_file, tmp_path):
    (tmp_path / "out" / "small-advice.json").mkdir(parents=True)
    ended = odcsim("advise", scenario_file, "--out", "out")
    assert ended == (2, "", "odcsim: error: out/small-advice.json: is a folder; a file is to be written here\n")
    assert files_in(tmp_path) == []


def test_nothing_that_fits_is_an_answer(odcsim, scenario_file):
    ended = odcsim("advise", scenario_file, "--set", "model=qwen2.5-72b")
    assert ended.code == 0
    assert "Nothing that was tried fits in memory." in ended.out
    assert "would fit with cluster.nodes: " in ended.out


def test_the_same_command_gives_the_same_bytes(scenario_file, tmp_path):
    """Whatever order Python's sets and dictionaries have in memory."""
    results = []
    for seed in ("1", "2"):
        out = tmp_path / f"out{seed}"
        program = [sys.executable, "-c", "from odcsim.cli import main; main()"]
        command = [*program, "advise", str(scenario_file), "--out", str(out), "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ended = subprocess.run(command, env=environment, capture_output=True, check=True)
        results.append((ended.stdout, *(path.read_bytes() for path in sorted(out.iterdir()))))
    assert results[0] == results[1]


def test_progress_is_shown_on_a_terminal_only(odcsim, scenario_file, monkeypatch):
    assert odcsim("advise", scenario_file).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ended = odcsim("advise", scenario_file, "--json")
    assert "simulating" in ended.err
    json.loads(ended.out)


def test_help_has_an_example(odcsim):
    ended = odcsim("advise", "--help")
    assert ended.code == 0
    assert "Example: odcsim advise scenarios/quickstart.yaml" in ended.out


def test_the_page_of_the_command_lists_every_option_and_key(odcsim, scenario_file, root):
    page = (root / "docs" / "advise.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| `")]
    documented = {cell.strip("`").split()[0] for cell in cells}
    options = {
        option
        for parameter in typer.main.get_command(app).commands["advise"].params
        for option in parameter.opts
        if option.startswith("--")
    }
    keys = set(json.loads(odcsim("advise", scenario_file, "--json").out))
    assert {name for name in documented if name.startswith("--")} == {*options, "--help"}
    assert keys <= documented
