"""Whole scenarios: what must hold of every result, whatever the policy, the sync, the engine and the lengths."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import odcsim.simulation
from odcsim.engines import recurrence
from odcsim.errors import InputError, PolicyError
from odcsim.policies import find_policy, policy_names

LONG_TAIL = {"lognormal": {"mean": 3000, "sigma": 1.0, "max": 8192}}
ALL_CASES = [
    {"sync": sync, "policy": policy, "pad": sync == "fsdp" and not find_policy(policy).equal_counts}
    for sync in ("fsdp", "odc")
    for policy in policy_names()
    if sync == "odc" or not find_policy(policy).is_pulled
]
# Changes of the small document that between them touch every part of the model.
SCENARIOS = {
    "one node": {"workload.lengths": LONG_TAIL},
    "two nodes": {"workload.lengths": LONG_TAIL, "cluster.nodes": 2, "cluster.one_sided.inter_node_efficiency": 0.3},
    "no overlap": {"workload.lengths": LONG_TAIL, "overlap": "none"},
    "gathers only": {"workload.lengths": LONG_TAIL, "overlap": "gather-only", "on_demand.gather_dtype": "fp32"},
    "stragglers": {
        "workload.lengths": LONG_TAIL,
        "cluster.rank_speeds": {1: 0.5, 2: 1.5},
        "cluster.link_speeds": {0: 0.25},
        "cluster.slowdowns": {"probability": 0.3, "factor": 2.5},
    },
    "slow links": {"workload.lengths": LONG_TAIL, "cluster.intra_node.bandwidth": "5 MB/s"},
    "analytic": {"workload.lengths": LONG_TAIL, "compute": {"analytic": {"visit_overhead": "50 us"}}},
    "odd counts": {
        "workload.lengths": LONG_TAIL,
        "workload.samples_per_rank": None,
        "workload.samples_per_minibatch": 7,
    },
    "few samples": {"workload.samples_per_rank": None, "workload.samples_per_minibatch": 3},
    "packed": {"workload.lengths": LONG_TAIL, "workload.samples_per_rank": 8, "workload.max_tokens": 65536},
    "truncated": {"workload.lengths": LONG_TAIL, "workload.max_tokens": 2000, "workload.oversize": "truncate"},
    "dropped": {"workload.lengths": LONG_TAIL, "workload.max_tokens": 2000, "workload.oversize": "drop"},
    "over the cap": {"workload.lengths": LONG_TAIL, "workload.max_tokens": 2000, "workload.oversize": "own-microbatch"},
    "overhead": {"on_demand.minibatch_overhead": "0.15 s"},
    "one rank": {"cluster.gpus_per_node": 1},
}


@pytest.fixture(params=SCENARIOS.values(), ids=SCENARIOS.keys())
def scenario(request, changed):
    """A scenario with every policy under both syncs."""
    return changed({**request.param, "cases": ALL_CASES})


def seconds(case):
    return case.minibatch_s_N.tolist()


def test_what_holds_of_every_case(run, scenario):
    result = run(scenario)
    assert len(result.cases) == len(ALL_CASES)
    assert (result.cases[0].speedup, result.cases[0].speedup_ci95) == (1.0, (1.0, 1.0))
    for case in result.cases:
        fractions = case.fractions.to_document()
        assert sum(fractions.values()) == pytest.approx(1, abs=1e-12)
        assert min(fractions.values()) >= 0
        # Minibatch by minibatch, not just on the mean.
        assert (case.minibatch_s_N >= case.lower_bound_s_N * (1 - 1e-12)).all()
        assert case.lower_bound_ratio >= 1 - 1e-12
        low, high = case.speedup_ci95
        assert low <= case.speedup <= high
        assert case.speedup == pytest.approx(sum(seconds(result.cases[0])) / sum(seconds(case)))
        assert 0 < case.mfu < 1
        kept = case.conservation
        assert kept.tokens == kept.run_tokens + kept.dropped_tokens + kept.truncated_tokens
        assert kept.samples == result.lengths["count"]
        assert case.tokens_per_second == pytest.approx(kept.run_tokens / sum(seconds(case)))


def test_engines_agree_on_the_whole_result(run, scenario):
    one, other = (run(scenario, engine=engine) for engine in ("recurrence", "events"))
    assert (one.engine, other.engine) == ("recurrence", "events")
    for left, right in zip(one.cases, other.cases, strict=True):
        np.testing.assert_allclose(left.minibatch_s_N, right.minibatch_s_N, rtol=1e-9)
        np.testing.assert_allclose(
            list(left.fractions.to_document().values()), list(right.fractions.to_document().values()), atol=1e-9
        )
        assert left.conservation == right.conservation


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_scenario_is_answered(run, changed, data):
    """Any lengths on any ranks under any cap: both engines finish, agree, lose nothing and beat no bound."""
    draw = data.draw
    changes = {
        "cluster.gpus_per_node": draw(st.integers(1, 4)),
        "cluster.nodes": draw(st.integers(1, 2)),
        "cluster.rank_speeds": {0: draw(st.sampled_from([0.1, 1, 3]))},
        "workload.lengths": {"values": draw(st.lists(st.integers(1, 9999), min_size=1, max_size=9))},
        "workload.samples_per_rank": None,
        "workload.samples_per_minibatch": draw(st.integers(1, 12)),
        "workload.max_tokens": draw(st.integers(1, 12000)),
        "workload.oversize": draw(st.sampled_from(["truncate", "drop", "own-microbatch"])),
        "workload.minibatches": draw(st.integers(1, 3)),
        "workload.seed": draw(st.integers(0, 9)),
        "overlap": draw(st.sampled_from(["prefetch", "gather-only", "none"])),
        "compute.fitted": {
            "quadratic": draw(st.sampled_from([0, 2.0])),
            "linear": 3.0,
            "constant": draw(st.sampled_from([0, 0.5])),
            "per_tokens": 32000,
        },
        "cases": draw(st.lists(st.sampled_from(ALL_CASES), min_size=1, max_size=3)),
    }
    results = [run(changed(changes), engine=engine) for engine in ("recurrence", "events")]
    for left, right in zip(*(result.cases for result in results), strict=True):
        np.testing.assert_allclose(left.minibatch_s_N, right.minibatch_s_N, rtol=1e-9)
        assert (left.minibatch_s_N >= left.lower_bound_s_N * (1 - 1e-12)).all()
        assert sum(left.fractions.to_document().values()) == pytest.approx(1, abs=1e-12)
        assert left.conservation == right.conservation
        if changes["workload.oversize"] != "own-microbatch":
            assert left.memory.largest_microbatch_tokens <= changes["workload.max_tokens"]


@pytest.mark.parametrize("samples_at_once", [1, 20])
def test_working_in_chunks_changes_nothing(run, scenario, monkeypatch, samples_at_once):
    scenario["workload"]["minibatches"] = 5
    whole = run(scenario)
    monkeypatch.setattr(odcsim.simulation, "_SAMPLES_AT_ONCE", samples_at_once)
    chunked = run(scenario)
    for left, right in zip(whole.cases, chunked.cases, strict=True):
        np.testing.assert_allclose(left.minibatch_s_N, right.minibatch_s_N, rtol=1e-13)
        np.testing.assert_allclose(left.lower_bound_s_N, right.lower_bound_s_N, rtol=1e-13)
        assert left.fractions.to_document() == pytest.approx(right.fractions.to_document(), abs=1e-13)
        assert left.speedup_ci95 == pytest.approx(right.speedup_ci95, rel=1e-13)
        for name in ("conservation", "memory", "mean_microbatches_per_rank", "padding_share"):
            assert getattr(left, name) == getattr(right, name)
        assert [(span.rank, span.name, span.microbatch) for span in left.spans] == [
            (span.rank, span.name, span.microbatch) for span in right.spans
        ]


def test_odc_is_faster_on_uneven_work(run, changed):
    """What the program is for: a long tail, balanced over the minibatch, ranks meeting once."""
    fsdp, odc = run(changed({"workload.lengths": LONG_TAIL, "workload.minibatches": 30})).cases
    assert odc.speedup_ci95[0] > 1.05
    assert odc.bubble_rate < fsdp.bubble_rate
    assert odc.utilization > fsdp.utilization


def test_equal_samples_leave_nothing_to_gain(run, changed):
    """Parity where every rank has one sample of the same length, but for publishing and settling."""
    changes = {"workload.lengths": {"constant": 8192}, "workload.samples_per_rank": 1, "overlap": "none"}
    fsdp, odc = run(changed({**changes, "cases.1.policy": "lb-micro"})).cases
    assert fsdp.bubble_rate == odc.bubble_rate == 0
    assert odc.speedup == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case['sync']} {case['policy']}")
@pytest.mark.parametrize("samples", [1, 3])
def test_fewer_samples_than_ranks(run, changed, case, samples):
    """A rank without a sample still owns its shard: the run finishes, and every sample is run."""
    changes = {
        "workload.samples_per_rank": None,
        "workload.samples_per_minibatch": samples,
        "cases": [case],
    }
    (found,) = run(changed(changes)).cases
    assert found.conservation.samples == found.conservation.run_samples == 3 * samples
    assert 0 < found.utilization < samples / 4


@pytest.mark.parametrize(("samples", "ranks"), [(206, 4), (249, 2), (9, 4), (7, 3)])
def test_any_number_of_samples_goes_on_any_number_of_ranks(run, changed, samples, ranks):
    changes = {
        "cluster.gpus_per_node": ranks,
        "workload.samples_per_rank": None,
        "workload.samples_per_minibatch": samples,
        "cases": ALL_CASES,
    }
    for case in run(changed(changes)).cases:
        assert case.conservation.run_samples == 3 * samples


def test_the_cap_is_never_broken(run, changed):
    """Eight samples of 7 tokens under a cap of 8: one to a microbatch, whatever the average says."""
    changes = {"workload.lengths": {"constant": 7}, "workload.max_tokens": 8, "cases": ALL_CASES}
    for case in run(changed(changes)).cases:
        assert case.memory.largest_microbatch_tokens == 7
        assert case.mean_microbatches_per_rank == 2


def test_packing_packs(run, changed):
    """Two samples of 4,096 share a cap of 8,192, two of 4,097 do not; no token is lost either way."""
    for length, microbatches in ((4096, 1), (4097, 2)):
        changes = {"workload.lengths": {"constant": length}, "cases": [{"sync": "odc", "policy": "lb-micro"}]}
        (case,) = run(changed(changes)).cases
        assert case.mean_microbatches_per_rank == microbatches
        assert case.conservation.run_tokens == 3 * 8 * length


# Drawn: 4 minibatches of 3 samples, each sample twice an epoch of six. Two of six are over 2,000 tokens.
OVERSIZE = {
    "workload.samples_per_rank": None,
    "workload.samples_per_minibatch": 3,
    "workload.minibatches": 4,
    "workload.max_tokens": 2000,
    "cases": ALL_CASES,
}
ALL_TOKENS = 2 * (512 + 8192 + 1024 + 700 + 3000 + 40)


@pytest.mark.parametrize(
    ("oversize", "dropped_samples", "dropped_tokens", "truncated_tokens", "largest"),
    [
        ("truncate", 0, 0, 2 * (6192 + 1000), 2000),
        ("drop", 4, 2 * (8192 + 3000), 0, 2000),
        ("own-microbatch", 0, 0, 0, 8192),
    ],
)
def test_samples_over_the_cap(run, changed, oversize, dropped_samples, dropped_tokens, truncated_tokens, largest):
    for case in run(changed({**OVERSIZE, "workload.oversize": oversize})).cases:
        assert case.conservation.to_document() == {
            "samples": 12,
            "dropped_samples": dropped_samples,
            "tokens": ALL_TOKENS,
            "dropped_tokens": dropped_tokens,
            "truncated_tokens": truncated_tokens,
            "run_tokens": ALL_TOKENS - dropped_tokens - truncated_tokens,
        }
        assert case.memory.largest_microbatch_tokens <= largest
        assert case.samples_per_second == pytest.approx((12 - dropped_samples) / sum(seconds(case)))


def test_a_sample_over_the_cap_is_an_error_by_default(run, changed, tmp_path):
    changes = {**OVERSIZE, "workload.lengths": {"values": [40, 8192]}, "workload.samples_per_minibatch": 2}
    with pytest.raises(PolicyError) as caught:
        run(changed(changes), file=tmp_path / "s.yaml")
    sample = str(caught.value).partition("sample ")[2][0]
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        f"s.yaml: workload.oversize: 'error': minibatch 0: sample {sample} has 8192 tokens, over the cap of 2000 "
        "tokens on a microbatch; raise the cap, or choose truncate, drop or own-microbatch"
    )


def test_cutting_comes_before_the_cap(run, changed):
    changes = {"workload.cut_tokens": 2000, "workload.max_tokens": 2000}
    for case in run(changed(changes)).cases:
        assert case.conservation.truncated_tokens == 0
    assert run(changed(changes)).lengths["max"] == 2000


def test_dropping_everything_leaves_the_fixed_steps(run, changed):
    changes = {"workload.max_tokens": 39, "workload.oversize": "drop", "cases": ALL_CASES}
    for case in run(changed(changes)).cases:
        assert case.conservation.run_tokens == case.conservation.run_samples == 0
        assert case.utilization == case.mfu == case.tokens_per_second == 0
        assert case.lower_bound_ratio >= 1
        json.dumps(case.to_document(), allow_nan=False)


def compute_s(case, rank):
    """Seconds that a rank computes in the first minibatch."""
    return sum(
        span.end_s - span.start_s for span in case.spans if span.rank == rank and span.name in {"forward", "backward"}
    )


@pytest.mark.parametrize("engine", ["recurrence", "events"])
def test_a_rank_half_as_fast_computes_twice_as_long(run, changed, engine):
    even = run(changed(), engine=engine)
    slow = run(changed({"cluster.rank_speeds": {2: 0.5}}), engine=engine)
    for before, after in zip(even.cases, slow.cases, strict=True):
        assert compute_s(after, 2) == pytest.approx(2 * compute_s(before, 2))
        assert compute_s(after, 1) == pytest.approx(compute_s(before, 1))
        # Every rank waits for the slow one.
        assert sum(seconds(after)) > sum(seconds(before))


def test_all_ranks_half_as_fast_is_twice_the_compute(run, changed):
    """Where nothing but compute takes time."""
    free = {"workload.lengths": LONG_TAIL, "cluster.intra_node": {"bandwidth": 1e30, "latency": 0}}
    even = run(changed(free))
    slow = run(changed({**free, "cluster.rank_speeds": dict.fromkeys(range(4), 0.5)}))
    for before, after in zip(even.cases, slow.cases, strict=True):
        np.testing.assert_allclose(after.minibatch_s_N, 2 * before.minibatch_s_N, rtol=1e-4)
        assert after.utilization == pytest.approx(before.utilization, rel=1e-4)


def test_slowdowns_at_their_ends(run, changed):
    """Never slow is as without; always slow by 4 is as ranks of a quarter of the speed."""
    plain, quarter = run(changed()), run(changed({"cluster.rank_speeds": dict.fromkeys(range(4), 0.25)}))
    never = run(changed({"cluster.slowdowns": {"probability": 0, "factor": 4}}))
    always = run(changed({"cluster.slowdowns": {"probability": 1, "factor": 4}}))
    for left, right in ((plain, never), (quarter, always)):
        for one, other in zip(left.cases, right.cases, strict=True):
            np.testing.assert_allclose(one.minibatch_s_N, other.minibatch_s_N, rtol=1e-12)


def test_slowdowns_happen_as_often_as_they_should(run, changed):
    """One rank, one sample a minibatch: the mean compute is 1 + 0.2 x (3 - 1) times as long."""
    changes = {
        "cluster.gpus_per_node": 1,
        "workload.lengths": {"constant": 8192},
        "workload.samples_per_rank": 1,
        "workload.minibatches": 2000,
    }
    plain = run(changed(changes))
    slow = run(changed({**changes, "cluster.slowdowns": {"probability": 0.2, "factor": 3}}))
    assert set(np.round(slow.cases[1].minibatch_s_N / plain.cases[1].minibatch_s_N, 3)) == {1.0, 3.0}
    assert np.mean(seconds(slow.cases[1])) / np.mean(seconds(plain.cases[1])) == pytest.approx(1.4, abs=0.06)


def test_slowdowns_meet_every_case_alike(run, changed):
    """Two cases with the same plan see the same stragglers, so that a speedup compares like with like."""
    changes = {
        "cluster.slowdowns": {"probability": 0.5, "factor": 3},
        "cases": [{"sync": "odc", "policy": "lb-micro"}, {"sync": "odc", "policy": "lb-micro"}],
    }
    one, other = run(changed(changes)).cases
    assert seconds(one) == seconds(other)
    assert (other.speedup, other.speedup_ci95) == (1.0, (1.0, 1.0))


def test_a_slow_link_takes_longer(run, changed):
    slow_network = {"cluster.intra_node.bandwidth": "10 MB/s"}
    plain = run(changed(slow_network))
    slow = run(changed({**slow_network, "cluster.link_speeds": {3: 0.25}}))
    for before, after in zip(plain.cases, slow.cases, strict=True):
        assert (after.minibatch_s_N > before.minibatch_s_N).all()
        assert after.fractions.exposed_communication > before.fractions.exposed_communication


def test_overlap_hides_transfers(run, changed):
    """prefetch <= gather-only <= none, and the prediction shows the difference."""
    cases = [
        {"sync": sync, "policy": "lb-micro", "overlap": overlap}
        for sync in ("fsdp", "odc")
        for overlap in ("prefetch", "gather-only", "none")
    ]
    result = run(changed({"cases": cases, "cluster.intra_node.bandwidth": "50 MB/s"}))
    for prefetch, gather_only, none in (result.cases[:3], result.cases[3:]):
        assert (prefetch.minibatch_s_N < gather_only.minibatch_s_N).all()
        assert (gather_only.minibatch_s_N < none.minibatch_s_N).all()
        shares = [case.fractions.exposed_communication for case in (prefetch, gather_only, none)]
        assert shares == sorted(shares)


def test_padding_costs_its_fixed_time(run, changed):
    """One rank runs 8,192 tokens, the other 4,000 and 4,200, which share no microbatch. Padding adds 0.5 s to the
    first, which makes it the later one; and it trains nothing, so it is no utilization.
    """
    changes = {
        "cluster.gpus_per_node": 2,
        "cluster.intra_node": {"bandwidth": 1e30, "latency": 0},
        "workload.lengths": {"values": [8192, 4000, 4200]},
        "workload.samples_per_rank": None,
        "workload.samples_per_minibatch": 3,
        "cases": [{"sync": "odc", "policy": "lb-mini"}, {"sync": "odc", "policy": "lb-mini", "pad": True}],
    }
    plain, padded = run(changed(changes)).cases
    one = 2 * 0.256**2 + 3 * 0.256 + 0.5
    two = 2 * (0.125**2 + 0.13125**2) + 3 * (0.125 + 0.13125) + 2 * 0.5
    assert seconds(plain) == pytest.approx([two] * 3, rel=1e-4)
    assert seconds(padded) == pytest.approx([one + 0.5] * 3, rel=1e-4)
    assert (plain.padding_share, padded.padding_share) == (0, 0.25)
    assert (plain.mean_microbatches_per_rank, padded.mean_microbatches_per_rank) == (1.5, 2)
    assert plain.utilization == pytest.approx((one + two) / (2 * two), rel=1e-4)
    assert padded.utilization == pytest.approx((one + two) / (2 * (one + 0.5)), rel=1e-4)
    assert padded.fractions.other == pytest.approx(0.5 / (2 * (one + 0.5)), rel=1e-3)


def test_the_same_seed_is_the_same_result(run, changed):
    one, same, other = (
        run(changed({"workload.seed": seed, "cluster.slowdowns": {"probability": 0.5, "factor": 2}}))
        for seed in (3, 3, 4)
    )
    assert one.to_document() == same.to_document()
    assert seconds(one.cases[0]) != seconds(other.cases[0])


def test_more_minibatches_go_on_where_fewer_stop(run, changed):
    few, many = (run(changed({"workload.minibatches": count})) for count in (3, 7))
    for one, other in zip(few.cases, many.cases, strict=True):
        assert seconds(one) == pytest.approx(seconds(other)[:3], rel=1e-13)


def test_cases_do_not_disturb_each_other(run, changed):
    together = run(changed({"cases": ALL_CASES})).cases
    for position, case in enumerate(ALL_CASES):
        (alone,) = run(changed({"cases": [case]})).cases
        assert seconds(alone) == seconds(together[position])


def test_model_flops_utilization_by_hand(run, changed):
    """One rank at full efficiency, no recomputation: what is missing to 1 is attention's backward and the optimizer."""
    length, peak = 4096, 312e12
    changes = {
        "cluster.gpus_per_node": 1,
        "workload.lengths": {"constant": length},
        "workload.samples_per_rank": 1,
        "compute": {"analytic": {"linear_efficiency": 1, "attention_efficiency": 1}},
        "training.recompute": "none",
        "cases": [{"sync": "fsdp", "policy": "local-sort"}],
    }
    (case,) = run(changed(changes)).cases
    weights = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    matmuls, attention = 2 * 2 * weights * length + 2 * 1000 * 64 * length, 2 * 2 * 64 * length**2
    parameters = 2 * (weights + 2 * 64) + 2 * 1000 * 64 + 64
    optimizer_s = 32 * parameters / (0.8 * 2039e9)
    time_s = (3 * matmuls + 3.5 * attention) / peak + optimizer_s
    assert seconds(case) == pytest.approx([time_s] * 3, rel=1e-12)
    assert case.mfu == pytest.approx(3 * (matmuls + attention) / (peak * time_s), rel=1e-12)
    assert case.utilization == pytest.approx(1 - optimizer_s / time_s, rel=1e-12)


