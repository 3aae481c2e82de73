"""What holds for the plan of every policy, whatever the minibatch."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.partition.bounds import compute_lower_bound_s
from odcsim.plan import Microbatch, Plan
from odcsim.policies import Oversize, PlanTask, Policy, find_policy, plan_minibatch, policy_names

POLICIES = [find_policy(name) for name in policy_names()]
LENGTHS = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 200)), max_size=40)
COST_MODELS = st.sampled_from(
    [
        TokenCost(quadratic=0.0, linear=1.0, constant=3.0),
        TokenCost(quadratic=1e-2, linear=1.0, constant=0.5),
        TokenCost(quadratic=1.0, linear=0.0),
        TokenCost(quadratic=0.0, linear=0.0, constant=1.0),
    ]
)


def busiest_rank_s(plan: Plan, lengths_S: np.ndarray, cost: TokenCost) -> float:
    costs = cost.sample_costs_S(lengths_S)
    return max(
        sum(cost.constant + sum(costs[sample] for sample in microbatch) for microbatch in microbatches if microbatch)
        for microbatches in plan.ranks
    )


def microbatches_of(plan: Plan) -> list[Microbatch]:
    return [microbatch for microbatches in (*plan.ranks, plan.pulled) for microbatch in microbatches]


def pulled_in_turn(plan: Plan) -> Plan:
    """The plan with microbatches that are pulled, if it has such, on one rank after the other."""
    return plan.assigned([place % len(plan.ranks) for place in range(len(plan.pulled))])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@given(
    lengths=LENGTHS,
    ranks=st.integers(1, 9),
    cap_tokens=st.integers(1, 250),
    cost=COST_MODELS,
    oversize=st.sampled_from(get_args(Oversize)),
)
def test_every_policy(
    policy: Policy, lengths: list[int], ranks: int, cap_tokens: int, cost: TokenCost, oversize: Oversize
):
    lengths_S = np.array(lengths, dtype=np.int64)
    arguments = {"ranks": ranks, "cap_tokens": cap_tokens, "cost": cost, "oversize": oversize}
    if oversize == "error" and max(lengths, default=0) > cap_tokens:
        with pytest.raises(PolicyError, match=f"over the cap of {cap_tokens} tokens"):
            plan_minibatch(policy, lengths_S, **arguments)
        return
    answer = plan_minibatch(policy, lengths_S, **arguments)
    plan = answer.plan

    # Every sample once, on one of the ranks or among the dropped.
    assert len(plan.ranks) == ranks
    run = [sample for microbatch in microbatches_of(plan) for sample in microbatch]
    assert sorted([*run, *plan.dropped]) == list(range(len(lengths)))
    assert plan.dropped == tuple(
        sample for sample, tokens in enumerate(lengths) if oversize == "drop" and tokens > cap_tokens
    )

    # No token is lost without account.
    run_tokens = sum(int(answer.lengths_S[sample]) for sample in run)
    assert run_tokens + answer.dropped_tokens + answer.truncated_tokens == sum(lengths)
    assert run_tokens == answer.lengths_S.sum()

    # The cap holds; a sample over it, where allowed, is alone.
    for microbatch in microbatches_of(plan):
        tokens = sum(int(answer.lengths_S[sample]) for sample in microbatch)
        assert tokens <= cap_tokens or (oversize == "own-microbatch" and len(microbatch) == 1)

    if policy.equal_counts:
        assert len(set(plan.counts)) == 1
    # Who runs a microbatch is named by the plan, or left open for each.
    assert not any(plan.ranks) if policy.is_pulled else not plan.pulled
    assert busiest_rank_s(pulled_in_turn(plan), answer.lengths_S, cost) * (1 + 1e-9) >= compute_lower_bound_s(
        answer.lengths_S, cost=cost, cap_tokens=cap_tokens, speeds_D=[1.0] * ranks
    )
    assert plan_minibatch(policy, lengths_S, **arguments).plan == plan


@pytest.mark.parametrize("name", ["local-sort", "lb-micro", "verl-native"])
@given(lengths=LENGTHS, ranks=st.integers(1, 9))
def test_ranks_get_equal_counts_of_samples(name: str, lengths: list[int], ranks: int):
    plan = find_policy(name).plan(
        np.array(lengths, dtype=np.int64), ranks=ranks, cap_tokens=200, cost=TokenCost(quadratic=1e-2, linear=1.0)
    )
    samples = [sum(map(len, microbatches)) for microbatches in plan.ranks]
    assert max(samples) - min(samples) <= 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_samples(policy: Policy):
    plan = policy.plan(np.array([], dtype=np.int64), ranks=3, cap_tokens=8, cost=TokenCost(quadratic=0, linear=1))
    assert plan == Plan(ranks=((), (), ()))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_one_sample_on_one_of_three_ranks(policy: Policy):
    plan = pulled_in_turn(policy.plan(np.array([5]), ranks=3, cap_tokens=8, cost=TokenCost(quadratic=0, linear=1)))
    assert list(plan.samples()) == [0]
    assert sorted(plan.counts) == ([1, 1, 1] if policy.equal_counts else [0, 0, 1])


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ranks": 0}, "ranks: 0: a plan needs at least 1 rank"),
        ({"cap_tokens": 0}, "max_tokens: 0: the cap on a microbatch must be at least 1 token"),
        ({"lengths_S": np.array([4, 0])}, "length of sample 1: 0: a sample must have at least 1 token"),
        ({"lengths_S": np.array([4, 9, 8])}, "length of sample 1: 9: the sample exceeds the cap of 8 tokens"),
        (
            {"cost": TokenCost(quadratic=0.0, linear=-1.0)},
            "compute: -4.0: cost of sample 0 (4 tokens); it must be finite and not negative",
        ),
        (
            {"cost": TokenCost(quadratic=float("nan"), linear=1.0)},
            "compute: nan: cost of sample 0 (4 tokens); it must be finite and not negative",
        ),
        (
            {"cost": TokenCost(quadratic=0.0, linear=1.0, constant=-0.5)},
            "compute: -0.5: constant of a microbatch; it must be finite and not negative",
        ),
    ],
)
def test_bad_arguments_are_named(policy: Policy, changed: dict[str, object], message: str):
    arguments = {"lengths_S": np.array([4, 5]), "ranks": 2, "cap_tokens": 8, "cost": TokenCost(quadratic=0, linear=1)}
    with pytest.raises(PolicyError) as caught:
        policy.plan(**{**arguments, **changed})
    assert str(caught.value) == message


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    "lengths",
    [[7] * 24, [200, *([1] * 20)], [200] * 3 + [1], [5], [1] * 100, [100, 101] * 6, list(range(1, 60))],
    ids=["all equal", "one giant", "few giants", "one sample", "dust", "pairs that just break the cap", "a ramp"],
)
@pytest.mark.parametrize("ranks", [1, 4, 31])
@pytest.mark.parametrize("cost", [TokenCost(1e-2, 1.0, 5.0), TokenCost(0.0, 0.0), TokenCost(0.0, 0.0, 1.0)], ids=str)
def test_degenerate_minibatches(policy: Policy, lengths: list[int], ranks: int, cost: TokenCost):
    plan = policy.plan(np.array(lengths), ranks=ranks, cap_tokens=200, cost=cost)
    assert sorted(plan.samples()) == list(range(len(lengths)))
    # Nobody packs 200 tokens of the shortest into more microbatches than there are samples, nor runs an empty one that
    # no other rank is to meet.
    held = [microbatch for microbatch in microbatches_of(plan) if microbatch]
    assert len(held) <= len(lengths)
    if not policy.equal_counts:
        assert held == microbatches_of(plan)


@pytest.mark.parametrize("name", ["independent", "lockstep"])
def test_equal_samples_are_shared_out_evenly(name: str):
    plan = find_policy(name).plan(np.full(24, 7), ranks=8, cap_tokens=14, cost=TokenCost(1e-2, 1.0, 5.0))
    assert plan.counts == (2,) * 8
    assert [sum(map(len, rank)) for rank in plan.ranks] == [3] * 8


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_speeds_reach_the_policies_that_use_them_alone(policy: Policy):
    given = {"ranks": 2, "cap_tokens": 8, "cost": TokenCost(quadratic=0, linear=1)}
    lengths_S = np.array([4, 4, 4, 4, 4, 4])
    plans = [policy.plan(lengths_S, speeds_D=speeds, **given) for speeds in (None, [1.0, 5.0])]
    assert (plans[0] != plans[1]) == policy.uses_speeds


def test_bad_speeds_are_named():
    arguments = {"ranks": 2, "cap_tokens": 8, "cost": TokenCost(quadratic=0, linear=1)}
    for speed in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(PolicyError) as caught:
            find_policy("independent").plan(np.array([4]), speeds_D=[1.0, speed], **arguments)
        assert str(caught.value) == f"speed of rank 1: {speed}: must be finite and above 0"


def test_a_policy_that_breaks_an_invariant_is_caught():
    def forgets_the_last(task: PlanTask) -> Plan:
        return Plan(ranks=(tuple((sample,) for sample in range(task.lengths_S.size - 1)),))

    def drops(task: PlanTask) -> Plan:
        return Plan(ranks=((),), dropped=tuple(range(task.lengths_S.size)))

    def ignores_the_cap(task: PlanTask) -> Plan:
        return Plan(ranks=((tuple(range(task.lengths_S.size)),),))

    def leaves_ranks_open(task: PlanTask) -> Plan:
        return Plan(ranks=((),), pulled=tuple((sample,) for sample in range(task.lengths_S.size)))

    arguments = {"ranks": 1, "cap_tokens": 8, "cost": TokenCost(quadratic=0, linear=1)}
    lengths_S = np.array([9, 1])
    for make_plan, reason in [
        (forgets_the_last, "missing"),
        (drops, "dropped"),
        (ignores_the_cap, "9 tokens, cap 8"),
        (leaves_ranks_open, "to be pulled, in a plan that names ranks"),
    ]:
        broken = Policy(name="broken", make_plan=make_plan, equal_counts=False, summary="broken")
        with pytest.raises(AssertionError, match=reason):
            broken.plan(lengths_S, allow_oversize=True, **arguments)
