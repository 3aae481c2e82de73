"""A plan from a list of lengths: what it holds, what may be said of costs, and what is refused."""

from __future__ import annotations

import warnings
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.drop_in import DEFAULT_COST, DropInWarning, plan_lengths, token_cost
from odcsim.errors import InputError, PolicyError, UnknownNameError
from odcsim.policies import find_policy, plan_minibatch
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario

TOKENS_ALONE = (0.0, 1.0, 0.0)
LENGTHS = st.lists(st.integers(1, 300), max_size=30)
every_sync = pytest.mark.parametrize("sync", ["fsdp", "odc"])


def tokens_of_ranks(plan, lengths):
    return [sum(lengths[sample] for sample in chain.from_iterable(microbatches)) for microbatches in plan.ranks]


@every_sync
@settings(deadline=None)
@given(lengths=LENGTHS, ranks=st.integers(1, 6), spare_tokens=st.integers(0, 300))
def test_every_sample_runs_once_under_the_cap(sync, lengths, ranks, spare_tokens):
    cap_tokens = max(lengths, default=1) + spare_tokens
    plan = plan_lengths(lengths, ranks=ranks, cap_tokens=cap_tokens, sync=sync)
    plan.check(lengths, ranks=ranks, cap_tokens=cap_tokens)
    assert plan.dropped == ()
    assert plan.has_equal_counts or sync == "odc"
    assert plan == plan_lengths(np.array(lengths, dtype=np.int32), ranks=ranks, cap_tokens=cap_tokens, sync=sync)


def test_ranks_are_balanced():
    plan = plan_lengths([9, 8, 7, 5, 4, 3, 2, 2], ranks=2, cap_tokens=10, cost=TOKENS_ALONE)
    assert tokens_of_ranks(plan, [9, 8, 7, 5, 4, 3, 2, 2]) == [20, 20]


@every_sync
@pytest.mark.parametrize("ranks", [1, 3])
def test_no_samples(sync, ranks):
    assert plan_lengths([], ranks=ranks, sync=sync).ranks == ((),) * ranks


def test_the_longest_sample_is_the_cap_where_none_is_given():
    lengths = [50, 30, 30, 20]
    assert plan_lengths(lengths, ranks=1) == plan_lengths(lengths, ranks=1, cap_tokens=50)
    assert plan_lengths(lengths, ranks=1) != plan_lengths(lengths, ranks=1, cap_tokens=130)


@every_sync
def test_the_policy_follows_from_the_sync(sync):
    lengths = np.random.default_rng(3).integers(1, 5000, 24)
    best = {"fsdp": "lockstep", "odc": "independent"}[sync]
    expected = plan_minibatch(find_policy(best), lengths, ranks=4, cap_tokens=8000, cost=DEFAULT_COST).plan
    assert plan_lengths(lengths, ranks=4, cap_tokens=8000, sync=sync) == expected
    assert plan_lengths(lengths, ranks=4, cap_tokens=8000, sync=sync, policy=find_policy(best)) == expected
    assert plan_lengths(lengths, ranks=4, cap_tokens=8000, sync=sync, policy="lb-micro") != expected


def test_microbatches_to_be_pulled_are_on_no_rank():
    plan = plan_lengths([50, 30, 30, 20], ranks=2, policy="dynamic")
    assert plan.ranks == ((), ())
    assert sorted(chain.from_iterable(plan.pulled)) == [0, 1, 2, 3]
    with pytest.raises(InputError, match="policy: 'dynamic': gives ranks unequal numbers of microbatches"):
        plan_lengths([50, 30, 30, 20], ranks=2, policy="dynamic", sync="fsdp")


def test_samples_of_one_label_stay_on_one_rank():
    lengths = np.random.default_rng(5).integers(100, 5000, 32).tolist()
    labels = [f"prompt {sample // 4}" for sample in range(32)]
    plan = plan_lengths(lengths, ranks=4, cap_tokens=8000, groups=labels)
    on_ranks = [{labels[sample] for sample in chain.from_iterable(microbatches)} for microbatches in plan.ranks]
    assert sum(map(len, on_ranks)) == 8, "a label is on two ranks"
    without = plan_lengths(lengths, ranks=4, cap_tokens=8000)
    on_ranks = [{labels[sample] for sample in chain.from_iterable(microbatches)} for microbatches in without.ranks]
    assert sum(map(len, on_ranks)) > 8, "they would have been anyway"


