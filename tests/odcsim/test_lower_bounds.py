"""Bounds of whole scenarios: which sync has which, and that no case beats its own, whatever runs beside compute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_costs import known_costs, term, transfer_cost, visit_cost

from odcsim.costs.calibrated import ComputeCosts, TransferPair, write_costs
from odcsim.lower_bounds import any_sync_bounds_s_N, lower_bounds_s_CN
from odcsim.minibatches import draw_lengths
from odcsim.partition.bounds import compute_lower_bound_s, lockstep_lower_bound_s
from odcsim.policies import find_policy, policy_names
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario

FSDP_CASES = [
    {"sync": "fsdp", "policy": policy, "pad": not find_policy(policy).equal_counts}
    for policy in policy_names()
    if not find_policy(policy).is_pulled
]
# One second a token, as good as no time for transfers and steps.
TOKENS = {"fitted": {"quadratic": 0.0, "linear": 1.0, "constant": 0.0, "per_tokens": 1}}
FOUR_LONG = {
    "cluster.gpus_per_node": 2,
    "workload": {
        "lengths": {"values": [19, 18, 12, 11]},
        "samples_per_minibatch": 4,
        "max_tokens": 20,
        "minibatches": 1,
    },
    "compute": TOKENS,
}


@pytest.fixture
def resolved(changed, tmp_path):
    """Resolves the small document with dotted keys set."""
    return lambda changes=(): resolve(parse_scenario(changed(changes)), base_folder=tmp_path)


def bounds_s_CN(found):
    return lower_bounds_s_CN(found, draw_lengths(found))


def test_each_sync_has_its_own(resolved, run, changed):
    """Four samples that fit beside none: 19 and 11 on one rank; in steps 19 beside 18 and 12 beside 11."""
    found = resolved(FOUR_LONG)
    optimizer_s = found.cases[0].schedule.optimizer_s
    np.testing.assert_allclose(bounds_s_CN(found) - optimizer_s, [[31.0], [30.0]], rtol=1e-12)
    fsdp, odc = run(changed(FOUR_LONG)).cases
    # Both are reached.
    assert (fsdp.lower_bound_ratio, odc.lower_bound_ratio) == pytest.approx((1, 1), abs=1e-3)


def test_steps_are_bounded_at_the_speed_of_the_fastest_rank(resolved):
    found = resolved({**FOUR_LONG, "cluster.rank_speeds": {0: 2.0, 1: 2.0}})
    optimizer_s = found.cases[0].schedule.optimizer_s
    np.testing.assert_allclose(bounds_s_CN(found) - optimizer_s, [[15.5], [15.0]], rtol=1e-12)


def test_where_a_rank_is_slow_the_bound_of_any_sync_may_be_the_higher_one(resolved):
    fsdp_s, odc_s = bounds_s_CN(resolved({**FOUR_LONG, "cluster.rank_speeds": {1: 0.25}}))[:, 0]
    assert fsdp_s == odc_s > 31.1


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workload.max_tokens": 2000, "workload.oversize": "truncate"},
        {"workload.max_tokens": 2000, "workload.oversize": "drop"},
        {"workload.max_tokens": 2000, "workload.oversize": "own-microbatch"},
        {"workload.max_tokens": 39, "workload.oversize": "drop"},
    ],
)
def test_of_the_samples_that_are_run(resolved, changes, sync):
    found = resolved({**changes, "cases": [{"sync": sync, "policy": "lb-micro"}]})
    cap_tokens, oversize = found.scenario.workload.max_tokens, found.scenario.workload.oversize
    optimizer_s = found.cases[0].schedule.optimizer_s
    (found_N,), lengths_NS = bounds_s_CN(found), draw_lengths(found)
    for bound_s, lengths_S in zip(found_N, lengths_NS, strict=True):
        kept_S = lengths_S[lengths_S <= cap_tokens] if oversize == "drop" else lengths_S
        task = {"cost": found.cost, "cap_tokens": cap_tokens}
        run_S = np.minimum(kept_S, cap_tokens) if oversize == "truncate" else kept_S
        expected_s = compute_lower_bound_s(run_S, speeds_D=found.speeds_D, **task)
        if sync == "fsdp":
            expected_s = max(expected_s, lockstep_lower_bound_s(run_S, ranks=4, **task))
        assert bound_s == pytest.approx(expected_s + optimizer_s, rel=1e-12)


def test_the_bound_of_any_sync_is_that_of_odc_under_any_cap(resolved):
    for cap_tokens in (8192, 20000):
        found = resolved({"workload.max_tokens": cap_tokens})
        any_sync_s_N = any_sync_bounds_s_N(resolved(), draw_lengths(found), cap_tokens=cap_tokens)
        np.testing.assert_array_equal(any_sync_s_N, bounds_s_CN(found)[1])


def outer_visit_costs(*, first_s, last_s, lag):
    """Known costs with a first and a last visit of so many seconds; ranks leave collectives one after another."""
    known = known_costs()
    visits = {name: getattr(known.compute, name) for name in ComputeCosts.model_fields}
    visits |= {
        "embedding_forward": visit_cost(0.0, first_s / 5000, 0.0),
        "embedding_backward": visit_cost(0.0, 0.0, last_s),
    }
    gather, reduce = (transfer_cost(latency, 1e-9, lag=term(lag)) for latency in (1.3e-4, 1.9e-4))
    return known_costs(
        compute=ComputeCosts(**visits),
        collectives={"collective": TransferPair(gather=gather, scatter_accumulate=reduce)},
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_case_under_fsdp_beats_its_bound(run, changed, tmp_path, data):
    """Whatever overlaps, however late ranks leave, and even if the first and last visits are most of the compute."""
    draw = data.draw
    outer_s = st.sampled_from([0.0, 0.002, 0.5])
    costs = outer_visit_costs(first_s=draw(outer_s), last_s=draw(outer_s), lag=draw(st.sampled_from([0.0, 0.7])))
    write_costs(tmp_path / "costs.yaml", costs)
    changes = {
        "compute": {"calibrated": "costs.yaml"},
        "overlap": draw(st.sampled_from(["prefetch", "gather-only", "none"])),
        "cluster.gpus_per_node": draw(st.integers(1, 4)),
        "cluster.rank_speeds": {0: draw(st.sampled_from([0.3, 1, 2]))},
        "cluster.slowdowns": {"probability": draw(st.sampled_from([0.0, 0.5])), "factor": 3.0},
        "workload.lengths": {"values": draw(st.lists(st.integers(1, 5000), min_size=1, max_size=9))},
        "workload.samples_per_rank": draw(st.integers(1, 6)),
        "workload.max_tokens": 5000,
        "cases": FSDP_CASES,
    }
    for case in run(changed(changes)).cases:
        assert (case.minibatch_s_N >= case.lower_bound_s_N * (1 - 1e-12)).all()


@pytest.mark.parametrize(
    ("visits", "prefetch_s", "prefetch_bound_s"),
    [
        # 18 and 12 on one rank, 19 and 11 on the other: the rank with 18 goes on while the other runs its last visit,
        # but not beyond its next first visit. Neither computes less than 60 s in all.
        (("embedding_forward", "embedding_backward"), 61, 60),
        # Nothing to run beside the last visit, or beside the first.
        (("head_forward", "embedding_backward"), 62, 62),
        (("embedding_forward", "head_backward"), 62, 62),
    ],
)
def test_outer_visits_of_two_steps_may_be_together(run, changed, tmp_path, visits, prefetch_s, prefetch_bound_s):
    """A second a token in two of the visits: steps of 19 beside 18 and 12 beside 11 tokens take 62 s."""
    costs = dict.fromkeys(ComputeCosts.model_fields, visit_cost(0.0, 0.0, 0.0))
    costs |= dict.fromkeys(visits, visit_cost(0.0, 1.0, 0.0))
    write_costs(tmp_path / "costs.yaml", known_costs(compute=ComputeCosts(**costs)))
    case = {"sync": "fsdp", "policy": "lb-mini", "pad": True}
    cases = [{**case, "overlap": overlap} for overlap in ("prefetch", "gather-only", "none")]
    result = run(changed({**FOUR_LONG, "compute": {"calibrated": "costs.yaml"}, "cases": cases}))
    expected = ((prefetch_s, prefetch_bound_s), (62, 62), (62, 62))
    for case, (time_s, bound_s) in zip(result.cases, expected, strict=True):
        assert case.minibatch_s_N[0] == pytest.approx(time_s, abs=0.1)
        assert case.lower_bound_s_N[0] == pytest.approx(bound_s, abs=0.1)
        assert case.minibatch_s_N[0] >= case.lower_bound_s_N[0]
