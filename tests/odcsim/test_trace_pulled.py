"""Run folders of minibatches that were pulled: who pulled what is read back, and checked against what ranks ran."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from odcsim.analysis.measured import measure
from odcsim.analysis.observe import observe
from odcsim.analysis.simulated_run import write_simulated_runs
from odcsim.analysis.validate import validate
from odcsim.errors import InputError
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate
from odcsim.trace_format import positions_pulled, read_run, read_run_info

CHANGES = {
    "workload.lengths": {"lognormal": {"mean": 3000, "sigma": 1.0, "max": 8192}},
    "workload.samples_per_rank": 5,
    "cluster.rank_speeds": {1: 0.5},
    "cluster.slowdowns": {"probability": 0.3, "factor": 2.0},
    "overlap": "none",
    "cases": [{"sync": "odc", "policy": "lb-mini"}, {"sync": "odc", "policy": "dynamic"}],
}


@pytest.fixture
def written(changed, tmp_path):
    """The scenario, and the run folders of both cases."""
    scenario = parse_scenario(changed(CHANGES))
    return scenario, write_simulated_runs(scenario, tmp_path, base_folder=Path())


def test_positions_by_rank():
    assert positions_pulled([1, 0, 1, 1], ranks=3) == ((1,), (0, 2, 3), ())
    assert positions_pulled([], ranks=2) == ((), ())


def test_who_pulled_what_is_read_back(written):
    _, (static, pulled) = written
    assert read_run_info(static).pulled == {}
    info = read_run_info(pulled)
    assert set(info.pulled) == set(info.plans) == {0, 1, 2}
    for minibatch, plan in info.plans.items():
        assert [len(positions) for positions in info.pulled[minibatch]] == [len(microbatches) for microbatches in plan]
    assert len({tuple(map(len, plan)) for plan in info.plans.values()}) > 1, "no minibatch is like the other"


def test_a_pulled_run_is_what_was_simulated_and_what_is_predicted(written):
    scenario, folders = written
    runs = [read_run(folder) for folder in folders]
    simulated = simulate(scenario, base_folder=Path())
    for run, case in zip(runs, simulated.cases, strict=True):
        assert measure(observe(run)).minibatch_s_N == pytest.approx(case.minibatch_s_N, rel=1e-9)
    found = validate(scenario, runs, base_folder=Path(), file=Path("scenario.yaml"))
    for case in found.cases:
        assert case.predicted_s_N == pytest.approx(case.measured_s_N, rel=1e-6)


def test_noise_decides_who_pulls_what(changed, tmp_path):
    """The simulated machine's own noise, which the scenario does not know of, is there while ranks pull."""
    scenario = parse_scenario(changed({**CHANGES, "cases": [{"sync": "odc", "policy": "dynamic"}]}))
    found = [
        read_run_info(*write_simulated_runs(scenario, tmp_path / name, base_folder=Path(), noise=noise)).pulled
        for name, noise in (("quiet", 0.0), ("noisy", 0.5))
    ]
    assert found[0] != found[1]


def test_a_folder_of_an_earlier_version_says_nothing_of_pulling(written):
    _, (static, _) = written
    path = static / "run.json"
    document = json.loads(path.read_text())
    assert document.pop("pulled") == []
    path.write_text(json.dumps(document))
    assert read_run_info(static).pulled == {}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda entry: entry.update(minibatch=7), "pulled.0.minibatch: 7: must be a minibatch of `plans`"),
        (lambda entry: entry["ranks"].pop(), "must hold an entry for each of the 4 ranks"),
        (lambda entry: entry["ranks"][0].append(99), "each position once"),
        (lambda entry: entry["ranks"][0].__setitem__(0, entry["ranks"][2][0]), "each position once"),
        (lambda entry: entry["ranks"][0].__setitem__(0, -1), "each position once"),
        (lambda entry: entry["ranks"][0].__setitem__(0, "0"), "each position once"),
        (lambda entry: entry["ranks"][0].reverse(), "each position once"),
        (lambda entry: entry["ranks"].__setitem__(0, {}), "each position once"),
    ],
)
def test_what_cannot_have_been_pulled_is_refused(written, change, problem):
    _, (_, pulled) = written
    path = pulled / "run.json"
    document = json.loads(path.read_text())
    entry = max(document["pulled"], key=lambda found: len(found["ranks"][0]))
    entry_position = document["pulled"].index(entry)
    assert len(entry["ranks"][0]) > 1
    change(entry)
    document["pulled"] = [entry] if "pulled.0" in problem else document["pulled"]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_run(pulled)
    assert problem in str(caught.value)
    assert f"pulled.{0 if 'pulled.0' in problem else entry_position}." in str(caught.value)


def test_a_run_info_of_contradictions_is_a_mistake_of_ours(written):
    _, (_, pulled) = written
    info = read_run_info(pulled)
    with pytest.raises(AssertionError, match="plan is not known"):
        replace(info, plans={})
    with pytest.raises(AssertionError, match="other microbatches pulled than run"):
        replace(info, pulled={0: ((), (), (), ())})
