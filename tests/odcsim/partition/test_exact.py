"""The exact answer: against every plan there is of tiny minibatches, and between the bounds and the policies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from best_plans import least_busiest_rank_s, least_lockstep_s
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds import compute_lower_bound_s, lockstep_lower_bound_s
from odcsim.partition.exact import MOST_SAMPLES, ExactAnswer, compute_plan_s, solve_exactly
from odcsim.plan import Plan
from odcsim.policies import find_policy, policy_names

# Of the 1.5B model on an A100.
FITTED = TokenCost(quadratic=1.982122 / 32000**2, linear=2.611821 / 32000, constant=0.666759)
LINEAR = TokenCost(quadratic=0, linear=1)
COSTS = st.builds(TokenCost, st.integers(0, 3), st.integers(0, 5), st.integers(0, 40))
TOKENS = st.lists(st.integers(1, 12), min_size=1, max_size=6)
STATIC_POLICIES = [find_policy(name) for name in policy_names() if not find_policy(name).is_pulled]


def solve(tokens: list[int], *, sync: str, **arguments: object) -> ExactAnswer:
    """The answer, once it is known to be a plan, of the time it says, proven as it says."""
    lengths_S = np.array(tokens, dtype=np.int64)
    answer = solve_exactly(lengths_S, sync=sync, **arguments)
    ranks, cap_tokens = arguments["ranks"], arguments["cap_tokens"]
    answer.plan.check(np.minimum(lengths_S, cap_tokens), ranks=ranks, cap_tokens=cap_tokens)
    assert not answer.plan.dropped
    if tokens:
        speeds_D = arguments.get("speeds_D") or [1.0] * ranks
        assert answer.time_s == compute_plan_s(
            answer.plan, lengths_S, cost=arguments["cost"], sync=sync, speeds_D=speeds_D
        )
    assert answer.bound_s <= answer.time_s
    if answer.is_proven:
        assert answer.bound_s >= answer.time_s * (1 - 1e-5)
    if sync == "fsdp":
        assert answer.plan.has_equal_counts
    return answer


def golden_lengths(seed: int, samples: int) -> list[int]:
    """Lengths with a long tail, of up to 65536 tokens."""
    draws = np.random.default_rng(seed).lognormal(mean=9.4, sigma=0.8, size=samples)
    return np.clip(draws.astype(np.int64), 64, 65536).tolist()


@settings(max_examples=60, deadline=None)
@given(
    tokens=TOKENS,
    cost=COSTS,
    cap_tokens=st.integers(1, 16),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 1.0, 3.0]), min_size=1, max_size=3),
)
def test_no_plan_of_odc_is_faster(tokens: list[int], cost: TokenCost, cap_tokens: int, speeds: list[float]):
    answer = solve(tokens, ranks=len(speeds), cap_tokens=cap_tokens, cost=cost, sync="odc", speeds_D=speeds)
    assert answer.is_proven
    assert answer.time_s == pytest.approx(least_busiest_rank_s(tokens, cost, cap_tokens, speeds), rel=3e-6)
    assert answer.bound_s >= compute_lower_bound_s(
        np.array(tokens), cost=cost, cap_tokens=cap_tokens, speeds_D=speeds
    ) * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, cost=COSTS, cap_tokens=st.integers(1, 24), ranks=st.integers(1, 4))
def test_no_plan_of_fsdp_is_faster(tokens: list[int], cost: TokenCost, cap_tokens: int, ranks: int):
    answer = solve(tokens, ranks=ranks, cap_tokens=cap_tokens, cost=cost, sync="fsdp")
    assert answer.is_proven
    assert answer.time_s == pytest.approx(least_lockstep_s(tokens, cost, cap_tokens, ranks), rel=3e-6)
    assert answer.bound_s >= lockstep_lower_bound_s(np.array(tokens), cost=cost, cap_tokens=cap_tokens, ranks=ranks) * (
        1 - 1e-12
    )


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
@pytest.mark.parametrize("cap_of", [max, sum])
@pytest.mark.parametrize(("samples", "ranks"), [(9, 2), (12, 4)])
def test_it_lies_between_the_bound_and_every_policy(
    sync: str, cap_of: Callable[[list[int]], int], samples: int, ranks: int
):
    tokens = golden_lengths(samples + ranks, samples)
    lengths_S, cap_tokens = np.array(tokens), cap_of(tokens)
    task = {"ranks": ranks, "cap_tokens": cap_tokens, "cost": FITTED}
    answer = solve(tokens, sync=sync, **task)
    assert answer.is_proven
    if sync == "fsdp":
        bound_s = lockstep_lower_bound_s(lengths_S, **task)
    else:
        bound_s = compute_lower_bound_s(lengths_S, cost=FITTED, cap_tokens=cap_tokens, speeds_D=[1.0] * ranks)
    assert bound_s <= answer.time_s * (1 + 1e-9)
    for policy in STATIC_POLICIES:
        if sync == "odc" or policy.equal_counts:
            plan = policy.plan(lengths_S, **task)
            time_s = compute_plan_s(plan, lengths_S, cost=FITTED, sync=sync, speeds_D=[1.0] * ranks)
            assert time_s >= answer.time_s * (1 - 1e-5), policy.name


def test_lockstep_is_no_faster_than_on_demand():
    for seed in range(4):
        tokens = golden_lengths(seed, 8)
        times_s = [solve(tokens, ranks=3, cap_tokens=65536, cost=FITTED, sync=sync).time_s for sync in ("odc", "fsdp")]
        assert times_s[0] <= times_s[1] * (1 + 1e-5)


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
def test_without_time_there_is_still_a_plan(sync: str):
    # Neither the first plan nor the bound is the best, so there is something left to prove.
    tokens = golden_lengths(6, 12)
    task = {"ranks": 4, "cap_tokens": 65536, "cost": FITTED, "sync": sync}
    hurried, best = solve(tokens, **task, time_limit_s=0.0), solve(tokens, **task)
    assert best.is_proven
    assert not hurried.is_proven
    assert hurried.bound_s < best.time_s <= hurried.time_s


@pytest.mark.parametrize(
    ("tokens", "sync", "ranks", "cap_tokens", "plan", "time_s"),
    [
        ([], "odc", 2, 8, Plan(ranks=((), ())), 0.0),
        ([], "fsdp", 2, 8, Plan(ranks=((), ())), 0.0),
        ([5], "odc", 1, 8, Plan(ranks=(((0,),),)), 15.0),
        ([5], "fsdp", 3, 8, Plan(ranks=(((0,),), ((),), ((),))), 15.0),  # more ranks than samples
        ([4, 4, 4, 4], "odc", 4, 8, Plan(ranks=(((0,),), ((1,),), ((2,),), ((3,),))), 14.0),  # all equal
        ([4, 4, 4, 4], "fsdp", 4, 8, Plan(ranks=(((0,),), ((1,),), ((2,),), ((3,),))), 14.0),
        ([9, 9], "odc", 1, 8, Plan(ranks=(((0,), (1,)),)), 38.0),  # over the cap: alone
        ([5, 4, 3, 2], "fsdp", 1, 14, Plan(ranks=(((0, 1, 2, 3),),)), 24.0),
    ],
)
def test_small_answers(tokens: list[int], sync: str, ranks: int, cap_tokens: int, plan: Plan, time_s: float):
    cost = TokenCost(quadratic=0, linear=1, constant=10)
    answer = solve(tokens, ranks=ranks, cap_tokens=cap_tokens, cost=cost, sync=sync)
    assert answer.time_s == time_s
    assert answer.is_proven
    assert answer.plan == plan


def test_the_fastest_rank_gets_the_most():
    answer = solve([4, 4, 4, 4, 4, 4], ranks=2, cap_tokens=8, cost=LINEAR, sync="odc", speeds_D=[1.0, 2.0])
    assert answer.time_s == 8.0
    assert [sum(map(len, rank)) for rank in answer.plan.ranks] == [2, 4]


def test_same_input_same_plan():
    task = {"ranks": 3, "cap_tokens": 65536, "cost": FITTED, "sync": "fsdp"}
    assert solve(golden_lengths(1, 10), **task) == solve(golden_lengths(1, 10), **task)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lengths_S": np.ones(MOST_SAMPLES + 1, dtype=np.int64)}, "13 samples; plans are proven for 12 at most"),
        ({"lengths_S": np.array([3, 0])}, r"lengths \[3, 0\]; all must be positive"),
        ({"ranks": 0}, "0 ranks"),
        ({"speeds_D": [1.0]}, r"speeds of shape \(1,\) for 2 ranks"),
        ({"speeds_D": [1.0, 0.0]}, r"speeds \[1.0, 0.0\]; all must be positive"),
        ({"speeds_D": [1.0, 2.0]}, r"speeds \[1.0, 2.0\] under fsdp; one speed is expected"),
    ],
)
def test_what_it_cannot_take(changed: dict[str, object], message: str):
    arguments = {"lengths_S": np.array([4, 5]), "ranks": 2, "cap_tokens": 8, "cost": LINEAR, "sync": "fsdp"}
    with pytest.raises(AssertionError, match=message):
        solve_exactly(**{**arguments, **changed})


def test_scipy_waits_until_it_is_needed():
    code = "import sys, odcsim.partition.exact; sys.exit('scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
