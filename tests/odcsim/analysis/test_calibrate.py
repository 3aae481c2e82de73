"""Calibration on runs of a machine whose costs are known: they come back, and other scenarios are predicted by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from known_costs import known_costs, term, terms_of, transfer_cost
from known_machine import CHANGES, Machine, counted_memory, normal_jitter, times_of

from odcsim.analysis.calibrate import calibrate
from odcsim.analysis.simulated_run import write_simulated_runs
from odcsim.analysis.validate import validate
from odcsim.costs.calibrated import StepCosts, TransferPair, write_costs
from odcsim.errors import InputError
from odcsim.policies import find_policy, policy_names
from odcsim.scenario import parse_scenario
from odcsim.trace_format import read_run, run_digest

ALL_CASES = [
    {"sync": sync, "policy": policy, "pad": sync == "fsdp" and not find_policy(policy).equal_counts}
    for sync in ("fsdp", "odc")
    for policy in policy_names()
    if not find_policy(policy).is_pulled
]


def assert_found(costs, *sections, truth=None):
    """The terms of some sections are what the machine's are; what it does not spend comes out as (next to) nothing."""
    known = terms_of(truth or known_costs(), *sections)
    found = terms_of(costs, *sections)
    unknown = {name: found.pop(name) for name in list(found) if name not in known}
    for name, value in unknown.items():
        assert name.endswith(("contention", "lag")), name
        assert value.value == pytest.approx(0, abs=1e-6), name
    assert found.keys() == known.keys()
    for name, wanted in known.items():
        assert found[name].value == pytest.approx(wanted.value, rel=1e-9, abs=1e-17), name
        assert found[name].identified, name
        width = found[name].high - found[name].low
        assert width <= 1e-8 * wanted.value + 1e-17, f"{name}: an interval of width {width} without noise"


# What went in comes out


def test_what_the_machine_returns_is_what_is_read(recorded):
    """What all tests here build on."""
    for run in recorded(0, 1, changes={"cluster.rank_speeds": {1: 0.5}}):
        assert read_run(run.folder) == run


def test_all_costs_are_found_from_both_syncs(recorded):
    costs = calibrate(recorded(0, 1, 2)).costs
    assert_found(costs, "compute", "one_sided", "collectives", "steps")
    assert costs.warnings == ()
    for pair in (costs.one_sided, costs.collectives["collective"]):
        assert (pair.gather.spread, pair.scatter_accumulate.spread) == pytest.approx((0, 0), abs=1e-9)


def test_collectives_alone(recorded):
    costs = calibrate(recorded(0)).costs
    assert_found(costs, "compute", "collectives")
    assert costs.one_sided is None
    assert (costs.steps.meeting, costs.steps.publish, costs.steps.settle) == (None, None, None)
    assert costs.steps.optimizer.value == pytest.approx(known_costs().steps.optimizer.value)
    (warning,) = costs.warnings
    assert "no run with sync: odc" in warning


def test_one_sided_transfers_alone(recorded):
    costs = calibrate(recorded(1)).costs
    assert_found(costs, "compute", "one_sided", "steps")
    assert costs.collectives == {}
    (warning,) = costs.warnings
    assert "no run with sync: fsdp" in warning


def test_padding_microbatches_do_not_count_as_compute(recorded):
    (run,) = recorded(2, changes={"workload.samples_per_rank": 6})
    planned = [lengths for plan in run.info.plans.values() for microbatches in plan for lengths in microbatches]
    assert () in planned, "nothing was padded"
    assert_found(calibrate([run]).costs, "compute", "collectives")


def test_collectives_of_each_transport(recorded, tmp_path, changed):
    known = known_costs()
    slower = known.collectives["collective"].model_copy(
        update={"gather": known.collectives["collective"].scatter_accumulate}
    )
    gloo = Machine(known_costs(collectives={"gloo": slower}), transport="gloo")
    over_gloo = gloo.record(tmp_path / "gloo", changed(CHANGES))
    costs = calibrate([over_gloo, *recorded(0)]).costs
    assert list(costs.collectives) == ["gloo", "collective"]
    both = known_costs(collectives={"gloo": slower, **known.collectives})
    assert_found(costs, "compute", "collectives", truth=both)


