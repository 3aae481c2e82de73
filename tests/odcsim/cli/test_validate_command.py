"""`odcsim validate`: what it writes and prints, and one line, exit code 2 and no file for whatever does not fit."""

from __future__ import annotations

import json

import pytest
from recorded_runs import simulated_runs

from odcsim.trace_format import rank_file

OVERLAP = ("--set", "overlap=none")


@pytest.fixture
def runs(scenario_file, tmp_path):
    """Folders of the small scenario's two cases."""
    return simulated_runs(scenario_file, tmp_path / "runs")


def files_in(folder):
    """Every file but the scenario, costs and the runs."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.startswith(("s.yaml", "runs", "costs")))


@pytest.fixture
def fails(odcsim, tmp_path):
    """Runs a command that must fail cleanly; its message."""

    def message(*arguments):
        ended = odcsim("validate", *arguments)
        assert (ended.code, ended.out) == (2, "")
        assert files_in(tmp_path) == []
        assert ended.err.startswith("odcsim: error: ")
        assert ended.err.removesuffix("\n").isprintable(), "more than one line, or control characters"
        return ended.err.removesuffix("\n").removeprefix("odcsim: error: ").replace(f"{tmp_path}/", "")

    return message


def test_the_simulator_predicts_itself(odcsim, runs, scenario_file, tmp_path):
    ended = odcsim("validate", scenario_file, "runs", *OVERLAP)
    assert (ended.code, ended.err) == (0, "")
    assert files_in(tmp_path) == ["reports/small.validation.html", "reports/small.validation.json"]
    assert "The mean absolute error is 0.0% over 2 judged cases" in ended.out
    assert "The order of cases is predicted right." in ended.out
    assert ended.out.splitlines()[-2:] == [
        "report: reports/small.validation.html",
        "result: reports/small.validation.json",
    ]
    document = json.loads((tmp_path / "reports" / "small.validation.json").read_text())
    for case in document["cases"]:
        assert case["seconds_per_minibatch"]["error"] == pytest.approx(0, abs=1e-9)
        assert case["time_fractions"]["measured"] == pytest.approx(case["time_fractions"]["predicted"], abs=1e-9)
    assert document["cases"][1]["speedup"]["predicted"] > 1


def test_json_is_one_document_and_the_file(odcsim, runs, scenario_file, tmp_path):
    ended = odcsim("validate", scenario_file, "runs", "--json", "--out", "out", *OVERLAP)
    assert ended.out == (tmp_path / "out" / "small.validation.json").read_text()
    assert json.loads(ended.out)["schema"] == "odcsim.validation/1"


def test_cases_that_costs_were_fitted_to_are_not_judged(odcsim, runs, scenario_file):
    odcsim("calibrate", runs[0])
    ended = odcsim("validate", scenario_file, "runs", "--json", "--set", "compute={calibrated: costs.yaml}", *OVERLAP)
    document = json.loads(ended.out)
    assert [case["fitted"] for case in document["cases"]] == [True, False]
    assert document["summary"]["judged_cases"] == 1
    assert document["warnings"]
    assert ended.err == "".join(f"odcsim: warning: {warning}\n" for warning in document["warnings"])


def test_runs_of_a_case_are_repeats(odcsim, scenario_file, tmp_path):
    for seed in (1, 2, 3):
        simulated_runs(scenario_file, tmp_path / f"runs{seed}", noise=0.05, seed=seed)
    ended = odcsim("validate", scenario_file, "runs1", "runs2", "runs3", "--json", *OVERLAP)
    document = json.loads(ended.out)
    assert [len(case["runs"]) for case in document["cases"]] == [3, 3]
    for case in document["cases"]:
        assert 0 < case["seconds_per_minibatch"]["repeat_spread"] < 0.3


def test_the_page_repeats_the_command(odcsim, runs, scenario_file, tmp_path):
    odcsim("validate", "s.yaml", "runs", *OVERLAP)
    page = (tmp_path / "reports" / "small.validation.html").read_text()
    assert "odcsim validate s.yaml runs --set overlap=none" in page


def test_help_has_an_example(odcsim):
    ended = odcsim("validate", "--help")
    assert ended.code == 0
    assert "Example: odcsim validate" in ended.out


def test_a_run_of_another_scenario(fails, runs, scenario_file):
    assert fails(scenario_file, "runs", "--set", "workload.seed=1") == (
        "runs/0-fsdp-lb-micro/run.json: scenario.workload.seed: 0: s.yaml has 1: the run is of another scenario"
    )


def test_a_run_of_another_number_of_ranks(fails, runs, scenario_file):
    message = fails(scenario_file, "runs", "--set", "cluster.nodes=2")
    assert message.startswith("runs/0-fsdp-lb-micro/run.json: world_size: 4: s.yaml has 8 ranks")


def test_a_case_that_the_scenario_does_not_have(fails, runs, scenario_file):
    message = fails(scenario_file, "runs", "--set", "cases=[{sync: odc, policy: lb-mini}]")
    assert message == (
        "runs/0-fsdp-lb-micro/run.json: case: 'fsdp lb-micro': s.yaml has no such case; it has: odc lb-mini"
    )


def test_no_such_run(fails, scenario_file):
    assert fails(scenario_file, "nowhere").startswith("nowhere: no such folder")


def test_no_such_scenario(fails, runs):
    assert fails("nowhere.yaml", "runs").startswith("nowhere.yaml: no such file")


def test_no_such_costs(fails, runs, scenario_file):
    message = fails(scenario_file, "runs", "--set", "compute={calibrated: nowhere.yaml}")
    assert message.startswith("s.yaml: compute.calibrated: nowhere.yaml: no such file")


def test_a_trace_that_is_cut(fails, runs, scenario_file):
    trace = rank_file(runs[1], 0)
    trace.write_bytes(trace.read_bytes()[:-30])
    assert fails(scenario_file, "runs").startswith("runs/1-odc-lb-mini/rank-00000.jsonl.gz: line ")


def test_a_rank_that_is_missing(fails, runs, scenario_file):
    rank_file(runs[1], 3).unlink()
    assert "no trace of rank 3" in fails(scenario_file, "runs")


def test_reports_cannot_be_written(fails, runs, scenario_file):
    assert fails(scenario_file, "runs", "--out", "s.yaml").startswith("--out: 's.yaml': is no folder")
