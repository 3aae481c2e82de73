"""`odcrt launch SCENARIO.yaml` end to end: what is run, what comes of it, and what happens when a rank is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import yaml
from launch_page import TOY_MODEL, command_on, scenario_in
from launched import forked_ranks, is_alive, odcrt, odcrt_here, started_odcrt, wait_for

from odcrt.launch import scenario as scenario_module
from odcrt.launch.scenario import ScenarioOptions, run_scenario
from odcrt.workload.measure import CaseTimes
from odcsim import load_scenario, simulate
from odcsim.trace_format import read_run

pytestmark = pytest.mark.timeout(90)

EMULATED = "emulated-8.yaml"
LAYERS = 2
# Of a microbatch: the root is gathered once and reduced once, every block gathered twice and reduced once.
TRANSFERS = 2 * LAYERS + 1 + LAYERS + 1
SPEEDS = {2: 0.8}
# Three ranks, and a fiftieth of the time that the scenario's compute would take on a GPU.
CHANGES = [
    "cluster.gpus_per_node=3",
    f"cluster.rank_speeds={SPEEDS}",
    "workload.minibatches=3",
    "compute.fitted.scale=0.02",
    "cases=[{sync: fsdp, policy: lb-micro}, {sync: odc, policy: lb-mini}, {sync: odc, policy: lb-mini, pad: true}]",
]
REAL = {
    "name": "real",
    "model": TOY_MODEL,
    "cluster": {"gpu": "a100", "gpus_per_node": 2},
    "workload": {
        "lengths": {"uniform": {"min": 2, "max": 120}},
        "samples_per_rank": 4,
        "max_tokens": 128,
        "minibatches": 3,
        "seed": 1,
    },
    "training": {"param_dtype": "fp32"},
    "cases": [
        {"sync": "fsdp", "policy": "lb-micro"},
        {"sync": "odc", "policy": "lb-mini"},
        {"sync": "fsdp", "policy": "lb-mini", "pad": True},
        {"sync": "odc", "policy": "dynamic"},
    ],
}


def written(document, folder):
    path = folder / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def settings(changes):
    return [part for change in changes for part in ("--set", change)]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """One emulated run with traces: its folder, the scenario, the command's outcome, its document."""
    folder = tmp_path_factory.mktemp("emulated")
    scenario = load_scenario(scenario_in(folder, EMULATED), overrides=CHANGES)
    command = [*command_on("emulated-8.yaml"), "--json", "--record", "recorded", *settings(CHANGES)]
    run = odcrt(*command, folder=folder, timeout_s=80)
    assert run.code == 0, run.err
    return folder, scenario, run, json.loads(run.out)


@pytest.fixture(scope="module")
def predicted(emulated):
    """What the simulator says of the same."""
    folder, scenario, *_ = emulated
    return simulate(scenario, base_folder=folder / "scenarios" / "runtime")


# What comes of it


def test_emulated_odc_takes_as_long_as_is_predicted(emulated, predicted):
    *_, document = emulated
    for case, expected in zip(document["cases"], predicted.cases, strict=True):
        ratio = case["seconds_per_minibatch"]["mean"] / float(expected.minibatch_s_N.mean())
        # Sleeping is exact and never too short; what else there is takes milliseconds, of 200 and more.
        assert 0.999 < ratio < (1.25 if case["sync"] == "odc" else 1.5), case["name"]


def test_the_document_is_that_of_the_simulator(emulated, predicted):
    *_, document = emulated
    predicted_document = predicted.to_document()
    assert document["engine"] == "measured"
    assert list(document) == list(predicted_document)
    assert document["scenario"] == predicted_document["scenario"]
    assert document["lengths"] == predicted_document["lengths"]
    for case, expected in zip(document["cases"], predicted_document["cases"], strict=True):
        assert list(case) == list(expected)
        for key in ("name", "sync", "policy", "pad", "minibatches", "conservation", "microbatches_per_rank"):
            assert case[key] == expected[key]
        assert sum(case["time_fractions"].values()) == pytest.approx(1.0)
        assert all(share >= 0 for share in case["time_fractions"].values())
        assert case["lower_bound_ratio"] >= 1
        assert case["memory"]["parts_bytes"]["process"] > 5e7
    assert document["cases"][0]["speedup"] == 1.0
    # Padding costs time and trains nothing: it is not compute.
    nopad, padded = document["cases"][1:]
    assert padded["padding_share"] > 0
    assert padded["time_fractions"]["other"] > nopad["time_fractions"]["other"]
    assert document["warnings"][0].startswith("compute was emulated")
    assert "warm-up" in document["warnings"][1]