LAGGING = known_costs(
    collectives={
        "collective": TransferPair(
            gather=transfer_cost(4e-3, 1.7e-9, lag=term(0.5)),
            scatter_accumulate=transfer_cost(6e-3, 2.9e-9, lag=term(0.8)),
        )
    }
)


def test_how_much_later_the_last_rank_leaves(recorded):
    assert_found(calibrate(recorded(0, machine=Machine(LAGGING))).costs, "compute", "collectives", truth=LAGGING)


def test_lags_lengthen_what_is_predicted(recorded, tmp_path, changed):
    """Where ranks compute little between two collectives, the second one waits for who left the first one last."""
    costs = calibrate(recorded(0, machine=Machine(LAGGING))).costs
    truth = Machine(LAGGING).record(tmp_path / "truth", changed(CHANGES), case=2)
    errors = {}
    for name, said in {"lag": costs, "none": without_lags(costs)}.items():
        write_costs(tmp_path / f"{name}.yaml", said)
        document = changed({**CHANGES, "compute": {"calibrated": f"{name}.yaml"}})
        (case,) = validate(parse_scenario(document), [truth], base_folder=tmp_path, file=tmp_path / "s.yaml").cases
        errors[name] = case.error
    # The order in which ranks leave is another one than the model's.
    assert abs(errors["lag"]) < 0.005
    assert errors["none"] < -0.03


def without_lags(costs):
    pair = costs.collectives["collective"]
    none = {name: getattr(pair, name).model_copy(update={"lag": None}) for name in TransferPair.model_fields}
    return costs.model_copy(update={"collectives": {"collective": TransferPair(**none)}})


@pytest.mark.parametrize("case", [0, 1])
def test_windows_may_begin_anywhere(recorded, case):
    """At a minibatch other than 0, and at any time of the run."""
    (run,) = recorded(case, window=range(3, 8), start_s=1234.5)
    costs = calibrate([run]).costs
    assert costs.origin.minibatches == 5
    found, known = terms_of(costs, "compute"), terms_of(known_costs(), "compute")
    # A clock that has run for so long has fewer digits for what happens in between.
    assert {name: value.value for name, value in found.items()} == {
        name: pytest.approx(value.value, rel=1e-6, abs=1e-16) for name, value in known.items()
    }
    assert costs.steps.optimizer.value == pytest.approx(5.3e-3, rel=1e-8)


@pytest.mark.parametrize("case", [0, 1])
def test_what_ranks_were_told_to_slow_down_is_no_cost(recorded, case):
    slow = {
        "cluster.rank_speeds": {1: 0.5, 2: 1.5},
        "cluster.slowdowns": {"probability": 0.3, "factor": 2.5},
        "workload.seed": 3,
    }
    costs = calibrate(recorded(case, changes=slow)).costs
    assert_found(costs, "compute", "one_sided" if case else "collectives")


def test_real_compute_does_not_follow_rank_speeds(recorded, tmp_path, changed):
    """What the scenario says of them has no effect there: nothing may be divided out."""
    (run,) = recorded(1)
    told = Machine().record(tmp_path / "told", changed({**CHANGES, "cluster.rank_speeds": {1: 0.5}}), case=1)
    info = replace(run.info, scenario=told.info.scenario, case={**run.info.case, "compute": "real"})
    assert_found(calibrate([replace(run, info=info)]).costs, "compute", "one_sided", "steps")


def test_a_rank_that_sits_a_minibatch_out_opens_it_all_the_same(recorded):
    """Fewer samples than ranks under odc: what opening costs is seen on the others."""
    few = {"workload.samples_per_rank": None, "workload.samples_per_minibatch": 3, "workload.minibatches": 20}
    (run,) = recorded(1, changes=few)
    assert all(min(map(len, plan)) == 0 for plan in run.info.plans.values())
    assert_found(calibrate([run]).costs, "compute", "steps")


def slowed(pair, stretch):
    """A pair of transfers that take longer by a factor."""

    def stretched(cost):
        terms = {name: term(getattr(cost, name).value * stretch) for name in ("latency", "seconds_per_byte")}
        return cost.model_copy(update=terms)

    return pair.model_copy(
        update={"gather": stretched(pair.gather), "scatter_accumulate": stretched(pair.scatter_accumulate)}
    )


