"""`odcsim calibrate`: the costs that it writes, what it prints, and one line, exit code 2 and no file for bad input."""

from __future__ import annotations

import json

import pytest
import yaml
from recorded_runs import simulated_runs

from odcsim.costs.calibrated import load_costs
from odcsim.trace_format import rank_file


@pytest.fixture
def runs(scenario_file, tmp_path):
    """Folders of the small scenario's two cases."""
    return simulated_runs(scenario_file, tmp_path / "runs", noise=0.02)


def files_in(folder):
    """Every file but the scenario and the runs."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path != "s.yaml" and not path.startswith("runs/"))


@pytest.fixture
def fails(odcsim, tmp_path):
    """Runs a command that must fail cleanly; its message."""

    def message(*arguments):
        before = files_in(tmp_path)
        ended = odcsim("calibrate", *arguments)
        assert (ended.code, ended.out) == (2, "")
        assert files_in(tmp_path) == before
        assert ended.err.startswith("odcsim: error: ")
        assert ended.err.removesuffix("\n").isprintable(), "more than one line, or control characters"
        return ended.err.removesuffix("\n").removeprefix("odcsim: error: ").replace(f"{tmp_path}/", "")

    return message


def test_costs_page_and_table(odcsim, runs, tmp_path):
    ended = odcsim("calibrate", "runs")
    assert ended.code == 0
    assert files_in(tmp_path) == ["costs.html", "costs.yaml"]
    assert ended.out.splitlines()[-2:] == ["costs: costs.yaml", "report: costs.html"]
    for name in ("block backward", "all-gather over collective", "one-sided gather", "optimizer"):
        assert name in ended.out
    costs = load_costs(tmp_path / "costs.yaml")
    assert costs.origin.runs == tuple(run.name for run in runs)
    assert ended.err == "".join(f"odcsim: warning: {warning}\n" for warning in costs.warnings)
    page = (tmp_path / "costs.html").read_text()
    assert "odcsim calibrate runs -o costs.yaml" in page


def test_a_folder_of_runs_is_the_same_as_its_runs(odcsim, runs, tmp_path):
    odcsim("calibrate", *runs, "-o", "one.yaml")
    odcsim("calibrate", tmp_path / "runs", runs[0], "-o", "two.yaml")
    assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()


def test_json_is_the_costs_alone(odcsim, runs, tmp_path):
    ended = odcsim("calibrate", "runs", "--json")
    document = json.loads(ended.out)
    assert document["schema"] == "odcsim.costs/2"
    written = yaml.safe_load((tmp_path / "costs.yaml").read_text())
    assert document.keys() == written.keys()
    value = document["compute"]["block_forward"]["tokens"]["value"]
    assert value == pytest.approx(written["compute"]["block_forward"]["tokens"]["value"], rel=1e-6)


def test_files_go_where_they_are_told_to(odcsim, runs, tmp_path):
    ended = odcsim("calibrate", "runs", "-o", "a/b.yaml", "--report", "c/d.html")
    assert (ended.code, files_in(tmp_path)) == (0, ["a/b.yaml", "c/d.html"])
    assert ended.out.endswith("costs: a/b.yaml\nreport: c/d.html\n")
    assert "--report c/d.html" in (tmp_path / "c" / "d.html").read_text()


def test_a_scenario_takes_the_costs(odcsim, runs, scenario_file):
    odcsim("calibrate", "runs")
    ended = odcsim("run", scenario_file, "--set", "compute={calibrated: costs.yaml}", "--set", "overlap=none", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["scenario"]["compute"] == {"calibrated": "costs.yaml"}


def test_the_same_runs_give_the_same_bytes(odcsim, runs, tmp_path):
    odcsim("calibrate", "runs")
    first = [(tmp_path / name).read_bytes() for name in files_in(tmp_path)]
    odcsim("calibrate", "runs")
    assert first == [(tmp_path / name).read_bytes() for name in files_in(tmp_path)]


def test_help_has_an_example(odcsim):
    ended = odcsim("calibrate", "--help")
    assert ended.code == 0
    assert "Example: odcsim calibrate" in ended.out


def test_no_such_folder(fails):
    assert fails("nowhere").startswith("nowhere: no such folder; give the folder of a recorded run")


def test_a_folder_without_runs(fails, tmp_path):
    (tmp_path / "empty").mkdir()
    assert fails("empty").startswith("empty: holds no run.json")


def test_no_folder_at_all(fails):
    assert "missing argument" in fails()


def test_a_trace_that_is_cut(fails, runs):
    trace = rank_file(runs[0], 1)
    trace.write_bytes(trace.read_bytes()[:-30])
    assert fails("runs").startswith("runs/0-fsdp-lb-micro/rank-00001.jsonl.gz: line ")


def test_a_rank_that_is_missing(fails, runs):
    rank_file(runs[1], 2).unlink()
    assert "no trace of rank 2 (rank-00002.jsonl.gz), though 4 ranks were recorded" in fails("runs")


def test_runs_of_different_ranks(fails, runs, scenario_file, tmp_path):
    simulated_runs(scenario_file, tmp_path / "runs" / "more", overrides=["overlap=none", "cluster.nodes=2"])
    message = fails("runs", "runs/more")
    assert message.startswith("runs/more/0-fsdp-lb-micro/run.json: world_size: 8: must be 4")


def test_a_page_in_place_of_the_costs(fails, runs):
    assert fails("runs", "-o", "c.html") == ("--report: 'c.html': is the file of the costs too; allowed: another file")


@pytest.mark.parametrize("option", ["--output", "--report"])
def test_a_folder_that_is_none(fails, runs, option):
    assert fails("runs", option, "s.yaml/costs").startswith(f"{option}: 's.yaml': is no folder")