def test_contention_takes_the_events_engine(run, changed):
    ports = {"cluster.nodes": 2, "cluster.contention": True, "cluster.inter_node": {"ports": 1, "bandwidth": "1 MB/s"}}
    shared = run(changed(ports))
    assert shared.engine == "events"
    plain = run(changed({**ports, "cluster.contention": False}))
    assert seconds(shared.cases[0]) == pytest.approx(seconds(plain.cases[0]))
    assert (shared.cases[1].minibatch_s_N < plain.cases[1].minibatch_s_N).all()  # a lone transfer has the whole port
    with pytest.raises(InputError) as caught:
        run(changed(ports), engine="recurrence")
    assert str(caught.value) == "--engine: 'recurrence': models no contention; allowed here: events or auto"


def test_the_events_engine_refuses_what_would_take_hours(run, changed, monkeypatch):
    monkeypatch.setattr(odcsim.simulation, "_MOST_EVENT_VISITS", 100)
    with pytest.raises(
        InputError, match="--engine: 'events': up to 384 visits of compute would take the events engine"
    ):
        run(changed(), engine="events")
    assert run(changed()).engine == "recurrence"


def test_an_unknown_engine(run, document):
    with pytest.raises(
        InputError, match=r"'evnts': unknown engine; did you mean 'events'\? \(known: events, recurrence"
    ):
        run(document, engine="evnts")