def test_only_the_document_is_on_standard_output_and_files_are_written(emulated):
    folder, _, run, document = emulated
    assert json.loads(run.out) == document
    reports = folder / "reports"
    assert sorted(file.name for file in reports.iterdir()) == ["emulated-8.measured.html", "emulated-8.measured.json"]
    assert json.loads((reports / "emulated-8.measured.json").read_text()) == document
    assert "measured by odcrt" in (reports / "emulated-8.measured.html").read_text()
    assert run.err.splitlines() == [f"odcrt: warning: {warning}" for warning in document["warnings"]]


def test_traces_tell_what_was_run(emulated):
    folder, scenario, _, document = emulated
    traces = folder / "recorded"
    assert sorted(folder.name for folder in traces.iterdir()) == [
        "0-fsdp-lb-micro",
        "1-odc-lb-mini",
        "2-odc-lb-mini-padded",
    ]
    for position, folder in enumerate(sorted(traces.iterdir())):
        recorded = read_run(folder)
        info, case = recorded.info, document["cases"][position]
        assert (info.engine, info.window, info.world_size) == ("measured", range(3), 3)
        assert (info.case["sync"], info.case["policy"], info.case["compute"]) == (
            case["sync"],
            case["policy"],
            "emulated",
        )
        for rank, spans in enumerate(recorded.spans_of_ranks):
            microbatches = sum(len(plan[rank]) for plan in info.plans.values())
            # Two meetings a minibatch, whatever the microbatches; or one for every transfer.
            barriers = 2 * 3 if case["sync"] == "odc" else TRANSFERS * microbatches
            assert info.counters[rank] == {"transfers": TRANSFERS * microbatches, "barriers": barriers}
            moved = [span for span in spans if span.name in {"gather", "scatter_accumulate"}]
            assert len(moved) == TRANSFERS * microbatches
            assert len([span for span in spans if span.name == "optimizer"]) == 3
            for span in moved:
                assert span.tokens == sum(info.plans[span.minibatch][rank][span.microbatch])
            # Compute of all units, as long as the cost model says.
            computed = sum(span.duration_s for span in spans if span.name in {"forward", "backward"})
            modelled = sum(
                modelled_s(scenario, lengths, rank) for plan in info.plans.values() for lengths in plan[rank]
            )
            assert computed == pytest.approx(modelled, rel=0.1)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="nobody counts memory here")
def test_traces_tell_processors_and_memory(emulated):
    folder, _, _, document = emulated
    for position, recorded in enumerate(sorted((folder / "recorded").iterdir())):
        info = read_run(recorded).info
        assert info.processors == (len(os.sched_getaffinity(0)),) * 3
        parts_bytes = document["cases"][position]["memory"]["parts_bytes"]
        assert len(info.memory) == 3
        for memory in info.memory:
            assert memory.process_bytes > 5e7
            assert len(memory.training_bytes) == 3
            assert list(memory.training_bytes) == sorted(memory.training_bytes)
            assert memory.training_bytes[0] > 0
        # The document tells of the fullest rank, right after the last minibatch.
        fullest = next(memory for memory in info.memory if memory.process_bytes == parts_bytes["process"])
        assert fullest.shared_memory_bytes == pytest.approx(parts_bytes["shared_memory"], abs=1)
        assert fullest.training_bytes[-1] == pytest.approx(parts_bytes["training"], abs=8 << 20)


def modelled_s(scenario, lengths, rank):
    fit = scenario.compute.fitted
    scaled = [length / fit.per_tokens for length in lengths]
    work_s = fit.quadratic * sum(s * s for s in scaled) + fit.linear * sum(scaled) + fit.constant
    return fit.scale * work_s / SPEEDS.get(rank, 1.0)


def measured_by_case(document, folder, monkeypatch, **options):
    """The result of a run, and the times behind it."""
    caught = []
    make = scenario_module._result

    def catch(*args, **keywords):
        caught.append([CaseTimes.of(measured) for measured in args[4]])
        return make(*args, **keywords)

    monkeypatch.setattr(scenario_module, "_result", catch)
    monkeypatch.setattr(scenario_module, "run_ranks", forked_ranks)
    path = written(document, folder)
    result = run_scenario(load_scenario(path), file=path, options=ScenarioOptions(**options))
    assert not isinstance(result, int)
    return result, caught[0]


def test_real_compute_trains_alike_under_every_synchronization_and_whoever_pulls(tmp_path, monkeypatch):
    """The same samples, whatever the plan: the same losses, minibatch after minibatch, so the same steps in between."""
    result, times = measured_by_case(REAL, tmp_path, monkeypatch)
    for case in times[1:]:
        np.testing.assert_allclose(case.loss_N, times[0].loss_N, rtol=1e-4)
    # It starts near the loss of guessing, and tokens that are seen again (the warm-up) are learned a little.
    assert times[0].loss_N[0] == pytest.approx(np.log(TOY_MODEL["vocab"]), rel=0.05)
    assert result.cases[1].fractions.compute > 0.2
    # Bound by bound: none takes less than the least even share.
    for case in result.cases:
        assert (case.minibatch_s_N >= case.lower_bound_s_N).all()
        assert {span.rank for span in case.spans} == {0, 1}
        assert {"forward", "backward", "gather", "scatter_accumulate", "optimizer"} <= {
            span.name for span in case.spans
        }


