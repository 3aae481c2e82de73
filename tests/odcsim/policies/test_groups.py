"""Samples that stay together on one rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_times import rank_times_s, steps_s

from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.plan import Plan
from odcsim.policies import PlanTask, Policy, find_policy, plan_minibatch, policy_names

COST = TokenCost(quadratic=1e-2, linear=1.0, constant=5.0)
KEEPING = [name for name in policy_names() if find_policy(name).keeps_groups]


def ranks_of_groups(plan, groups):
    """The ranks that run samples of each group."""
    ranks = {}
    for rank, microbatches in enumerate(plan.ranks):
        for sample in (sample for microbatch in microbatches for sample in microbatch):
            ranks.setdefault(groups[sample], set()).add(rank)
    return ranks


def test_which_policies_keep_groups():
    assert KEEPING == ["lockstep", "independent"]


@pytest.mark.parametrize("name", KEEPING)
@settings(deadline=None)
@given(
    samples=st.lists(st.tuples(st.integers(1, 100), st.integers(-2, 6)), max_size=40),
    ranks=st.integers(1, 6),
    cap_tokens=st.integers(100, 300),
)
def test_each_group_is_on_one_rank(name, samples, ranks, cap_tokens):
    lengths_S = np.array([length for length, _ in samples], dtype=np.int64)
    groups = [group for _, group in samples]
    policy = find_policy(name)
    given = {"ranks": ranks, "cap_tokens": cap_tokens, "cost": COST, "groups_S": groups}
    plan = policy.plan(lengths_S, **given)
    assert sorted(plan.samples()) == list(range(len(samples)))
    assert all(len(found) == 1 for found in ranks_of_groups(plan, groups).values())
    for microbatch in (microbatch for rank in plan.ranks for microbatch in rank):
        assert lengths_S[list(microbatch)].sum() <= cap_tokens
    assert policy.plan(lengths_S, **given) == plan


@pytest.mark.parametrize("name", KEEPING)
def test_groups_are_balanced(name):
    lengths_S = np.array([10, 10, 10, 10, 5, 5, 5, 5, 5, 5, 5, 5])
    groups = [0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    plan = find_policy(name).plan(lengths_S, ranks=2, cap_tokens=40, cost=COST, groups_S=groups)
    tokens = [sum(int(lengths_S[sample]) for microbatch in rank for sample in microbatch) for rank in plan.ranks]
    assert tokens == [40, 40]


def test_microbatches_of_kept_groups_meet_their_like():
    # Each rank has a long sample and short ones; the long ones run together, and so do the short ones.
    lengths_S = np.array([50, 10, 10, 48, 9, 9, 52, 11, 11])
    groups = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    plan = find_policy("lockstep").plan(lengths_S, ranks=3, cap_tokens=60, cost=COST, groups_S=groups)
    assert plan.counts == (2, 2, 2)
    heights = steps_s(plan, lengths_S, COST)
    assert heights[0] <= COST.quadratic * (52**2 + 11**2) + 63 + COST.constant
    assert heights[1] < 30


def test_a_group_may_need_several_microbatches():
    lengths_S = np.array([50] * 6)
    plan = find_policy("independent").plan(lengths_S, ranks=2, cap_tokens=60, cost=COST, groups_S=[7] * 5 + [1])
    assert sorted(plan.counts) == [1, 5]
    assert max(rank_times_s(plan, lengths_S, COST)) == pytest.approx(5 * (25 + 50 + 5))


@pytest.mark.parametrize("name", sorted(set(policy_names()) - set(KEEPING)))
def test_a_policy_that_cannot_refuses(name):
    with pytest.raises(PolicyError) as caught:
        find_policy(name).plan(np.array([1, 2]), ranks=2, cap_tokens=8, cost=COST, groups_S=[0, 0])
    assert str(caught.value) == (
        f"policy: '{name}': cannot keep the samples of a group on one rank; allowed: a policy that can, or no groups"
    )


def test_groups_of_samples_that_are_not_dropped():
    planned = plan_minibatch(
        find_policy("independent"),
        np.array([4, 90, 5, 6, 7]),
        ranks=2,
        cap_tokens=20,
        cost=COST,
        oversize="drop",
        groups_S=[0, 0, 1, 0, 1],
    )
    assert planned.plan.dropped == (1,)
    assert ranks_of_groups(planned.plan, [0, 0, 1, 0, 1]).keys() == {0, 1}
    assert all(len(ranks) == 1 for ranks in ranks_of_groups(planned.plan, [0, 0, 1, 0, 1]).values())


def test_a_policy_that_splits_a_group_is_caught():
    def splits(task: PlanTask) -> Plan:
        return Plan(ranks=tuple(((sample,),) for sample in range(task.lengths_S.size)))

    broken = Policy(name="broken", make_plan=splits, equal_counts=True, summary="broken", keeps_groups=True)
    arguments = {"ranks": 2, "cap_tokens": 8, "cost": COST}
    assert broken.plan(np.array([1, 2]), groups_S=[0, 1], **arguments).counts == (1, 1)
    with pytest.raises(AssertionError, match="broken: group 4 is on ranks 0 and 1"):
        broken.plan(np.array([1, 2]), groups_S=[4, 4], **arguments)
