"""What a scenario tells policies, and how compute strays from the model, the same for both programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odcsim.costs.token_cost import TokenCost
from odcsim.minibatches import compute_noise_DM, draw_lengths, draw_slowdowns, plan_of_case
from odcsim.plan import Plan
from odcsim.policies import PlanTask
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario

LENGTHS = list(range(100, 900, 100))


@pytest.fixture
def resolved(changed, tmp_path):
    """Resolves the small document with dotted keys set; `grouped.csv` has eight lengths in groups of two."""
    (tmp_path / "grouped.csv").write_text("\n".join(map(str, LENGTHS)))
    (tmp_path / "grouped.json").write_text('{"group_size": 2}')
    return lambda changes=(): resolve(parse_scenario(changed(changes)), base_folder=tmp_path)


@pytest.fixture
def told():
    """The task that a case's policy is handed when it plans the first minibatch."""

    def task(found, *, minibatch=0):
        tasks = []

        def notes(task: PlanTask) -> Plan:
            tasks.append(task)
            return Plan(ranks=(tuple((sample,) for sample in range(task.lengths_S.size)), *((),) * (task.ranks - 1)))

        case = found.cases[-1]
        policy = replace(case.policy, make_plan=notes, equal_counts=False, uses_speeds=True, keeps_groups=True)
        lengths_NS = draw_lengths(found)
        plan_of_case(found, replace(case, policy=policy), lengths_NS[minibatch], minibatch=minibatch)
        return tasks[0]

    return task


def test_by_default_plans_know_the_models_cost_alone(resolved, told):
    found = resolved({"cluster.rank_speeds": {1: 0.5}})
    task = told(found)
    assert task.cost == found.cost == found.planning_cost
    assert task.speeds_D.tolist() == [1, 1, 1, 1]
    assert task.groups_S is None


def test_plans_by_tokens(resolved, told):
    found = resolved({"planning.cost": "tokens"})
    assert told(found).cost == found.planning_cost == TokenCost(quadratic=0.0, linear=1.0, constant=0.0)
    assert found.cost != found.planning_cost


def test_plans_that_know_speeds(resolved, told):
    found = resolved({"planning.known_speeds": True, "cluster.rank_speeds": {1: 0.5}, "cases.1.policy": "independent"})
    assert told(found).speeds_D.tolist() == [1, 0.5, 1, 1]


GROUPED = {
    "workload.lengths": {"trace": "grouped.csv"},
    "planning.keep_groups": True,
    "cases": [{"sync": "fsdp", "policy": "lockstep"}, {"sync": "odc", "policy": "independent"}],
}


def test_plans_that_keep_groups(resolved, told):
    found = resolved(GROUPED)
    for minibatch, lengths_S in enumerate(draw_lengths(found)):
        groups_S = told(found, minibatch=minibatch).groups_S
        # Both lengths of a group lie in one hundred and the next even one.
        pairs = {group: sorted(lengths_S[groups_S == group].tolist()) for group in set(groups_S.tolist())}
        assert sorted(pairs.values()) == [[100, 200], [300, 400], [500, 600], [700, 800]]


def test_a_group_that_a_minibatch_cuts_is_what_lies_in_it(resolved, told):
    found = resolved({**GROUPED, "workload.samples_per_rank": None, "workload.samples_per_minibatch": 5})
    with pytest.warns(UserWarning, match="groups of up to 2 samples that are cut"):
        task = told(found, minibatch=1)
    # Five samples from the sixth on: the second half of the third group, and two whole groups.
    assert [int(count) for count in np.unique(task.groups_S, return_counts=True)[1]] == [1, 2, 2]


def test_groups_are_not_asked_for_unless_they_are_to_be_kept(resolved):
    assert resolved({**GROUPED, "planning.keep_groups": False}).kept_groups_NS is None
    assert resolved({"planning.keep_groups": True}).kept_groups_NS is None


def test_compute_noise_has_mean_one_and_the_given_spread():
    noise_DM = compute_noise_DM(0.3, seed=1, minibatch=0, ranks=100, count=2000)
    # Standard errors of 200,000 draws: 0.0007 of the mean, 0.0005 of sigma.
    assert noise_DM.mean() == pytest.approx(1, abs=0.004)
    assert np.log(noise_DM).std() == pytest.approx(0.3, abs=0.003)


def test_compute_noise_depends_on_rank_and_place_alone(resolved):
    found = resolved({"cluster.compute_noise": 0.2})
    few, many = (draw_slowdowns(found, minibatch=3, microbatches=count) for count in (2, 9))
    assert np.array_equal(few, many[:, :2])
    assert np.unique(many).size == many.size
    assert not np.array_equal(draw_slowdowns(found, minibatch=4, microbatches=9), many)


def test_compute_noise_and_slowdowns_multiply(resolved):
    slow = {"cluster.slowdowns": {"probability": 0.4, "factor": 3}}
    noise = {"cluster.compute_noise": 0.2}
    drawn = [
        draw_slowdowns(resolved(changes), minibatch=0, microbatches=5) for changes in (slow, noise, {**slow, **noise})
    ]
    assert np.allclose(drawn[0] * drawn[1], drawn[2], rtol=1e-12)
    assert set(np.unique(drawn[0])) == {1, 3}


def test_noise_reaches_the_result_of_a_run(run, changed):
    plain, noisy = (run(changed({"cluster.compute_noise": sigma})) for sigma in (0.0, 0.3))
    for quiet, loud in zip(plain.cases, noisy.cases, strict=True):
        assert not np.array_equal(quiet.minibatch_s_N, loud.minibatch_s_N)
        assert quiet.conservation == loud.conservation