def test_fsdp2s_own_collectives_can_be_measured(tmp_path, monkeypatch):
    document = {**REAL, "runtime": {"transport": "gloo"}, "cases": REAL["cases"][:2]}
    result, times = measured_by_case(document, tmp_path, monkeypatch)
    np.testing.assert_allclose(times[1].loss_N, times[0].loss_N, rtol=1e-4)
    plain, on_demand = result.cases
    assert plain.fractions.exposed_communication > 0
    assert plain.fractions.synchronization > 0
    assert sum(plain.fractions.to_document().values()) == pytest.approx(1.0)
    assert on_demand.fractions.exposed_communication > 0


def test_the_number_of_ranks_can_be_set_even_to_one(tmp_path):
    """Whose microbatches are pulled, one rank runs the whole queue."""
    scenario_in(tmp_path, "two-ranks.yaml")
    changes = [
        "workload.minibatches=2",
        "workload.cut_tokens=256",
        "cases=[{sync: fsdp, policy: lb-micro}, {sync: odc, policy: lb-mini}, {sync: odc, policy: dynamic}]",
    ]
    run = odcrt_here(*command_on("two-ranks.yaml"), "--nproc", 1, *settings(changes), folder=tmp_path)
    assert run.code == 0, run.err
    assert "cluster    1 rank (1 node x 1)" in run.out
    assert run.out.endswith("report: reports/two-ranks.measured.html\nresult: reports/two-ranks.measured.json\n")
    document = json.loads((tmp_path / "reports" / "two-ranks.measured.json").read_text())
    *planned, pulled = document["cases"]
    assert pulled["policy"] == "dynamic"
    assert pulled["conservation"] == planned[0]["conservation"]
    assert all(case["utilization"] > 0 for case in document["cases"])


# When a rank is lost


def ranks_of(launcher):
    """Process of each rank, once all are there."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [variable for variable in variables if variable.startswith(b"RANK=")]
        if parent == launcher and ranks:
            found[int(ranks[0].partition(b"=")[2])] = int(folder.name)
    return found


def test_a_rank_that_is_killed_ends_all_and_is_named(tmp_path):
    (tmp_path / "temporary").mkdir()
    path = scenario_in(tmp_path, EMULATED)
    changes = [
        "cluster.gpus_per_node=2",
        "workload.minibatches=200",
        "compute.fitted.scale=0.02",
        "cases=[{sync: odc, policy: lb-micro}]",
    ]
    command = ["launch", path, *settings(changes)]
    with started_odcrt(*command, folder=tmp_path, TMPDIR=str(tmp_path / "temporary")) as process:

        def minibatches_done():
            found = list((tmp_path / "temporary").glob("odcrt-*/progress"))
            return bool(found) and int(found[0].read_text().split()[1]) >= 2

        wait_for(minibatches_done, what="the second minibatch", timeout_s=40)
        pids = ranks_of(process.pid)
        assert sorted(pids) == [0, 1]
        os.kill(pids[1], signal.SIGKILL)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (137, "")
    summary = err[err.index("odcrt: error: ") :].splitlines()
    assert summary[0] == "odcrt: error: rank 1 was killed by SIGKILL (by the kernel for lack of memory, perhaps)"
    assert summary[-1].startswith("rank 0: RankLost: rank 1 is gone: its process has ended. Last seen: ")
    assert not any(map(is_alive, pids.values()))


def test_an_error_of_a_rank_says_which_microbatch_it_was(tmp_path):
    """A rank that may not allocate what the others may runs out of memory."""
    hook = (
        "import os, resource\n"
        "if os.environ.get('RANK') == '1':\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hook)
    document = {
        **REAL,
        "training": {"param_dtype": "fp32", "recompute": "none", "fused_loss": False},
        "model": {**TOY_MODEL, "vocab": 60_000},
        "workload": {**REAL["workload"], "lengths": {"constant": 3000}, "max_tokens": 3000, "samples_per_rank": 1},
        "cases": [{"sync": "odc", "policy": "lb-mini"}],
    }
    path = written(document, tmp_path)
    run = odcrt("launch", path, folder=tmp_path, PYTHONPATH=str(tmp_path), timeout_s=80)
    assert run.code == 1
    last = run.err[run.err.rindex("odcrt: error: ") :]
    assert last.startswith("odcrt: error: rank 1 failed with exit code 1\n")
    assert "RunError: ODC lb-mini: rank 1, minibatch 0, microbatch 0, 3000 tokens: RuntimeError: " in last
