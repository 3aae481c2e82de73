"""Troubles that users of other balancers and packers reported, and what is right in each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.plan import Plan
from odcsim.policies import MinibatchPlan, Oversize, find_policy, plan_minibatch, policy_names

COST = TokenCost(quadratic=1e-6, linear=1e-3, constant=0.1)
every_policy = pytest.mark.parametrize("name", policy_names())
every_packing_policy = pytest.mark.parametrize(
    "name", ["lb-micro", "lb-mini", "verl-native", "lockstep", "independent"]
)


def plan(name: str, lengths: list[int], *, ranks: int, cap_tokens: int, oversize: Oversize = "error") -> MinibatchPlan:
    """A policy's plan; where microbatches are pulled, ranks take turns."""
    planned = plan_minibatch(
        find_policy(name), np.array(lengths), ranks=ranks, cap_tokens=cap_tokens, cost=COST, oversize=oversize
    )
    in_turn = [place % ranks for place in range(len(planned.plan.pulled))]
    return replace(planned, plan=planned.plan.assigned(in_turn))


def samples_per_rank(answer: Plan) -> list[int]:
    return [sum(map(len, microbatches)) for microbatches in answer.ranks]


@every_policy
@pytest.mark.parametrize(("samples", "ranks"), [(206, 4), (249, 2), (1, 2), (7, 3)])
def test_any_number_of_samples_over_any_number_of_ranks(name: str, samples: int, ranks: int):
    """verl#4152, verl#473, miles#1356, NeMo-RL#648: counts that the number of ranks does not divide were refused."""
    lengths = np.random.default_rng(samples).integers(1, 1000, samples).tolist()
    answer = plan(name, lengths, ranks=ranks, cap_tokens=1000).plan
    assert sorted(answer.samples()) == list(range(samples))
    assert sum(samples_per_rank(answer)) == samples
    if find_policy(name).equal_counts:
        assert answer.has_equal_counts


@every_policy
def test_the_cap_is_a_hard_postcondition(name: str):
    """verl#7553: eight samples of 7 tokens under a cap of 8 came out with 14 tokens in one microbatch."""
    answer = plan(name, [7] * 8, ranks=1, cap_tokens=8).plan
    assert [len(microbatch) for microbatch in answer.ranks[0]] == [1] * 8


@every_policy
def test_one_sample_over_the_cap_is_refused_by_name(name: str):
    """OpenRLHF#1280, SkyRL#1477: one sample over the cap; a packer elsewhere never returned."""
    with pytest.raises(PolicyError, match="sample 2 has 9001 tokens, over the cap of 9000 tokens"):
        plan(name, [10, 20, 9001, 30], ranks=2, cap_tokens=9000)


@every_policy
@pytest.mark.parametrize("giants", [1, 4])
def test_samples_over_the_cap_run_alone_when_asked(name: str, giants: int):
    """OpenRLHF#1280, SkyRL#1477: the same, where the user lets such samples run."""
    lengths = [10, 20, 30, 40] + [9001] * giants
    answer = plan(name, lengths, ranks=2, cap_tokens=50, oversize="own-microbatch").plan
    microbatches = [microbatch for rank in answer.ranks for microbatch in rank]
    for giant in range(4, 4 + giants):
        assert (giant,) in microbatches


@every_policy
def test_fewer_samples_than_ranks(name: str):
    """slime#1823: fewer samples than parts; some ranks run nothing (but padding, where counts are equal)."""
    answer = plan(name, [5, 6, 7], ranks=8, cap_tokens=8).plan
    assert sorted(samples_per_rank(answer)) == [0] * 5 + [1] * 3
    assert set(answer.counts) == ({1} if find_policy(name).equal_counts else {0, 1})


@every_packing_policy
def test_the_cap_counts_tokens_as_they_are_run(name: str):
    """verl#3088: the cap was compared with padded lengths, so that two samples of half the cap never met."""
    assert plan(name, [4, 4], ranks=1, cap_tokens=8).plan.ranks == (((0, 1),),)
    # A sample cut to the cap counts as the cap, not as the length it had.
    assert plan(name, [40, 4, 4], ranks=1, cap_tokens=8, oversize="truncate").plan.counts == (2,)


@pytest.mark.parametrize("name", ["lb-micro", "local-sort", "verl-native", "lockstep", "independent"])
def test_nine_samples_over_four_ranks(name: str):
    """verl#6869: 9 samples over 4 ranks came out as 3, 3, 3, 0."""
    answer = plan(name, [5] * 9, ranks=4, cap_tokens=1000).plan
    assert sorted(samples_per_rank(answer)) == [2, 2, 2, 3]


@every_packing_policy
@pytest.mark.parametrize("cap_tokens", [8192, 8193])
def test_an_odd_cap_packs_as_well_as_an_even_one(name: str, cap_tokens: int):
    """trl#3887, #4554, #4632: at a cap of 8193 nothing was packed, or tokens vanished."""
    answer = plan(name, [4096] * 8, ranks=1, cap_tokens=cap_tokens)
    assert [len(microbatch) for microbatch in answer.plan.ranks[0]] == [2, 2, 2, 2]
    assert int(answer.plan.loads(answer.lengths_S).tokens_DM.sum()) == 8 * 4096


@every_policy
@pytest.mark.parametrize(
    ("oversize", "run", "dropped", "truncated"),
    [("truncate", 8193 + 8193 + 100, 0, 1807), ("drop", 8193 + 100, 10_000, 0), ("own-microbatch", 18_293, 0, 0)],
)
def test_tokens_in_are_tokens_run_dropped_or_cut_off(
    name: str, oversize: Oversize, run: int, dropped: int, truncated: int
):
    """trl#4554, axolotl#3861: tokens lost without a word, slots miscounted when samples are dropped."""
    answer = plan(name, [8193, 10_000, 100], ranks=2, cap_tokens=8193, oversize=oversize)
    assert int(answer.plan.loads(answer.lengths_S).tokens_DM.sum()) == run
    assert (answer.dropped_tokens, answer.truncated_tokens) == (dropped, truncated)
    assert run + dropped + truncated == 8193 + 10_000 + 100
    assert sorted([*answer.plan.samples(), *answer.plan.dropped]) == [0, 1, 2]
    assert answer.plan.dropped == ((1,) if oversize == "drop" else ())