def test_a_slow_rank_gets_less():
    plan = plan_lengths([10] * 30, ranks=2, cap_tokens=100, cost=TOKENS_ALONE, speeds=[1.0, 0.5])
    assert tokens_of_ranks(plan, [10] * 30) == [200, 100]


@pytest.mark.parametrize(
    ("oversize", "run"), [("truncate", [0, 1, 2]), ("drop", [0, 2]), ("own-microbatch", [0, 1, 2])]
)
def test_samples_over_the_cap(oversize, run):
    plan = plan_lengths([60, 101, 40], ranks=2, cap_tokens=100, oversize=oversize)
    assert sorted(plan.samples()) == run
    assert plan.dropped == ((1,) if oversize == "drop" else ())
    if oversize != "drop":
        assert (1,) in chain.from_iterable(plan.ranks)


# Costs


def test_the_default_cost_is_what_the_page_says_of_it():
    assert DEFAULT_COST.linear / DEFAULT_COST.quadratic == pytest.approx(64_500, rel=1e-3)
    assert DEFAULT_COST.constant / DEFAULT_COST.linear == pytest.approx(3_470, rel=1e-3)
    assert DEFAULT_COST.sample_costs_S(np.array([32_000]))[0] == pytest.approx(4.348357 + 8.768377)
    assert token_cost() == token_cost(None) == DEFAULT_COST


def test_three_numbers_are_a_cost():
    assert token_cost((1e-9, 2e-5, 0.5)) == token_cost([1e-9, 2e-5, 0.5]) == TokenCost(1e-9, 2e-5, 0.5)
    assert token_cost((0, np.float32(2), 1)) == TokenCost(0.0, 2.0, 1.0)
    assert token_cost(TokenCost(1e-9, 2e-5)) == TokenCost(1e-9, 2e-5)


def test_a_model_and_a_gpu_cost_what_they_do_in_a_scenario():
    scenario = parse_scenario(
        {
            "name": "any",
            "model": "qwen2.5-7b",
            "cluster": {"gpu": "h100"},
            "workload": {"lengths": {"constant": 5}, "samples_per_rank": 1, "max_tokens": 5},
            "compute": "analytic",
            "cases": [{"sync": "odc", "policy": "lb-mini"}],
        }
    )
    assert token_cost(("qwen2.5-7b", "h100")) == resolve(scenario, base_folder=Path()).cost


@pytest.mark.parametrize(
    "cost", [5, "qwen2.5-7b", (1.0, 2.0), (1.0, 2.0, "3"), ("qwen2.5-7b", "h100", 1.0), {"linear": 1.0}, b"ab"]
)
def test_what_is_no_cost_is_refused(cost):
    with pytest.raises(InputError, match=r"cost: .*must be a TokenCost, .* or the names of a model and a GPU"):
        token_cost(cost)


@pytest.mark.parametrize(
    "cost", [(0.0, 0.0, 0.0), (-1.0, 2.0, 0.0), (0.0, float("nan"), 1.0), TokenCost(float("inf"), 1.0)]
)
def test_terms_that_make_no_cost_are_refused(cost):
    with pytest.raises(InputError, match=r"cost: .*terms must be finite and not negative"):
        token_cost(cost)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"cost: .*unknown model; did you mean 'qwen2.5-7b'"):
        plan_lengths([5], ranks=1, cost=("qwen2.5-7", "h100"))
    with pytest.raises(UnknownNameError, match=r"cost: .*unknown GPU; did you mean 'h100"):
        plan_lengths([5], ranks=1, cost=("qwen2.5-7b", "h1000"))
    with pytest.raises(UnknownNameError, match="policy: 'lb_mini': unknown policy; did you mean 'lb-mini'"):
        plan_lengths([5], ranks=1, policy="lb_mini")
    with pytest.raises(UnknownNameError, match="sync: 'FSDP': unknown sync; did you mean 'fsdp'"):
        plan_lengths([5], ranks=1, sync="FSDP")
    with pytest.raises(UnknownNameError, match="oversize: 'cut'"):
        plan_lengths([5], ranks=1, cap_tokens=5, oversize="cut")


