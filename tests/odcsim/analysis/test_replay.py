"""A recorded FSDP run's own compute, replayed: as it was run, and under ODC."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from odcsim.analysis.replay import replay
from odcsim.analysis.simulated_run import write_simulated_runs
from odcsim.cli.app import app
from odcsim.console_program import run_program
from odcsim.errors import InputError
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate
from odcsim.trace_format import read_run, write_run

# The plan of both is one and the same; so is what computes.
# Microbatches that are slow by chance: FSDP waits for each, ODC for their sum.
SLOW = {"probability": 0.4, "factor": 2.0}
CASES = [{"sync": "fsdp", "policy": "lb-micro"}, {"sync": "odc", "policy": "lb-micro"}]


@pytest.fixture(params=["none", "prefetch"])
def simulated(request, changed, tmp_path):
    document = changed({"overlap": request.param, "cases": CASES, "cluster.slowdowns": SLOW})
    folders = write_simulated_runs(parse_scenario(document), tmp_path, base_folder=Path())
    return simulate(parse_scenario(document), base_folder=Path()), folders


def test_replayed_as_it_was_run_a_run_takes_what_it_took(simulated):
    result, (fsdp, _) = simulated
    found = replay(read_run(fsdp))
    assert found.measured_s_N == pytest.approx(result.cases[0].minibatch_s_N, rel=1e-9)
    # With overlap a trace does not tell when a gather could have begun: what it cost is then known less well.
    assert found.error == pytest.approx(0.0, abs=1e-9 if result.cases[0].overlap == "none" else 0.03)
    assert found.fsdp.fractions.synchronization == pytest.approx(
        result.cases[0].fractions.synchronization, abs=1e-6 if result.cases[0].overlap == "none" else 0.03
    )


def test_the_speedup_of_the_same_plan_under_odc_is_foretold(simulated):
    result, (fsdp, _) = simulated
    found = replay(read_run(fsdp))
    assert result.cases[1].speedup > 1.02
    # Publishing, settling and one-sided transfers are taken to cost what collectives did, which is not quite so.
    assert found.speedup == pytest.approx(result.cases[1].speedup, rel=0.01)
    assert found.balanced_speedup >= found.speedup


def test_slower_one_sided_transfers_gain_less(simulated):
    _, (fsdp, _) = simulated
    run = read_run(fsdp)
    speedups = [replay(run, one_sided_factor=factor).speedup for factor in (1.0, 100.0, 1e4)]
    assert speedups == sorted(speedups, reverse=True)
    assert speedups[-1] < 1


def test_it_needs_to_know_neither_tokens_nor_scenario(simulated, tmp_path):
    _, (fsdp, _) = simulated
    run = read_run(fsdp)
    bare = dataclasses.replace(run.info, scenario={}, plans={})
    spans = [
        [dataclasses.replace(span, tokens=0, squared_tokens=0) for span in of_rank] for of_rank in run.spans_of_ranks
    ]
    write_run(tmp_path / "bare", bare, spans)
    assert replay(read_run(tmp_path / "bare")).speedup == pytest.approx(replay(run).speedup)


def test_a_run_under_odc_is_refused(simulated):
    _, (_, odc) = simulated
    with pytest.raises(InputError, match=r"run\.json: case\.sync: 'odc': was not recorded under fsdp"):
        replay(read_run(odc))


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e300, np.inf, np.nan])
def test_a_factor_that_cannot_be_is_refused(simulated, factor):
    _, (fsdp, _) = simulated
    with pytest.raises(InputError, match="--one-sided-factor"):
        replay(read_run(fsdp), one_sided_factor=factor)


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["odcsim", "replay", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_program(app, name="odcsim")
    return ended.value.code


def test_the_command_prints_a_table_and_a_sentence(simulated, monkeypatch, capsys):
    _, (fsdp, _) = simulated
    assert not command(monkeypatch, fsdp)
    shown = capsys.readouterr().out
    found = replay(read_run(fsdp))
    assert f"ODC with the same plan: {found.speedup:.2f}x" in shown
    assert "replayed: FSDP" in shown


def test_the_document(simulated, monkeypatch, capsys):
    _, (fsdp, _) = simulated
    assert not command(monkeypatch, fsdp, "--json", "--one-sided-factor", "2")
    document = json.loads(capsys.readouterr().out)
    found = replay(read_run(fsdp), one_sided_factor=2.0)
    assert document["schema"] == "odcsim.replay/1"
    assert document["speedup"]["odc"] == pytest.approx(found.speedup)
    assert sum(document["time_fractions"]["odc"].values()) == pytest.approx(1.0)


def test_a_folder_without_a_run_is_one_line(tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, tmp_path) == 2
    assert "holds no run.json" in capsys.readouterr().err