@pytest.mark.parametrize("accumulation", [1, 4, 16])
def test_cost_is_linear_in_microbatches(run, changed, monkeypatch, accumulation):
    """Steps of the recurrence: the visits of a rank's microbatches, however many ranks and minibatches there are."""
    steps = 0
    visit = recurrence._State.visit

    def counted(self, *arguments):
        nonlocal steps
        steps += 1
        visit(self, *arguments)

    monkeypatch.setattr(recurrence._State, "visit", counted)
    monkeypatch.setattr(odcsim.simulation, "_RECORDED_RANKS", 0)
    changes = {
        "workload.samples_per_rank": accumulation,
        "workload.minibatches": 20,
        "cases": [{"sync": "fsdp", "policy": "local-sort"}],
    }
    run(changed(changes))
    assert steps == accumulation * 8  # 2 x 2 + 4 visits a microbatch


def test_events_are_linear_in_microbatches(run, changed, monkeypatch):
    import simpy

    events = []
    step = simpy.Environment.step

    def counted(self):
        events[-1] += 1
        step(self)

    monkeypatch.setattr(simpy.Environment, "step", counted)
    for accumulation in (4, 8, 16):
        events.append(0)
        changes = {
            "workload.samples_per_rank": accumulation,
            "workload.minibatches": 1,
            "cases": [{"sync": "odc", "policy": "local-sort"}],
        }
        run(changed(changes), engine="events")
    assert events[2] - events[1] == pytest.approx(2 * (events[1] - events[0]), rel=0.1)


