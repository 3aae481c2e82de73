"""Simulated runs as folders: what is read back from them is what was simulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odcsim.analysis.measured import measure
from odcsim.analysis.observe import observe
from odcsim.analysis.simulated_run import write_simulated_runs
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate
from odcsim.trace_format import find_runs, read_run

CHANGES = {
    "one node": {},
    "without overlap": {"overlap": "none"},
    "two nodes": {"cluster.nodes": 2, "overlap": "none"},
    "slow ranks": {
        "cluster.rank_speeds": {1: 0.5},
        "cluster.slowdowns": {"probability": 0.3, "factor": 2.0},
        "overlap": "none",
    },
    "shared links": {
        "cluster.nodes": 2,
        "cluster.contention": True,
        "cluster.inter_node.ports": 1,
        "compute.fitted.scale": 1e-4,
        "overlap": "none",
    },
    "padding": {"cases.0.policy": "lb-mini", "cases.0.pad": True, "overlap": "none"},
}


def runs_of(document, folder, **options):
    written = write_simulated_runs(parse_scenario(document), folder, base_folder=Path(), **options)
    assert find_runs(folder) == written
    return [read_run(path) for path in written]


def peak_bytes_of(run, case):
    """The case's peak, which counts gradients beside its largest microbatch; under `fsdp` a first one has none."""
    largest, parts = case.memory.largest_microbatch_tokens, case.memory.parts_bytes
    later = [sum(lengths) for plan in run.info.plans.values() for rank in plan for lengths in rank[1:]]
    assert parts["activations"] > 0, "a block's backward decides"
    if case.sync == "odc" or largest in later:
        return case.memory.peak_bytes
    fewer_bytes = (largest - max(later)) * parts["activations"] / largest if later else float("inf")
    return case.memory.peak_bytes - min(parts["gradients"], fewer_bytes)


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_reading_a_run_gives_what_was_simulated(changed, tmp_path, changes):
    document = changed(changes)
    result = simulate(parse_scenario(document), base_folder=Path())
    runs = runs_of(document, tmp_path)
    assert len(runs) == len(result.cases)
    for run, case in zip(runs, result.cases, strict=True):
        found = measure(observe(run))
        assert found.minibatch_s_N == pytest.approx(case.minibatch_s_N, rel=1e-9)
        assert found.peak_bytes == pytest.approx(peak_bytes_of(run, case), abs=2)
        assert (run.info.case["sync"], run.info.case["policy"]) == (case.sync, case.policy)
        if case.overlap == "none":
            assert list(found.fractions.to_document().values()) == pytest.approx(
                list(case.fractions.to_document().values()), abs=1e-9
            )


@pytest.mark.parametrize(("most_tokens", "accumulates"), [(2000, False), (1000, True)])
def test_the_first_microbatch_of_a_minibatch_has_no_gradients_beside_it(changed, tmp_path, most_tokens, accumulates):
    """Two samples a rank, in one microbatch or in two. What `odc` accumulates in is always there."""
    changes = {"workload.lengths": {"values": [1000]}, "workload.max_tokens": most_tokens, "workload.minibatches": 3}
    document = changed(changes)
    result = simulate(parse_scenario(document), base_folder=Path())
    for run, case in zip(runs_of(document, tmp_path), result.cases, strict=True):
        held = accumulates or case.sync == "odc"
        expected = case.memory.peak_bytes - case.memory.parts_bytes["gradients"] * (not held)
        assert [max(rank.training_bytes) + rank.shared_memory_bytes for rank in run.info.memory] == pytest.approx(
            [expected] * 4, abs=2
        )


def test_a_run_holds_the_plans_and_the_bytes(changed, tmp_path):
    fsdp, odc = runs_of(changed({"overlap": "none", "training.param_dtype": "bf16"}), tmp_path)
    assert fsdp.folder.name == "0-fsdp-lb-micro"
    assert (fsdp.info.engine, fsdp.info.case["transport"], odc.info.case["transport"]) == (
        "recurrence",
        "collective",
        "shm",
    )
    assert fsdp.info.scenario["workload"]["samples_per_rank"] == 2
    for run in (fsdp, odc):
        observed = observe(run)
        for n, minibatch in enumerate(run.info.window):
            planned = [[sum(lengths) for lengths in rank] for rank in run.info.plans[minibatch]]
            assert sum(map(sum, planned)) > 0
            for rank, tokens in enumerate(planned):
                assert observed.tokens_NDM[n, rank, : len(tokens)].tolist() == tokens
    model = resolve(parse_scenario(changed({})), base_folder=Path()).model
    gathered = {transfer.size_bytes for transfer in observe(odc).transfers_D[0] if transfer.name == "gather"}
    assert gathered == {
        round(parameters * 2 * 3 / 4) for parameters in (model.root_parameters, model.parameters_per_block)
    }


def test_noise_is_shared_by_cases_and_differs_by_seed(changed, tmp_path):
    document = changed({"overlap": "none", "cases.1.policy": "lb-micro"})

    def compute_s(name, **options):
        return [observe(run).compute_s_NDMV for run in runs_of(document, tmp_path / name, **options)]

    quiet, noisy, again = compute_s("a"), compute_s("b", noise=0.1), compute_s("c", noise=0.1, seed=1)
    # The two cases have the same plans, so the same microbatches are equally long.
    np.testing.assert_allclose(noisy[0], noisy[1], rtol=1e-9)
    ratios = (noisy[0].sum(axis=-1) / quiet[0].sum(axis=-1)).reshape(-1)
    assert 0.02 < ratios.std() < 0.3
    assert ratios.mean() == pytest.approx(1, abs=0.1)
    assert not np.allclose(noisy[0], again[0])
