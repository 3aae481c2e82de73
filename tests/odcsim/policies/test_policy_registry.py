"""The names of policies."""

from __future__ import annotations

import pytest

import odcsim.policies
from odcsim.errors import UnknownNameError
from odcsim.policies import find_policy, policy_names


def test_all_policies_are_there_simplest_first():
    assert policy_names() == (
        "local-sort",
        "lb-micro",
        "lb-mini",
        "verl-native",
        "lockstep",
        "independent",
        "dynamic",
    )


def test_a_policy_goes_by_its_name():
    assert [find_policy(name).name for name in policy_names()] == list(policy_names())
    assert all(find_policy(name).summary for name in policy_names())


def test_which_policies_agree_on_counts():
    assert find_policy("local-sort").equal_counts
    assert find_policy("lb-micro").equal_counts
    assert find_policy("verl-native").equal_counts
    assert find_policy("lockstep").equal_counts
    assert not find_policy("lb-mini").equal_counts
    assert not find_policy("independent").equal_counts
    assert not find_policy("dynamic").equal_counts


def test_what_policies_can():
    def names(ability):
        return [name for name in policy_names() if getattr(find_policy(name), ability)]

    assert names("uses_speeds") == ["independent"]
    assert names("keeps_groups") == ["lockstep", "independent"]
    assert names("is_pulled") == ["dynamic"]
    assert set(policy_names()) - set(names("uses_cost")) == {"local-sort", "verl-native"}


def test_an_unknown_policy_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        find_policy("lb-minni", file="a.yaml", key="cases.0.policy")
    text = str(caught.value)
    assert text.startswith("a.yaml: cases.0.policy: 'lb-minni': unknown policy; did you mean 'lb-mini'?")
    assert all(name in text for name in policy_names())


def test_exported_names():
    assert sorted(odcsim.policies.__all__) == [
        "MinibatchPlan",
        "Oversize",
        "OversizeResult",
        "PlanFunction",
        "PlanTask",
        "Policy",
        "apply_oversize",
        "find_policy",
        "plan_minibatch",
        "policy_names",
    ]
