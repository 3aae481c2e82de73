"""What the launcher hands to ranks is what `odcsim run` simulates: minibatches, plans, slowdowns and bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from odcrt.workload.memory_guard import available_bytes, estimate_bytes, require_memory, total_bytes
from odcrt.workload.minibatches import plan_case
from odcsim import simulate
from odcsim.errors import InputError, PolicyError
from odcsim.lower_bounds import lower_bounds_s_CN
from odcsim.minibatches import draw_lengths
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario

DOCUMENT = {
    "name": "plans",
    "model": {
        "name": "toy",
        "layers": 2,
        "hidden": 16,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 8,
        "ffn": 24,
        "vocab": 50,
    },
    "cluster": {"gpu": "a100", "gpus_per_node": 3},
    "workload": {
        "lengths": {"lognormal": {"mean": 900, "sigma": 0.9}},
        "samples_per_rank": 5,
        "max_tokens": 3000,
        "cut_tokens": 4000,
        "oversize": "drop",
        "minibatches": 12,
        "seed": 3,
    },
    "compute": {"fitted": {"quadratic": 1e-2, "linear": 2e-2, "constant": 3e-3, "per_tokens": 1000}},
    "overlap": "none",
    "cases": [
        {"sync": "fsdp", "policy": "lb-micro"},
        {"sync": "fsdp", "policy": "lb-mini", "pad": True},
        {"sync": "odc", "policy": "lb-mini"},
        {"sync": "odc", "policy": "local-sort"},
    ],
}


def with_sections(**sections):
    merged = dict(DOCUMENT)
    for name, keys in sections.items():
        merged[name] = {**merged.get(name, {}), **keys}
    return merged


@pytest.mark.parametrize(
    "document",
    [
        DOCUMENT,
        with_sections(workload={"oversize": "truncate"}),
        with_sections(workload={"oversize": "own-microbatch", "cut_tokens": None}),
        with_sections(
            cluster={"rank_speeds": {1: 0.5, 2: 1.25}, "slowdowns": {"probability": 0.3, "factor": 4.0}},
            workload={"seed": 8},
        ),
    ],
    ids=["drop", "truncate", "own-microbatch", "speeds and slowdowns"],
)
def test_ranks_run_what_is_simulated(document):
    scenario = parse_scenario(document)
    resolved = resolve(scenario, base_folder=Path())
    lengths_NS = draw_lengths(resolved)
    simulated = simulate(scenario, base_folder=Path())
    np.testing.assert_array_equal(lengths_NS.reshape(-1), simulated.sampled_lengths)
    bounds_s_CN = lower_bounds_s_CN(resolved, lengths_NS)
    for case, expected, bounds_s_N in zip(resolved.cases, simulated.cases, bounds_s_CN, strict=True):
        planned = plan_case(resolved, case, lengths_NS)
        assert planned.conservation == expected.conservation
        assert planned.counts_ND.mean() == pytest.approx(expected.mean_microbatches_per_rank)
        assert planned.padding / planned.counts_ND.sum() == pytest.approx(expected.padding_share)
        assert planned.largest_microbatch_tokens == expected.memory.largest_microbatch_tokens
        np.testing.assert_allclose(bounds_s_N, expected.lower_bound_s_N)
        if case.case.sync == "odc":
            # Without transfers to speak of, a minibatch takes as long as its busiest rank computes.
            np.testing.assert_allclose(busiest_rank_s_N(resolved, planned), expected.minibatch_s_N, rtol=0, atol=5e-4)


def busiest_rank_s_N(resolved, planned):
    cost = resolved.cost
    return [
        max(
            sum(
                microbatch.stretch
                * (cost.quadratic * microbatch.squared_tokens + cost.linear * microbatch.tokens + cost.constant)
                for microbatch in microbatches
            )
            for microbatches in minibatch
        )
        for minibatch in planned.microbatches_NDM
    ]


def test_samples_keep_their_place_in_the_minibatch():
    """Contents of a sample depend on its place, so that every case trains on the same."""
    resolved = resolve(parse_scenario(DOCUMENT), base_folder=Path())
    lengths_NS = draw_lengths(resolved)
    for case in resolved.cases:
        for lengths_S, minibatch in zip(
            lengths_NS, plan_case(resolved, case, lengths_NS).microbatches_NDM, strict=True
        ):
            run = [
                (sample, length)
                for microbatches in minibatch
                for microbatch in microbatches
                for sample, length in zip(microbatch.samples, microbatch.lengths, strict=True)
            ]
            assert sorted(run) == [(s, length) for s, length in enumerate(lengths_S.tolist()) if length <= 3000]


def test_a_minibatch_that_cannot_be_planned_is_named():
    resolved = resolve(parse_scenario(with_sections(workload={"oversize": "error"})), base_folder=Path())
    with pytest.raises(
        PolicyError, match=r"^s\.yaml: workload\.oversize: 'error': minibatch \d+: sample \d+ has \d+ to"
    ):
        plan_case(resolved, resolved.cases[0], draw_lengths(resolved), file=Path("s.yaml"))


# Memory


def planned_of(document):
    resolved = resolve(parse_scenario(document), base_folder=Path())
    lengths_NS = draw_lengths(resolved)
    return resolved, [plan_case(resolved, case, lengths_NS) for case in resolved.cases]


def test_a_model_that_fits_is_let_through():
    resolved, planned = planned_of(DOCUMENT)
    # Three processes, and next to nothing for the model.
    assert 0.6e9 < estimate_bytes(resolved, planned) < 0.9e9
    require_memory(resolved, planned, file="s.yaml")


def test_a_model_that_does_not_fit_is_refused_with_figures():
    resolved, planned = planned_of({**DOCUMENT, "model": "qwen2.5-72b"})
    # Parameters, gradients and two states in fp32 alone.
    assert estimate_bytes(resolved, planned) > 16 * resolved.model.total_parameters
    with pytest.raises(InputError) as caught:
        require_memory(resolved, planned, file="s.yaml")
    assert str(caught.value).startswith("s.yaml: model: 'qwen2.5-72b': needs about 1.")
    assert " TB on 3 ranks, and " in str(caught.value)


def test_emulated_compute_needs_no_activations():
    document = with_sections(workload={"max_tokens": 65536, "cut_tokens": 65536, "lengths": {"constant": 65536}})
    real = estimate_bytes(*planned_of(document))
    emulated = estimate_bytes(*planned_of({**document, "runtime": {"compute": "emulated"}}))
    tokens_bytes = 3 * 65536 * 2 * (2 * 16 + 3 * 16)  # blocks' inputs and a little, on three ranks
    assert real - emulated > tokens_bytes


def test_memory_of_this_machine_is_known():
    assert 1e8 < available_bytes() <= total_bytes()
