"""What a run cannot tell is said, and predictions stay right where the run was: nothing is made up."""

from __future__ import annotations

import numpy as np
import pytest
from known_costs import known_costs, term, transfer_cost
from known_machine import FSDP, ODC, Machine, times_of

from odcsim.analysis.calibrate import calibrate
from odcsim.costs.calibrated import VISIT_KINDS, StepCosts, TransferPair

ONE_LENGTH = {"workload.lengths": {"values": [1000]}}
ONE_BY_ONE = {**ONE_LENGTH, "workload.max_tokens": 1000}
PACKS = {**ONE_LENGTH, "workload.samples_per_rank": None, "workload.samples_per_minibatch": 13}
# The root, embedding and head together, is as large as a block to within a thousandth.
ONE_SIZE = {"model.vocab": 288}
# 64 is the hidden width; 36992 parameters of a block, 36928 of the root.


def identified(costs):
    """For each kind of visit, the terms that could be told apart."""
    return {
        kind: [name for name in ("squared_tokens", "tokens", "constant") if getattr(visit, name).identified]
        for kind, visit in costs.compute
    }


def assert_predicted(predicted, recorded, costs, changes, *, machine=None, cases=(0, 1)):
    """Predictions of a scenario are what the machine takes."""
    changes = {**changes, "compute": {"calibrated": "costs.yaml"}}
    result = predicted(costs, changes)
    runs = recorded(*cases, changes=changes, machine=machine)
    for case, run in zip((result.cases[position] for position in cases), runs, strict=True):
        np.testing.assert_allclose(case.minibatch_s_N, times_of(run), rtol=1e-6, err_msg=case.label)
    return result


def test_samples_of_one_length_one_by_one(recorded, predicted):
    """Squares, tokens and constant grow alike: all is put down to tokens."""
    costs = calibrate(recorded(0, 1, changes=ONE_BY_ONE)).costs
    assert identified(costs) == {kind: ["tokens"] for kind in VISIT_KINDS}
    for kind in VISIT_KINDS:
        for name in ("squared_tokens", "constant"):
            assert getattr(getattr(costs.compute, kind), name) == term(0.0, identified=False)
            sentence = f"{kind}: {name} cannot be told from the other terms by this run's lengths"
            assert sum(warning.startswith(sentence) for warning in costs.warnings) == 1
    assert_predicted(predicted, recorded, costs, {**ONE_BY_ONE, "workload.samples_per_rank": 5})


def test_packs_of_samples_of_one_length(recorded, predicted):
    """The constant shows, for packs differ; squares follow tokens."""
    costs = calibrate(recorded(0, 1, changes=PACKS)).costs
    assert identified(costs) == {kind: ["tokens", "constant"] for kind in VISIT_KINDS}
    assert costs.compute.block_forward.constant.value == pytest.approx(
        known_costs().compute.block_forward.constant.value, rel=1e-9
    )
    assert_predicted(predicted, recorded, costs, {**PACKS, "workload.samples_per_minibatch": 23})


def test_lengths_that_hardly_differ(recorded, predicted):
    """Terms that noise would decide are not told apart either, and predictions there stay right."""
    near = {"workload.lengths": {"values": [1000, 1001, 1002, 1003]}, "workload.max_tokens": 1003}
    costs = calibrate(recorded(0, 1, changes=near)).costs
    assert identified(costs)["block_forward"] == ["tokens"]
    changes = {**near, "compute": {"calibrated": "costs.yaml"}}
    for case, run in zip(predicted(costs, changes).cases, recorded(0, 1, changes=changes), strict=False):
        np.testing.assert_allclose(case.minibatch_s_N, times_of(run), rtol=2e-3)


@pytest.mark.parametrize("case", [0, 1])
def test_units_of_one_size(recorded, predicted, case):
    """Bandwidth cannot be told from latency: all is latency, with a warning for each transfer."""
    costs = calibrate(recorded(case, changes=ONE_SIZE)).costs
    pair = costs.one_sided if case else costs.collectives["collective"]
    labels = [("all-gather", "one-sided gather"), ("reduce-scatter", "one-sided scatter-accumulate")]
    for found, label in zip((pair.gather, pair.scatter_accumulate), labels, strict=True):
        assert found.latency.identified
        assert found.seconds_per_byte == term(0.0, identified=False)
        (warning,) = [warning for warning in costs.warnings if warning.startswith(label[case])]
        assert "bandwidth cannot be told from latency" in warning
    changes = {**ONE_SIZE, "workload.seed": 9, "compute": {"calibrated": "costs.yaml"}}
    result = predicted(costs, changes)
    (run,) = recorded(case, changes=changes)
    # The root's bytes differ from a block's after all: by two in a thousand.
    np.testing.assert_allclose(result.cases[case].minibatch_s_N, times_of(run), rtol=1e-4)


def test_collectives_that_no_run_shows_cost_a_one_sided_transfer_and_a_meeting(recorded, predicted):
    costs = calibrate(recorded(1)).costs
    known = known_costs()
    meeting_s = 3 * known.steps.meeting.value

    def substitute(name):
        cost = getattr(known.one_sided, name)
        return transfer_cost((cost.latency.value + meeting_s) / 3, cost.seconds_per_byte.value)

    pair = TransferPair(gather=substitute("gather"), scatter_accumulate=substitute("scatter_accumulate"))
    machine = Machine(known_costs(collectives={"collective": pair}))
    result = assert_predicted(predicted, recorded, costs, {"workload.seed": 5}, machine=machine)
    (remark,) = [warning for warning in result.warnings if "costs.yaml" in warning]
    assert remark == "costs.yaml has no collectives: each is taken to cost a one-sided transfer and a meeting"


def test_one_sided_transfers_that_no_run_shows_are_a_step_of_a_collective(recorded, predicted):
    costs = calibrate(recorded(0)).costs
    known = known_costs()
    pair = known.collectives["collective"]
    # A meeting's step is a collective's; publishing and settling move the shard through an A100's memory.
    moving_s = (2 * 36992 + 128064) / 4 / (2039e9 * 0.8)
    steps = StepCosts(
        meeting=pair.gather.latency,
        publish=term(6 * moving_s),
        settle=term(16 * moving_s),
        optimizer=known.steps.optimizer,
    )
    machine = Machine(known_costs(one_sided=pair, steps=steps))
    result = assert_predicted(predicted, recorded, costs, {"workload.seed": 5}, machine=machine)
    (remark,) = [warning for warning in result.warnings if "costs.yaml" in warning]
    assert remark.startswith(
        "costs.yaml has no one-sided transfers: each is taken to have the bandwidth of a collective"
    )


def test_collectives_of_another_transport(recorded, predicted):
    costs = calibrate(recorded(0, 1)).costs
    result = assert_predicted(predicted, recorded, costs, {"runtime.transport": "gloo"})
    (remark,) = [warning for warning in result.warnings if "costs.yaml" in warning]
    assert remark == "costs.yaml has no collectives over gloo: those over collective are taken instead"


def test_nothing_is_remarked_where_nothing_is_made_up(recorded, predicted):
    assert predicted(calibrate(recorded(0, 1)).costs).warnings == ()
    assert predicted(calibrate(recorded(0)).costs, {"cases": [FSDP]}).warnings == ()
    assert predicted(calibrate(recorded(1)).costs, {"cases": [ODC]}).warnings == ()