# What is refused, and what has no effect


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"lengths": [5, 0]}, r"lengths\[1\]: 0: must be a whole number from 1 to 1000000000"),
        ({"lengths": [5, 1.5]}, r"lengths\[1\]: 1.5: must be a whole number"),
        ({"lengths": [True]}, r"lengths\[0\]: True: must be a whole number"),
        ({"lengths": [[5], [6]]}, r"lengths\[0\]: \[5\]: must be a whole number"),
        ({"lengths": [2**70]}, r"lengths\[0\]: .*must be a whole number from 1 to 1000000000"),
        ({"lengths": 5}, "lengths: 5: must be values in one row"),
        ({"lengths": "567"}, "lengths: '567': must be values in one row"),
        ({"ranks": 0}, "ranks: 0: must be a whole number from 1 to 1048576"),
        ({"ranks": 10**30}, f"ranks: {10**30}: must be a whole number from 1 to 1048576"),
        ({"ranks": 2.0}, "ranks: 2.0: must be a whole number from 1 to 1048576"),
        ({"cap_tokens": 0}, "cap_tokens: 0: must be a whole number of 1 or more"),
        ({"groups": ["a"]}, "number of groups: 1: must be one for each of the 3 samples"),
        ({"groups": [["a"], ["b"], ["c"]]}, "groups: .*must be numbers, texts or other hashable labels"),
        ({"groups": [1, 1, 2], "policy": "lb-mini"}, "policy: 'lb-mini': cannot keep the samples of a group"),
        ({"speeds": [1.0]}, "number of speeds: 1: must be one for each of the 2 ranks"),
        ({"speeds": [1.0, 0.0]}, r"speeds\[1\]: 0.0: must be above 0"),
        ({"speeds": [1.0, None]}, r"speeds\[1\]: None: must be a finite number of 0 or more"),
        ({"speeds": [float("inf"), 1.0]}, r"speeds\[0\]: inf: must be a finite number of 0 or more"),
        (
            {"sync": "fsdp", "policy": "lb-mini"},
            "policy: 'lb-mini': gives ranks unequal numbers of microbatches, which deadlocks under fsdp",
        ),
    ],
)
def test_what_is_not_allowed_is_named(given_, message):
    with pytest.raises(InputError, match=message):
        plan_lengths(**{"lengths": [5, 6, 7], "ranks": 2, **given_})


def test_a_sample_over_the_cap_is_refused_by_name():
    with pytest.raises(PolicyError, match="sample 1 has 101 tokens, over the cap of 100 tokens on a microbatch"):
        plan_lengths([60, 101, 40], ranks=2, cap_tokens=100)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"oversize": "drop"}, "oversize has no effect without cap_tokens: the longest sample is the cap"),
        ({"policy": "verl-native", "cost": (1.0, 1.0, 1.0)}, "cost has no effect: verl-native does not balance by it"),
        ({"policy": "lb-mini", "speeds": [1.0, 0.5]}, "speeds has no effect: lb-mini plans as if all ranks were alike"),
    ],
)
def test_a_setting_without_effect_warns(given_, message):
    """verl#7758, LLaMA-Factory#9269: an option that was ignored without a word."""
    with pytest.warns(DropInWarning, match=message) as caught:
        plan_lengths([5, 6, 7], ranks=2, **given_)
    assert caught[0].filename == __file__, "the warning points elsewhere than at the call"


def test_settings_that_have_an_effect_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_lengths(
            [5, 6, 7], ranks=2, cap_tokens=6, cost=TOKENS_ALONE, oversize="drop", speeds=[1.0, 0.5], groups=[1, 2, 3]
        )
