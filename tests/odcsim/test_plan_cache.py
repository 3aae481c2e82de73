"""Plans that are kept: the same question is answered once, any other anew, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from odcsim.analysis.advice_document import advice_document
from odcsim.analysis.advise import advise
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.plan_cache import PlanCache
from odcsim.policies import find_policy, plan_minibatch, policy_names
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate

LENGTHS_S = np.array([700, 3000, 40, 8192, 512, 1024, 3000, 90])
QUESTION = {
    "policy": find_policy("independent"),
    "lengths_S": LENGTHS_S,
    "ranks": 2,
    "cap_tokens": 8192,
    "cost": TokenCost(quadratic=1e-9, linear=1e-6, constant=1e-3),
    "oversize": "own-microbatch",
    "speeds_D": None,
    "groups_S": None,
}
OTHER = {
    "policy": find_policy("lb-mini"),
    "lengths_S": LENGTHS_S[::-1],
    "ranks": 3,
    "cap_tokens": 4096,
    "cost": TokenCost(quadratic=2e-9, linear=1e-6, constant=1e-3),
    "oversize": "truncate",
    "speeds_D": np.array([1.0, 0.5]),
    "groups_S": [0, 0, 1, 1, 2, 2, 3, 3],
}


def asked(cache, *, samples_before=0, **changes):
    question = {**QUESTION, **changes}
    return cache.plan_minibatch(
        question.pop("policy"), question.pop("lengths_S"), samples_before=samples_before, **question
    )


def made(**changes):
    question = {**QUESTION, **changes}
    return plan_minibatch(question.pop("policy"), question.pop("lengths_S"), **question)


def counts(cache):
    return cache.made, cache.found


@pytest.mark.parametrize("policy", policy_names())
def test_the_answer_is_that_of_the_policy_made_once(policy):
    cache = PlanCache(first_samples=8)
    first, again = (asked(cache, policy=find_policy(policy)) for _ in range(2))
    assert again is first
    expected = made(policy=find_policy(policy))
    assert first.plan == expected.plan
    assert first.lengths_S.tolist() == expected.lengths_S.tolist()
    assert (first.dropped_tokens, first.truncated_tokens) == (expected.dropped_tokens, expected.truncated_tokens)
    assert counts(cache) == (1, 1)


@pytest.mark.parametrize("key", OTHER)
def test_another_question_is_answered_anew(key):
    cache = PlanCache(first_samples=8)
    asked(cache)
    other = {key: OTHER[key]}
    assert asked(cache, **other).plan == made(**other).plan
    assert counts(cache) == (2, 0)
    asked(cache, **other)
    asked(cache)
    assert counts(cache) == (2, 2)


def test_each_setting_of_a_question_may_be_all_that_differs():
    """Speeds, groups and costs by their values, not by what happens to hold them."""
    cache = PlanCache(first_samples=8)
    for _ in range(2):
        asked(cache, speeds_D=np.array([1.0, 0.5]), groups_S=np.array(OTHER["groups_S"]))
        asked(cache, speeds_D=np.array([0.5, 1.0]), groups_S=OTHER["groups_S"])
        asked(cache, speeds_D=np.array([0.5, 1.0]), groups_S=OTHER["groups_S"][::-1])
    assert counts(cache) == (3, 3)


def test_speeds_that_a_policy_does_not_look_at_change_no_plan():
    cache = PlanCache(first_samples=8)
    for speeds_D in (None, np.array([1.0, 0.5])):
        asked(cache, policy=find_policy("lb-mini"), speeds_D=speeds_D)
    assert counts(cache) == (1, 1)


@pytest.mark.parametrize(("before", "kept"), [(0, True), (8, True), (9, False), (16, False)])
def test_the_first_samples_of_a_run_are_kept(before, kept):
    cache = PlanCache(first_samples=16)
    for _ in range(2):
        asked(cache, samples_before=before)
    assert cache.found == kept


def test_what_came_first_stays_once_it_is_full():
    cache = PlanCache(first_samples=100, most_samples=20)
    for _ in range(2):
        for ranks in (1, 2, 3):
            asked(cache, ranks=ranks)
    assert counts(cache) == (4, 2)
    # There is room for a smaller one.
    for _ in range(2):
        asked(cache, lengths_S=LENGTHS_S[:4])
    assert counts(cache) == (5, 3)


def test_nobody_can_change_what_is_kept():
    cache = PlanCache(first_samples=8)
    with pytest.raises(ValueError, match="read-only"):
        asked(cache).lengths_S[0] = 1


def test_what_has_no_plan_is_refused_again():
    cache = PlanCache(first_samples=8)
    for _ in range(2):
        with pytest.raises(PolicyError, match="over the cap"):
            asked(cache, cap_tokens=4096, oversize="error")
    assert counts(cache) == (0, 0)


def test_a_simulation_is_the_same_with_plans_of_another(changed):
    """Another overlap, noise and slow links: nothing that a plan knows."""
    cache = PlanCache(first_samples=24)
    simulate(parse_scenario(changed()), base_folder=Path(), plans=cache)
    assert counts(cache) == (2 * 3, 0)
    other = {"overlap": "none", "cluster.compute_noise": 0.2, "cluster.intra_node.bandwidth": "5 MB/s"}
    shared = simulate(parse_scenario(changed(other)), base_folder=Path(), plans=cache)
    alone = simulate(parse_scenario(changed(other)), base_folder=Path())
    assert counts(cache) == (2 * 3, 2 * 3)
    assert shared.to_document() == alone.to_document()
    for one, expected in zip(shared.cases, alone.cases, strict=True):
        assert one.minibatch_s_N.tolist() == expected.minibatch_s_N.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"planning.known_speeds": True, "cluster.rank_speeds": {1: 0.5}},
        {"workload.max_tokens": 4096, "workload.oversize": "drop"},
    ],
)
def test_an_advice_is_the_same_to_the_last_bit(changed, changes):
    scenario = parse_scenario(changed({**changes, "workload.minibatches": 4}))
    nothing_kept, kept = PlanCache(first_samples=0), PlanCache(first_samples=4 * 8)
    texts = [
        json.dumps(advice_document(advise(scenario, base_folder=Path(), plans=plans)), allow_nan=False)
        for plans in (nothing_kept, kept, None)
    ]
    assert len(set(texts)) == 1
    assert nothing_kept.found == 0
    assert kept.made + kept.found == nothing_kept.made
    assert kept.made < 0.6 * nothing_kept.made


def test_an_advice_plans_each_minibatch_of_a_policy_once(changed):
    """Without caps to try: then other numbers of samples are all that plans see."""
    plans = PlanCache(first_samples=4 * 8)
    changes = {"workload.max_tokens": 4096, "workload.oversize": "truncate", "workload.minibatches": 4}
    advice = advise(parse_scenario(changed(changes)), base_folder=Path(), plans=plans)
    policies = [candidate.case.policy for candidate in advice.candidates]
    of_samples = {
        (found.knob.label, policies[found.position]): len(found.case.minibatch_s_N)
        for found in advice.knobs
        if found.knob.kind == "samples"
    }
    assert plans.made == 4 * len(set(policies)) + sum(of_samples.values())
    assert {found.knob.kind for found in advice.knobs} == {"samples", "overlap"}
    wrong_models = len(advice.regret.truths) - 1
    of_overlaps = sum(4 for found in advice.knobs if found.knob.kind == "overlap")
    of_pairs = sum(len(found.case.minibatch_s_N) for found in advice.pairs)
    assert plans.found == 4 * len(set(policies)) * wrong_models + of_overlaps + of_pairs
