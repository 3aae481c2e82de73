"""Plans of very many samples: made without a search, whatever the samples are, and no worse than published ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.policies import dynamic, find_policy, independent, lockstep
from odcsim.policies.large import LARGE, MOST_COMPARED, MOST_SEARCHED

GOLDEN = TokenCost(quadratic=1.982122 / 32_000**2, linear=2.611821 / 32_000, constant=0.666759)
FREE = TokenCost(quadratic=0.0, linear=0.0)
CAP_TOKENS = 65_536
NAMES = ("lockstep", "independent", "dynamic")


@pytest.fixture(scope="module")
def all_are_large():
    """Every minibatch is planned as the largest are."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (lockstep, independent, dynamic):
            for name in ("LARGE", "MOST_COMPARED", "MOST_SEARCHED"):
                if hasattr(module, name):
                    patch.setattr(module, name, 0)
        yield


def drawn(samples, *, seed=0):
    return np.random.default_rng(seed).integers(100, 60_001, samples)


def lockstep_s(plan, lengths_S):
    costs_S = GOLDEN.sample_costs_S(lengths_S)
    steps = zip(*plan.ranks, strict=True)
    return sum(GOLDEN.constant + max(costs_S[list(microbatch)].sum() for microbatch in step) for step in steps)


def busiest_s(plan, lengths_S):
    costs_S = GOLDEN.sample_costs_S(lengths_S)
    return max(
        sum(GOLDEN.constant + costs_S[list(microbatch)].sum() for microbatch in microbatches)
        for microbatches in plan.ranks
    )


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("name", NAMES)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 12), st.integers(1, 300)), min_size=1, max_size=60),
    ranks=st.integers(1, 70),
    cost=st.sampled_from([GOLDEN, FREE]),
)
def test_every_sample_is_run_under_the_cap(name, lengths, ranks, cost):
    """`Policy.plan` asserts what holds for every plan."""
    plan = find_policy(name).plan(np.array(lengths), ranks=ranks, cap_tokens=200, cost=cost, allow_oversize=True)
    assert sorted(plan.samples()) == list(range(len(lengths)))


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("name", ["lockstep", "independent"])
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=60),
    ranks=st.integers(1, 9),
    group_size=st.integers(1, 8),
)
def test_groups_stay_on_a_rank(name, lengths, ranks, group_size):
    groups = np.arange(len(lengths)) // group_size
    plan = find_policy(name).plan(np.array(lengths), ranks=ranks, cap_tokens=200, cost=GOLDEN, groups_S=groups)
    assert sorted(plan.samples()) == list(range(len(lengths)))


@pytest.mark.parametrize(("samples", "ranks"), [(LARGE + 1, 8), (MOST_COMPARED + 1, 256)])
def test_above_where_plans_are_made_in_another_way_no_published_one_is_better(samples, ranks):
    lengths_S = drawn(samples)
    plans = {
        name: find_policy(name).plan(lengths_S, ranks=ranks, cap_tokens=CAP_TOKENS, cost=GOLDEN)
        for name in ("lockstep", "lb-micro", "verl-native", "independent", "lb-mini")
    }
    ours = lockstep_s(plans["lockstep"], lengths_S)
    assert ours <= min(lockstep_s(plans[name], lengths_S) for name in ("lb-micro", "verl-native"))
    assert busiest_s(plans["independent"], lengths_S) <= busiest_s(plans["lb-mini"], lengths_S)


@pytest.mark.usefixtures("all_are_large")
def test_a_slow_rank_gets_less():
    lengths_S = drawn(4000)
    plan = find_policy("independent").plan(
        lengths_S, ranks=4, cap_tokens=CAP_TOKENS, cost=GOLDEN, speeds_D=[1.0, 0.5, 1.0, 1.0]
    )
    tokens_D = [sum(int(lengths_S[sample]) for batch in batches for sample in batch) for batches in plan.ranks]
    assert tokens_D[1] == pytest.approx(sum(tokens_D) / 7, rel=0.02)


@pytest.mark.usefixtures("all_are_large")
def test_the_last_to_be_pulled_are_short():
    lengths_S = drawn(4000)
    pulled = find_policy("dynamic").plan(lengths_S, ranks=8, cap_tokens=CAP_TOKENS, cost=GOLDEN).pulled
    costs_S = GOLDEN.sample_costs_S(lengths_S)
    times_s = [GOLDEN.constant + costs_S[list(batch)].sum() for batch in pulled]
    assert times_s == sorted(times_s, reverse=True)
    assert np.mean(times_s[-8:]) < 0.75 * np.mean(times_s)


@pytest.mark.parametrize("policy", NAMES)
def test_no_search_is_begun_in_the_largest(policy, monkeypatch):
    def fails(*_, **__):
        raise AssertionError("a search was begun")

    for module in (lockstep, independent, dynamic):
        for name in ("lower_heights", "lower_busiest", "improve_queue"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, fails)
    lengths_S = np.minimum(drawn(MOST_SEARCHED + 1), 2000)
    plan = find_policy(policy).plan(lengths_S, ranks=64, cap_tokens=CAP_TOKENS, cost=GOLDEN)
    assert sum(1 for _ in plan.samples()) == lengths_S.size


@pytest.mark.parametrize("policy", NAMES)
def test_a_million_samples(policy):
    """How long that takes: benchmarks/balance.py."""
    lengths_S = np.r_[CAP_TOKENS, np.ones(999_999, dtype=np.int64)]
    plan = find_policy(policy).plan(lengths_S, ranks=256, cap_tokens=CAP_TOKENS, cost=GOLDEN)
    assert sum(1 for _ in plan.samples()) == 1_000_000


@pytest.mark.parametrize("policy", NAMES)
def test_a_million_ranks(policy):
    plan = find_policy(policy).plan(np.array([5, 3, 9]), ranks=1_000_000, cap_tokens=10, cost=GOLDEN)
    assert sorted(plan.samples()) == [0, 1, 2]
