"""`odcrt launch` of cases whose microbatches are pulled: what ranks run, what traces tell, what is predicted of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from launch_page import TOY_MODEL, command_on, scenario_in
from launched import odcrt_here

from odcrt.workload.minibatches import plan_case
from odcsim import load_scenario
from odcsim.analysis.validate import validate
from odcsim.minibatches import draw_lengths
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario
from odcsim.trace_format import read_run

pytestmark = pytest.mark.timeout(90)

# Three ranks, one of which takes twice as long for everything, at a hundredth of the time that a GPU would take.
SLOW_RANK, SPEED = 1, 0.5
CHANGES = [
    "cluster.gpus_per_node=3",
    f"cluster.rank_speeds={{{SLOW_RANK}: {SPEED}}}",
    "workload.minibatches=2",
    "compute.fitted.scale=0.01",
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """One emulated run with traces: the scenario's file, the scenario, the document, the recorded runs."""
    folder = tmp_path_factory.mktemp("pulled")
    path = scenario_in(folder, "dynamic-8.yaml")
    settings = [part for change in CHANGES for part in ("--set", change)]
    command = [*command_on("dynamic-8.yaml"), "--json", "--record", "recorded", *settings]
    run = odcrt_here(*command, folder=folder)
    assert run.code == 0, run.err
    runs = [read_run(case) for case in sorted((folder / "recorded").iterdir())]
    return path, load_scenario(path, overrides=CHANGES), json.loads(run.out), runs


def test_a_slow_rank_pulls_less_and_nobody_waits_long(emulated):
    _, _, document, (*_, pulled) = emulated
    *static_cases, pulled_case = document["cases"]
    assert [case["policy"] for case in document["cases"]] == ["lb-mini", "independent", "dynamic"]
    for static_case in static_cases:
        assert pulled_case["speedup"] > 1.15 * static_case["speedup"], "static plans think all ranks alike"
        assert pulled_case["time_fractions"]["synchronization"] < static_case["time_fractions"]["synchronization"]
    for plan in pulled.info.plans.values():
        tokens = [sum(map(sum, microbatches)) for microbatches in plan]
        assert tokens[SLOW_RANK] < min(tokens[0], tokens[2])


def test_traces_tell_who_pulled_what(emulated):
    path, scenario, document, (*static, pulled) = emulated
    assert all(run.info.pulled == {} for run in static)
    resolved = resolve(scenario, base_folder=path.parent)
    lengths_NS = draw_lengths(resolved)
    planned = plan_case(resolved, resolved.cases[-1], lengths_NS)
    assert set(pulled.info.pulled) == set(pulled.info.window) == {0, 1}
    for minibatch, queue in enumerate(planned.queues_N):
        by_rank = pulled.info.pulled[minibatch]
        assert sorted(position for positions in by_rank for position in positions) == list(
            range(len(queue.microbatches))
        )
        for rank, positions in enumerate(by_rank):
            lengths = [queue.microbatches[position].lengths for position in positions]
            assert pulled.info.plans[minibatch][rank] == tuple(lengths)
            spans = [span for span in pulled.spans_of_ranks[rank] if span.minibatch == minibatch]
            for turn, of_microbatch in enumerate(lengths):
                tokens = {span.tokens for span in spans if span.microbatch == turn}
                assert tokens == {sum(of_microbatch)}
    counts = [len(positions) for by_rank in pulled.info.pulled.values() for positions in by_rank]
    assert document["cases"][-1]["microbatches_per_rank"] == pytest.approx(np.mean(counts))
    assert document["cases"][-1]["conservation"] == document["cases"][0]["conservation"]


def test_what_was_pulled_is_what_is_predicted(emulated):
    path, scenario, _, runs = emulated
    found = validate(scenario, runs, base_folder=path.parent, file=path)
    for case in found.cases:
        # Sleeping is exact and never too short; what else there is takes milliseconds, of 200 and more.
        assert -0.2 < case.error < 0.001, case.label


# What ranks are handed

