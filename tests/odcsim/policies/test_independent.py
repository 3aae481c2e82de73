"""`independent`: the busiest rank, against lb-mini, bounds and small optima, with constants and speeds."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_times import GOLDEN_COST, rank_times_s

from odcsim.costs.token_cost import TokenCost
from odcsim.lengths import read_trace
from odcsim.partition.bounds import compute_lower_bound_s
from odcsim.partition.exact import solve_exactly
from odcsim.policies import find_policy

LINEAR = TokenCost(quadratic=0.0, linear=1.0)
COSTS = st.sampled_from(
    [
        LINEAR,
        TokenCost(quadratic=0.0, linear=1.0, constant=30.0),
        TokenCost(quadratic=1e-2, linear=1.0, constant=5.0),
        TokenCost(quadratic=1.0, linear=0.0),
        TokenCost(quadratic=0.0, linear=0.0, constant=1.0),
    ]
)
LENGTHS = st.lists(st.one_of(st.integers(1, 20), st.integers(1, 200)), min_size=1, max_size=48)


def busiest_s(name, lengths, *, ranks, cap_tokens, cost, speeds=None):
    lengths_S = np.array(lengths, dtype=np.int64)
    plan = find_policy(name).plan(lengths_S, ranks=ranks, cap_tokens=cap_tokens, cost=cost, speeds_D=speeds)
    return max(rank_times_s(plan, lengths_S, cost, speeds=speeds))


@settings(deadline=None)
@given(
    lengths=LENGTHS,
    speeds=st.one_of(st.integers(1, 9), st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.5]), min_size=1, max_size=6)),
    cap_tokens=st.integers(200, 500),
    cost=COSTS,
)
def test_no_slower_than_lb_mini(lengths, speeds, cap_tokens, cost):
    speeds = [1.0] * speeds if isinstance(speeds, int) else speeds
    given = {"lengths": lengths, "ranks": len(speeds), "cap_tokens": cap_tokens, "cost": cost, "speeds": speeds}
    own_s = busiest_s("independent", **given)
    assert own_s <= busiest_s("lb-mini", **given) * (1 + 1e-9)
    bound_s = compute_lower_bound_s(np.array(lengths), cost=cost, cap_tokens=cap_tokens, speeds_D=speeds)
    assert own_s >= bound_s * (1 - 1e-9)


def test_a_rank_with_a_microbatch_more_gets_less_to_do():
    # 50 tokens a rank, but those of 6 fill two caps of 25 less tightly than those of 5: with a third microbatch, and a
    # constant of 10, a rank of nine 6 would take 84.
    lengths = [6] * 8 + [5] * 10
    cost = TokenCost(quadratic=0.0, linear=1.0, constant=10.0)
    lengths_S = np.array(lengths)
    plan = find_policy("independent").plan(lengths_S, ranks=2, cap_tokens=25, cost=cost)
    assert max(rank_times_s(plan, lengths_S, cost)) <= 72


def test_a_slow_rank_gets_its_share():
    lengths_S = np.array([4] * 12)
    plan = find_policy("independent").plan(lengths_S, ranks=3, cap_tokens=100, cost=LINEAR, speeds_D=[1.0, 0.5, 1.5])
    assert [sum(len(microbatch) for microbatch in rank) for rank in plan.ranks] == [4, 2, 6]


def test_a_rank_too_slow_for_any_sample_gets_none():
    plan = find_policy("independent").plan(
        np.array([5, 5]), ranks=3, cap_tokens=10, cost=LINEAR, speeds_D=[0.01, 1.0, 1.0]
    )
    assert plan.counts == (0, 1, 1)


def test_the_costliest_microbatch_of_a_rank_comes_first():
    lengths_S = np.random.default_rng(1).integers(1, 100, 60)
    plan = find_policy("independent").plan(lengths_S, ranks=3, cap_tokens=150, cost=LINEAR)
    for rank in plan.ranks:
        tokens = [int(lengths_S[list(microbatch)].sum()) for microbatch in rank]
        assert tokens == sorted(tokens, reverse=True)


@pytest.mark.parametrize(("seed", "ranks"), list(product(range(8), (2, 3))))
def test_near_the_best_plan_where_it_is_known(seed, ranks):
    lengths_S = np.random.default_rng(seed).integers(5, 60, 9)
    given = {"ranks": ranks, "cap_tokens": 64, "cost": TokenCost(quadratic=1e-2, linear=1.0, constant=20.0)}
    best = solve_exactly(lengths_S, sync="odc", **given)
    assert best.is_proven
    assert busiest_s("independent", lengths_S, **given) <= 1.01 * best.time_s


def test_near_the_bound_from_sixteen_samples_a_rank_on(traces):
    trace_S = np.minimum(read_trace(traces / "synthetic_longalign_10k_qwen.csv").lengths_S, 65536)
    minibatches_NS = np.random.default_rng(0).permutation(trace_S)[: 6 * 128].reshape(6, 128)
    given = {"cap_tokens": 65536, "cost": GOLDEN_COST}
    ratios = [
        busiest_s("independent", lengths_S, ranks=8, **given)
        / compute_lower_bound_s(lengths_S, speeds_D=[1.0] * 8, **given)
        for lengths_S in minibatches_NS
    ]
    assert 1 <= np.mean(ratios) < 1.015


def test_a_large_minibatch_is_planned_in_seconds():
    lengths_S = np.random.default_rng(0).lognormal(9.4, 0.9, 8192).clip(16, 65536).astype(np.int64)
    start_s = time.process_time()
    find_policy("independent").plan(lengths_S, ranks=256, cap_tokens=65536, cost=GOLDEN_COST)
    assert time.process_time() - start_s < 10  # one or two on a machine at rest