def test_progress_counts_up_to_the_end(run, changed):
    told = []
    run(changed({"cases": ALL_CASES}), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (2 * 3 * len(ALL_CASES), 2 * 3 * len(ALL_CASES))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_lengths_are_described_as_drawn(run, changed):
    assert run(changed({"workload.lengths": {"constant": 4096}})).lengths == {
        "count": 24,
        "mean": 4096,
        "p50": 4096,
        "p90": 4096,
        "p99": 4096,
        "max": 4096,
        "cv": 0,
    }


def test_groups_that_are_cut_are_told(run, changed, traces):
    changes = {
        "workload.lengths": {"trace": str(traces / "math100x8_qwen25math_response.csv")},
        "workload.samples_per_rank": 3,
    }
    (warning,) = run(changed(changes)).warnings
    assert "groups of up to 8 samples" in warning
    assert "a minibatch of 12" in warning
    assert run(changed({**changes, "workload.samples_per_rank": 4})).warnings == ()


def test_a_sliding_window_is_told(run, changed, tmp_path):
    config = {
        "model_type": "mistral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
        "num_key_value_heads": 2,
        "sliding_window": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (warning,) = run(changed({"model": "config.json"})).warnings
    assert "512" in warning


def test_spans_are_of_the_first_minibatch_and_few_ranks(run, changed):
    """Nobody reads more lanes than sixteen."""
    for case in run(changed({"cluster.gpus_per_node": 20})).cases:
        assert {span.rank for span in case.spans} == set(range(16))
        assert max(span.end_s for span in case.spans) == pytest.approx(case.minibatch_s_N[0])


def test_a_result_can_be_written_as_json(run, scenario):
    result = run(scenario)
    text = json.dumps(result.to_document(), allow_nan=False)
    assert json.loads(text)["schema"] == "odcsim.result/1"
    assert dataclasses.replace(result, sampled_lengths=None).to_document() == result.to_document()


# Microbatches that are pulled

PULLED = {"workload.lengths": LONG_TAIL, "workload.samples_per_rank": 8, "workload.minibatches": 20}
FREE_TRANSFERS = {"cluster.intra_node": {"bandwidth": 1e30, "latency": 0}}


def test_pulling_levels_ranks_that_no_plan_knows_to_be_slow(run, changed):
    """Plans balance for ranks that are alike; a slow one then makes all wait, unless it pulls less."""
    changes = {
        **PULLED,
        "cluster.rank_speeds": {2: 0.5},
        "cases": [{"sync": "odc", "policy": "lb-mini"}, {"sync": "odc", "policy": "dynamic"}],
    }
    static, pulled = run(changed(changes)).cases
    assert pulled.speedup_ci95[0] > 1.2
    assert pulled.utilization > static.utilization
    assert pulled.lower_bound_ratio < 1.25


def test_ranks_end_no_further_apart_than_the_last_microbatch_is_long(run, changed):
    """No rank was free before a microbatch was pulled, so none ends earlier than the last to end began its last."""
    changes = {**PULLED, **FREE_TRANSFERS, "cases": [{"sync": "odc", "policy": "dynamic"}]}
    (case,) = run(changed({**changes, "cluster.rank_speeds": {1: 0.6, 3: 1.4}})).cases
    computing = [span for span in case.spans if span.name in {"forward", "backward"}]
    ends = {rank: max(span.end_s for span in computing if span.rank == rank) for rank in range(4)}
    latest = max(ends, key=ends.__getitem__)
    last = max(span.microbatch for span in computing if span.rank == latest)
    began = min(span.start_s for span in computing if (span.rank, span.microbatch) == (latest, last))
    assert min(ends.values()) >= began - 1e-3


def test_padding_changes_nothing_where_microbatches_are_pulled(run, changed):
    cases = [{"sync": "odc", "policy": "dynamic", "pad": pad} for pad in (False, True)]
    plain, padded = run(changed({**PULLED, "cases": cases})).cases
    assert seconds(plain) == seconds(padded)
    assert padded.padding_share == 0


@pytest.mark.parametrize("engine", ["recurrence", "events"])
def test_a_pulled_microbatch_is_slowed_down_as_its_ranks_own(run, changed, engine):
    """The first microbatch of a rank takes as long in any plan: ranks that pull one each are those of a static plan."""
    changes = {
        "workload.lengths": {"constant": 8192},
        "workload.samples_per_rank": 1,
        "cluster.slowdowns": {"probability": 0.5, "factor": 3},
        "cases": [{"sync": "odc", "policy": "local-sort"}, {"sync": "odc", "policy": "dynamic"}],
    }
    static, pulled = run(changed(changes), engine=engine).cases
    assert seconds(pulled) == pytest.approx(seconds(static))