PLANNED = {
    "name": "planned",
    "model": TOY_MODEL,
    "cluster": {"gpu": "a100", "gpus_per_node": 3, "rank_speeds": {SLOW_RANK: SPEED}},
    "workload": {
        "lengths": {"uniform": {"min": 1000, "max": 30000}},
        "samples_per_rank": 6,
        "max_tokens": 30000,
        "minibatches": 2,
        "seed": 10,
    },
    "compute": {"fitted": {"quadratic": 0.06, "linear": 0.08, "constant": 0.01, "per_tokens": 32000}},
    "planning": {"cost": "tokens"},
    "overlap": "none",
    "cases": [{"sync": "odc", "policy": "lb-mini"}, {"sync": "odc", "policy": "dynamic"}],
    "runtime": {"compute": "emulated"},
}


@pytest.fixture
def planned():
    document = {
        **PLANNED,
        "cluster": {**PLANNED["cluster"], "slowdowns": {"probability": 0.4, "factor": 3.0}},
        "workload": {**PLANNED["workload"], "max_tokens": 20000, "oversize": "drop"},
    }
    resolved = resolve(parse_scenario(document), base_folder=Path())
    return resolved, plan_case(resolved, resolved.cases[1], draw_lengths(resolved))


def test_a_queue_holds_every_sample_and_no_rank_has_any(planned):
    resolved, case = planned
    assert case.conservation.dropped_samples > 0
    assert not case.counts_ND.any()
    for planned_minibatch, queue, lengths_S in zip(case.plans, case.queues_N, draw_lengths(resolved), strict=True):
        run = [
            (sample, length)
            for microbatch in queue.microbatches
            for sample, length in zip(microbatch.samples, microbatch.lengths, strict=True)
        ]
        assert sorted(run) == [(s, length) for s, length in enumerate(lengths_S.tolist()) if length <= 20000]
        assert len(queue.microbatches) == len(planned_minibatch.plan.pulled) == queue.stretch_DM.shape[1]
    assert case.largest_microbatch_tokens == max(
        microbatch.tokens for queue in case.queues_N for microbatch in queue.microbatches
    )


def test_a_microbatch_is_stretched_as_the_ranks_own(planned):
    """As by a static plan of that many microbatches: the rank's speed, and the slowdown of its m-th."""
    _, case = planned
    (first, second) = case.queues_N
    turns = [(first.taken(3, rank=rank, turn=turn).stretch) for rank in range(3) for turn in range(4)]
    assert turns == first.stretch_DM[:, :4].reshape(-1).tolist()
    assert set(first.stretch_DM[0]) | set(second.stretch_DM[0]) == {1.0, 3.0}
    assert set(first.stretch_DM[SLOW_RANK]) | set(second.stretch_DM[SLOW_RANK]) == {1 / SPEED, 3 / SPEED}
    assert replace(first.taken(3, rank=0, turn=0), stretch=1.0) == first.microbatches[3]


def test_what_came_of_a_queue_names_ranks(planned):
    _, case = planned
    counts = [len(queue.microbatches) for queue in case.queues_N]
    pulled_N = [(tuple(range(0, count, 2)), (), tuple(range(1, count, 2))) for count in counts]
    run = case.as_pulled(pulled_N)
    assert run.queues_N == ()
    assert run.counts_ND.tolist() == [list(map(len, pulled_D)) for pulled_D in pulled_N]
    assert run.largest_microbatch_tokens == case.largest_microbatch_tokens
    assert (run.conservation, run.model_flops, run.padding) == (case.conservation, case.model_flops, 0)
    for minibatch, pulled_D in enumerate(pulled_N):
        run.plans[minibatch].plan.check(run.plans[minibatch].lengths_S, ranks=3)
        for rank, positions in enumerate(pulled_D):
            found = run.microbatches_NDM[minibatch][rank]
            queue = case.queues_N[minibatch]
            assert [microbatch.samples for microbatch in found] == list(run.plans[minibatch].plan.ranks[rank])
            assert list(found) == [queue.taken(place, rank=rank, turn=turn) for turn, place in enumerate(positions)]


@pytest.mark.parametrize("change", ["twice", "never"])
def test_a_microbatch_run_twice_or_never_is_noticed(planned, change):
    _, case = planned
    pulled_N = [[list(range(len(queue.microbatches))), [], []] for queue in case.queues_N]
    if change == "twice":
        pulled_N[1][2].append(0)
    else:
        pulled_N[1][0].pop()
    with pytest.raises(AssertionError, match="pulled"):
        case.as_pulled(pulled_N)