def test_other_transfers_under_way_slow_one_down(recorded):
    """Known: a transfer beside three others takes 1 + 3 x 0.2 times as long as one by itself."""
    pair = known_costs().one_sided
    in_step = Machine(known_costs(one_sided=slowed(pair, 1 + 3 * 0.2)))
    runs = recorded(1, machine=in_step, plan=lambda minibatch: (((700 + 500 * minibatch,),),) * 4)
    runs += recorded(1, plan=lambda minibatch: (((900 + 300 * minibatch,),), (), (), ()))
    found = calibrate(runs).costs.one_sided
    for name in ("gather", "scatter_accumulate"):
        one, known = getattr(found, name), getattr(pair, name)
        assert one.contention.value == pytest.approx(0.2, rel=1e-6)
        assert one.latency.value == pytest.approx(known.latency.value, rel=1e-6)
        assert one.seconds_per_byte.value == pytest.approx(known.seconds_per_byte.value, rel=1e-6)
        # Four of five transfers had three others beside them.
        assert one.others == pytest.approx(3 * 4 / 5, rel=1e-6)


@pytest.mark.parametrize("overlap", ["none", "gather-only", "prefetch"])
@pytest.mark.parametrize("slower", [1, 100], ids=["fast links", "slow links"])
def test_costs_of_simulated_runs_are_found(tmp_path, changed, overlap, slower):
    """Whatever runs beside compute, and however long that takes; its opening and closing are one span."""
    one_sided, collectives = known_costs().one_sided, known_costs().collectives["collective"]
    truth = known_costs(one_sided=slowed(one_sided, slower), collectives={"collective": slowed(collectives, slower)})
    write_costs(tmp_path / "costs.yaml", truth)
    document = changed({**CHANGES, "overlap": overlap, "compute": {"calibrated": "costs.yaml"}})
    folders = write_simulated_runs(parse_scenario(document), tmp_path / "runs", base_folder=tmp_path)
    costs = calibrate([read_run(folder) for folder in folders]).costs
    assert_found(costs, "compute", "one_sided", "collectives", truth=truth)
    steps, known = costs.steps, truth.steps
    for name in ("publish", "settle"):
        together_s = getattr(known, name).value + 3 * known.meeting.value
        assert getattr(steps, name).value + 3 * steps.meeting.value == pytest.approx(together_s, rel=1e-9)
    assert steps.optimizer.value == pytest.approx(known.optimizer.value, rel=1e-9)


def test_calibrating_twice_gives_the_same_file_and_another_seed_other_intervals(recorded):
    runs = recorded(0, 1, machine=Machine(jitter=normal_jitter(1)))
    assert calibrate(runs).costs == calibrate(runs).costs
    other = calibrate(runs, seed=1).costs
    assert terms_of(other, "compute").keys() == terms_of(calibrate(runs).costs, "compute").keys()
    one, two = (terms_of(found, "compute")["compute.block_forward.tokens"] for found in (calibrate(runs).costs, other))
    assert one.value == two.value
    assert one.low != two.low


def test_origin_tells_what_the_costs_come_from(recorded):
    runs = recorded(0, 1, machine=Machine(processors=2))
    origin = calibrate(runs).costs.origin
    assert origin.runs == ("run-0", "run-1")
    assert origin.digests == tuple(run_digest(run.folder) for run in runs)
    assert [case["sync"] for case in origin.cases] == ["fsdp", "odc"]
    assert (origin.scenario, origin.ranks, origin.ranks_per_node, origin.processors) == ("small", 4, 4, 2)
    assert origin.minibatches == 16
    assert origin.microbatches == sum(
        len(microbatches) for run in runs for plan in run.info.plans.values() for microbatches in plan
    )


def test_parts_show_what_was_measured_and_fitted(recorded):
    calibration = calibrate(recorded(0, 1))
    names = [part.name for part in calibration.parts]
    assert len(names) == len(set(names)) == 6 + 4
    assert {"block_forward", "all-gather over collective", "one-sided scatter-accumulate"} <= set(names)
    for part in calibration.parts:
        assert part.axis == ("bytes" if "-" in part.name else "tokens")
        np.testing.assert_allclose(part.measured_s_K, part.fitted_s_K, rtol=1e-9)
        assert len(part.against_K) == len(part.measured_s_K) > 0
        assert (part.measured_s_K > 0).all()


