"""`lockstep`: the sum over steps of the longest microbatch, against published policies, bounds and small optima."""

from __future__ import annotations

import time
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_times import GOLDEN_COST, steps_s

from odcsim.costs.token_cost import TokenCost
from odcsim.lengths import read_trace
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


def time_s(name, lengths, *, ranks, cap_tokens, cost):
    lengths_S = np.array(lengths, dtype=np.int64)
    plan = find_policy(name).plan(lengths_S, ranks=ranks, cap_tokens=cap_tokens, cost=cost)
    return sum(steps_s(plan, lengths_S, cost))


@settings(deadline=None)
@given(lengths=LENGTHS, ranks=st.integers(1, 9), cap_tokens=st.integers(200, 500), cost=COSTS)
def test_no_slower_than_any_published_policy(lengths, ranks, cap_tokens, cost):
    given = {"lengths": lengths, "ranks": ranks, "cap_tokens": cap_tokens, "cost": cost}
    own_s = time_s("lockstep", **given)
    for name in ("local-sort", "lb-micro", "verl-native"):
        assert own_s <= time_s(name, **given) * (1 + 1e-9)


@settings(deadline=None)
@given(lengths=LENGTHS, ranks=st.integers(1, 9), cap_tokens=st.integers(200, 500), cost=COSTS)
def test_steps_descend(lengths, ranks, cap_tokens, cost):
    lengths_S = np.array(lengths)
    plan = find_policy("lockstep").plan(lengths_S, ranks=ranks, cap_tokens=cap_tokens, cost=cost)
    heights = steps_s(plan, lengths_S, cost)
    assert all(high >= low * (1 - 1e-12) for high, low in pairwise(heights))


def test_what_lies_below_the_longest_is_filled_first():
    # 10 sets the first step's height. 6+4 and 5+5 fill it up; what is left is even. lb-micro, which gives each rank two
    # or three samples of near-equal sums first, cannot do it in one step less.
    lengths_S = np.array([10, 6, 5, 5, 4, 3, 3, 3])
    plan = find_policy("lockstep").plan(lengths_S, ranks=3, cap_tokens=12, cost=LINEAR)
    assert steps_s(plan, lengths_S, LINEAR) == [10, 3]


def test_a_constant_makes_fewer_steps():
    lengths = [8, 8, 1, 1, 1, 1]
    cheap, dear = (
        find_policy("lockstep").plan(np.array(lengths), ranks=2, cap_tokens=10, cost=TokenCost(1.0, 0.0, constant))
        for constant in (0.0, 100.0)
    )
    assert dear.counts == (1, 1)
    assert cheap.counts[0] >= dear.counts[0]


@pytest.mark.parametrize(("seed", "ranks"), list(product(range(12), (2, 3))))
def test_near_the_best_plan_where_it_is_known(seed, ranks):
    lengths_S = np.random.default_rng(seed).integers(1, 60, 9)
    given = {"ranks": ranks, "cap_tokens": 64, "cost": TokenCost(quadratic=1e-2, linear=1.0, constant=8.0)}
    best = solve_exactly(lengths_S, sync="fsdp", **given)
    assert best.is_proven
    assert time_s("lockstep", lengths_S, **given) <= 1.02 * best.time_s


def golden_minibatches(traces, count):
    lengths_S = np.minimum(read_trace(traces / "synthetic_longalign_10k_qwen.csv").lengths_S, 65536)
    return np.random.default_rng(0).permutation(lengths_S)[: 32 * count].reshape(count, 32)


def test_a_fifth_faster_than_lb_micro_in_the_golden_setting(traces):
    given = {"ranks": 8, "cap_tokens": 65536, "cost": GOLDEN_COST}
    minibatches_NS = golden_minibatches(traces, 12)
    own_s, published_s = (
        sum(time_s(name, lengths_S, **given) for lengths_S in minibatches_NS) for name in ("lockstep", "lb-micro")
    )
    assert own_s < published_s / 1.2


def test_a_large_minibatch_is_planned_in_seconds():
    lengths_S = np.random.default_rng(0).lognormal(9.4, 0.9, 8192).clip(16, 65536).astype(np.int64)
    start_s = time.process_time()
    plan = find_policy("lockstep").plan(lengths_S, ranks=256, cap_tokens=65536, cost=GOLDEN_COST)
    assert time.process_time() - start_s < 10  # about one on a machine at rest
    assert plan.has_equal_counts