# Memory


def test_memory_is_found_where_it_was_counted(recorded):
    runs = [*counted(recorded, 0, base=40_000_000, shared=3_000_000), *counted(recorded, 1, base=43_000_000)]
    found = calibrate(runs).costs.memory
    assert found.process.value == 250_000_000
    assert found.per_token.value == pytest.approx(9000, rel=1e-9)
    assert bases(found) == pytest.approx({"collective": 40_000_000, "one_sided": 43_000_000}, rel=1e-9)
    # What collectives are staged in is shared under fsdp; what odc shares is known by formula.
    assert found.staging.value == 3_000_000
    assert found.observations == 2 * 8 * 4
    (run,) = counted(recorded, 0, base=37_000_000, shared=0)
    over_gloo = replace(run, info=replace(run.info, case={**run.info.case, "transport": "gloo"}))
    found_too = calibrate([*runs, over_gloo]).costs.memory
    assert bases(found_too) == pytest.approx({**bases(found), "gloo": 37_000_000}, rel=1e-9)
    assert found_too.staging == found.staging, "messages are staged nowhere"


def test_gradients_of_earlier_microbatches_are_no_cost_of_tokens(recorded):
    """A later microbatch of fewer tokens may decide: the rank's shard of the gradients is held beside it."""
    # A quarter of 202048 parameters in fp32 is 202048 bytes, or 22.4 tokens: both ways round, and nearly even.
    sizes = [
        ((2000, 1990), (500, 2500)),
        ((3000, 2900), (4000, 30)),
        ((100, 90), (80, 70)),
        ((8000, 7978), (7000, 7022)),
    ]

    def plan(minibatch):
        shapes = sizes[minibatch % 4]
        return tuple(tuple((tokens + 8 * rank,) for tokens in shapes[rank % 2]) for rank in range(4))

    (run,) = counted(recorded, 0, base=40_000_000, plan=plan)
    found = calibrate([run]).costs.memory
    assert found.per_token.value == pytest.approx(9000, rel=1e-9)
    assert bases(found) == pytest.approx({"collective": 40_000_000}, rel=1e-9)


def test_a_model_of_unknown_size_has_gradients_that_nobody_knows(recorded):
    (run,) = counted(recorded, 0, base=40_000_000, gradients=0)
    scenario = {**run.info.scenario, "model": {"layers": 2}}
    found = calibrate([replace(run, info=replace(run.info, scenario=scenario))]).costs.memory
    assert bases(found) == pytest.approx({"collective": 40_000_000}, rel=1e-9)


@pytest.mark.parametrize("parameters", [None, "many", -1, 10**400, 1.5])
def test_a_model_of_no_size_is_named(recorded, parameters):
    (run,) = counted(recorded, 0, base=40_000_000)
    scenario = {**run.info.scenario, "model": {"layers": 2, "total_parameters": parameters}}
    with pytest.raises(
        InputError, match=r"^\S+run\.json: scenario\.model\.total_parameters: .*: must be a whole number"
    ):
        calibrate([replace(run, info=replace(run.info, scenario=scenario))])


def bases(memory):
    return {way: found.value for way, found in memory.base.items()}


def counted(recorded, case, *, plan=None, **memory):
    """A run whose memory is known; under FSDP ranks hold a shard of the gradients of 202048 parameters."""
    known = {"process": 250_000_000, "per_token": 9000, "shared": 7_000_000, "gradients": 0 if case else 202_048}
    return recorded(case, machine=Machine(memory=counted_memory(**{**known, **memory})), plan=plan)


def test_memory_of_an_odc_run_alone_tells_nothing_of_staging(recorded):
    machine = Machine(memory=counted_memory(process=5, base=7, per_token=1, shared=3))
    assert calibrate(recorded(1, machine=machine)).costs.memory.staging is None


def test_memory_of_microbatches_of_one_size(recorded):
    """Nothing tells what a token takes: it is in the base."""
    machine = Machine(memory=counted_memory(process=1000, base=10**6, per_token=500, shared=0, gradients=202_048))
    one_size = {"workload.lengths": {"values": [1000]}, "workload.max_tokens": 1000}
    found = calibrate(recorded(0, machine=machine, changes=one_size)).costs.memory
    assert bases(found) == pytest.approx({"collective": 10**6 + 500 * 1000})
    assert found.per_token == term(0.0, identified=False)


def test_memory_that_nobody_counted(recorded):
    assert calibrate(recorded(0, 1)).costs.memory is None


# Other scenarios are predicted


@pytest.fixture
def costs(recorded):
    """Of all three cases."""
    return calibrate(recorded(0, 1, 2)).costs


@pytest.mark.parametrize(
    "changes",
    [
        {"workload.seed": 5},
        {"workload.lengths": {"uniform": {"min": 10, "max": 9000}}, "workload.max_tokens": 20000},
        {"workload.samples_per_rank": 5, "workload.max_tokens": 30000},
        {"cluster.rank_speeds": {0: 0.25}, "cluster.slowdowns": {"probability": 0.2, "factor": 3}},
    ],
    ids=["other draws", "other lengths", "more samples", "slow ranks"],
)
def test_other_scenarios_of_as_many_ranks(costs, recorded, predicted, changes):
    changes = {**changes, "cases": ALL_CASES, "workload.minibatches": 2}
    # The machine's plans must be the simulation's, so they come from the same costs.
    write = {**changes, "compute": {"calibrated": "costs.yaml"}}
    result = predicted(costs, changes)
    for case, run in zip(result.cases, recorded(*range(len(ALL_CASES)), changes=write), strict=True):
        np.testing.assert_allclose(case.minibatch_s_N, times_of(run), rtol=1e-6, err_msg=case.label)


def test_more_ranks_of_the_same_node(costs, recorded, predicted):
    """Collectives take D - 1 steps, meetings too; a one-sided transfer has its latency once; what moves the shard
    through memory, at 80% of a bandwidth that makes it matter, takes half as long; the rest of these steps as long.
    """
    changes = {
        "cluster.gpus_per_node": 8,
        "cluster.gpu": {"base": "a100-80g-sxm", "memory_bandwidth": "500 MB/s"},
        "cases": ALL_CASES,
        "workload.minibatches": 2,
    }
    parameters = 2 * 36992 + 128064
    then, steps = known_costs().steps, {"meeting": known_costs().steps.meeting}
    # Bytes of a parameter: read as fp32 and written as bf16; gradient and accumulator read and written; parameter and
    # two states read and written, gradient read twice.
    for name, moved_bytes in {"publish": 4 + 2, "settle": 4 * 4, "optimizer": 4 * 8}.items():
        moving_s = parameters / 4 * moved_bytes / (500e6 * 0.8)
        steps[name] = term(getattr(then, name).value - moving_s / 2)
        assert steps[name].value < 0.9 * getattr(then, name).value
    machine = Machine(known_costs(8, steps=StepCosts(**steps)))
    result = predicted(costs, changes)
    write = {**changes, "compute": {"calibrated": "costs.yaml"}}
    runs = recorded(*range(len(ALL_CASES)), machine=machine, changes=write)
    for case, run in zip(result.cases, runs, strict=True):
        np.testing.assert_allclose(case.minibatch_s_N, times_of(run), rtol=1e-6, err_msg=case.label)


# What one calibration cannot hold together


def test_runs_of_other_ranks(recorded, tmp_path, changed):
    other = Machine(known_costs(2)).record(tmp_path / "two", changed({**CHANGES, "cluster.gpus_per_node": 2}))
    with pytest.raises(InputError, match=r"two/run\.json: world_size: 2: must be 4 as in .*run-0") as caught:
        calibrate([*recorded(0), other])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("model.ffn", 256), ("training.recompute", "none"), ("training.optimizer", "sgd")]
)
def test_runs_of_another_model_or_training(recorded, tmp_path, changed, key, value):
    other = Machine().record(tmp_path / "other", changed({**CHANGES, key: value}))
    section = key.partition(".")[0]
    with pytest.raises(InputError, match=rf"other/run\.json: scenario\.{section}: differs from that of .*run-0"):
        calibrate([*recorded(0), other])
