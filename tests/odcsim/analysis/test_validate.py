"""Predicted against measured: exact where the truth is the simulator's or a machine's, and right by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from known_costs import known_costs, term
from known_machine import CHANGES, Machine, counted_memory, times_of

from odcsim.analysis.calibrate import calibrate
from odcsim.analysis.measured import measure
from odcsim.analysis.observe import observe
from odcsim.analysis.simulated_run import write_simulated_runs
from odcsim.analysis.validate import CaseComparison, Validation, validate
from odcsim.costs.calibrated import StepCosts, write_costs
from odcsim.results import TimeFractions
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate
from odcsim.trace_format import read_run

FRACTIONS = TimeFractions(0.5, 0.1, 0.2, 0.1, 0.1)
CALIBRATED = {"compute": {"calibrated": "costs.yaml"}}
SLOW = {
    "cluster.rank_speeds": {1: 0.5, 3: 2.0},
    "cluster.slowdowns": {"probability": 0.3, "factor": 2.5},
    "cluster.compute_noise": 0.2,
}
FEW = {"workload.samples_per_rank": None, "workload.samples_per_minibatch": 3}


@pytest.fixture
def validated(tmp_path, changed):
    """Validates runs against the machine's scenario, changed as asked, with costs from a file if some are given."""

    def compare(runs, changes=(), *, costs=None):
        document = changed({**CHANGES, **dict(changes), **({} if costs is None else CALIBRATED)})
        if costs is not None:
            write_costs(tmp_path / "costs.yaml", costs)
        return validate(parse_scenario(document), runs, base_folder=tmp_path, file=tmp_path / "s.yaml")

    return compare


# Exact where the truth is known


@pytest.mark.parametrize("overlap", ["none", "gather-only", "prefetch"])
@pytest.mark.parametrize(
    "changes",
    [{}, SLOW, FEW, {"cluster.nodes": 2}, {"compute.fitted.scale": 1e-5}],
    ids=["as it is", "slow ranks", "few samples", "two nodes", "hardly any compute"],
)
def test_what_was_simulated_is_predicted_exactly(tmp_path, validated, changed, overlap, changes):
    """And where time went is measured as the simulator accounts for it, whatever runs beside compute."""
    changes = {**changes, "overlap": overlap, "workload.minibatches": 3}
    scenario = parse_scenario(changed({**CHANGES, **changes}))
    runs = [read_run(path) for path in write_simulated_runs(scenario, tmp_path / "runs", base_folder=tmp_path)]
    validation = validated(runs, changes)
    results = simulate(scenario, base_folder=tmp_path).cases
    assert [case.label for case in validation.cases] == [result.label for result in results]
    for case, result in zip(validation.cases, results, strict=True):
        np.testing.assert_allclose(case.errors_N, 0, atol=1e-12)
        np.testing.assert_allclose(case.predicted_s_N, result.minibatch_s_N, rtol=1e-12)
        for fractions in (case.predicted, case.measured):
            assert fractions.to_document() == pytest.approx(result.fractions.to_document(), abs=1e-9)
        assert case.minibatches == (0, 1, 2)
        assert not case.is_fitted
    assert validation.mean_absolute_error < 1e-12
    assert validation.misordered == ()


def test_cases_that_differ_in_their_overlap_alone_each_get_their_own_runs(tmp_path, validated, changed):
    """In any order; and where they had an overlap that no case has, each is predicted with its own."""
    changes = {"cases": [{"sync": "odc", "policy": "lb-mini", "overlap": overlap} for overlap in ("none", "prefetch")]}
    scenario = parse_scenario(changed({**CHANGES, **changes}))
    runs = [read_run(path) for path in write_simulated_runs(scenario, tmp_path / "runs", base_folder=tmp_path)]
    for given in (runs, runs[::-1]):
        serial, prefetching = validated(given, changes).cases
        assert serial.measured_s_N.mean() > prefetching.measured_s_N.mean()
        for case in (serial, prefetching):
            np.testing.assert_allclose(case.errors_N, 0, atol=1e-12)
    other = {"cases": [{**case, "overlap": "gather-only"} for case in changes["cases"]]}
    for case in validated(runs, other).cases:
        np.testing.assert_allclose(case.errors_N, 0, atol=1e-12)
        assert len(case.runs) == 1


@pytest.mark.parametrize("changes", [{}, SLOW, FEW], ids=["as it is", "slow ranks", "few samples"])
def test_a_machine_is_predicted_by_its_own_costs(recorded, validated, changes):
    """In windows that begin anywhere, at any time, padding included."""
    runs = recorded(0, 1, 2, changes=changes, window=range(2, 5), start_s=7.0)
    validation = validated(runs, changes, costs=calibrate(recorded(0, 1)).costs)
    for case, run in zip(validation.cases, runs, strict=True):
        assert case.minibatches == (2, 3, 4)
        np.testing.assert_allclose(case.measured_s_N, times_of(run), rtol=1e-12)
        np.testing.assert_allclose(case.errors_N, 0, atol=1e-6)
        assert case.predicted.to_document() == pytest.approx(case.measured.to_document(), abs=1e-6)
    assert validation.worst is not None
    assert abs(validation.worst.error) < 1e-6
    for case in validation.cases[1:]:
        predicted, measured = validation.speedups(case)
        assert predicted == pytest.approx(measured, rel=1e-6)


def test_steps_that_take_no_time_leave_no_span(tmp_path, validated, changed):
    """Ranks that do not settle go on when they have met; they did not do so early."""
    nothing = dict.fromkeys(("meeting", "publish", "settle", "optimizer"), term(0.0))
    write_costs(tmp_path / "costs.yaml", known_costs(steps=StepCosts(**nothing)))
    scenario = parse_scenario(changed({**CHANGES, **CALIBRATED}))
    runs = [read_run(path) for path in write_simulated_runs(scenario, tmp_path / "runs", base_folder=tmp_path)]
    assert not any(span.name in {"publish", "settle"} for spans in runs[1].spans_of_ranks for span in spans)
    for case in validated(runs, CALIBRATED).cases:
        np.testing.assert_allclose(case.errors_N, 0, atol=1e-12)
        assert case.measured.to_document() == pytest.approx(case.predicted.to_document(), abs=1e-9)


def test_real_compute_is_predicted_at_full_speed(recorded, validated):
    """It does not follow the scenario's rank speeds and slowdowns: nor may the prediction."""
    (run,) = recorded(1)
    (told,) = recorded(1, changes=SLOW)
    info = replace(run.info, scenario=told.info.scenario, case={**run.info.case, "compute": "real"})
    (case,) = validated([replace(run, info=info)], SLOW, costs=known_costs()).cases
    np.testing.assert_allclose(case.errors_N, 0, atol=1e-6)
    # Emulated compute does.
    info = replace(info, case={**info.case, "compute": "emulated"})
    (case,) = validated([replace(run, info=info)], SLOW, costs=known_costs()).cases
    assert case.error > 0.3


def test_collectives_of_two_transports_in_one_validation(recorded, validated, tmp_path, changed):
    known = known_costs()
    slow = known.collectives["collective"]
    slow = slow.model_copy(update={"gather": slow.scatter_accumulate, "scatter_accumulate": known.one_sided.gather})
    costs = known_costs(collectives={**known.collectives, "gloo": slow})
    over_gloo = Machine(costs, transport="gloo").record(tmp_path / "gloo", changed(CHANGES))
    validation = validated([over_gloo, *recorded(1, 0)], costs=costs)
    assert [(case.label, case.transport) for case in validation.cases] == [
        ("FSDP lb-micro", "collective"),
        ("FSDP lb-micro on gloo", "gloo"),
        ("ODC lb-mini", "shm"),
    ]
    for case in validation.cases:
        np.testing.assert_allclose(case.errors_N, 0, atol=1e-6)
    assert validation.cases[0].predicted_s_N.sum() != validation.cases[1].predicted_s_N.sum()
    assert validation.warnings == ()


def test_what_stands_in_for_collectives_is_remarked_of_their_transport_alone(recorded, validated, tmp_path, changed):
    """Costs of gloo, runs over gloo, in a scenario whose own transport is another: nothing is made up."""
    costs = known_costs(collectives={"gloo": known_costs().collectives["collective"]})
    over_gloo = Machine(costs, transport="gloo").record(tmp_path / "gloo", changed(CHANGES))
    assert validated([over_gloo, *recorded(1)], costs=costs).warnings == ()
    (remark,) = validated(recorded(0, 1), costs=costs).warnings
    assert "no collectives over collective" in remark


def test_runs_that_costs_were_fitted_to_are_shown_but_not_judged(recorded, validated):
    fsdp, odc = recorded(0, 1)
    validation = validated([fsdp, odc], costs=calibrate([odc]).costs)
    assert [(case.sync, case.is_fitted) for case in validation.cases] == [("fsdp", False), ("odc", True)]
    assert [case.sync for case in validation.judged] == ["fsdp"]
    assert validation.worst is validation.cases[0]
    assert validation.mean_absolute_error == abs(validation.cases[0].error)
    alone = validated([odc], costs=calibrate([odc]).costs)
    assert (alone.judged, alone.worst, alone.mean_absolute_error) == ((), None, None)


def test_a_repeat_of_a_fitted_run_is_not_judged_with_it(recorded, validated, tmp_path, changed):
    """One of the repeats was fitted to: the case is."""
    (odc,) = recorded(1)
    repeat = Machine(jitter=lambda: 1.1).record(tmp_path / "repeat", changed(CHANGES), case=1)
    costs = calibrate([odc]).costs
    assert validated([repeat, odc], costs=costs).judged == ()
    # The machine was slower: another run, whose digest is another.
    alone = repeat.folder.rename(tmp_path / "alone")
    document = (alone / "run.json").read_text()
    (alone / "run.json").write_text(document.replace('"origin_s": 0.0', '"origin_s": 1.0'))
    assert len(validated([read_run(alone)], costs=costs).judged) == 1


# Repeats


@pytest.fixture
def repeats(tmp_path, changed):
    """Runs of one case on machines of some speeds, each in a window."""

    def record(*speeds_and_windows, case=1):
        return [
            Machine(jitter=lambda slower=slower: slower).record(
                tmp_path / f"repeat-{position}", changed(CHANGES), case=case, window=window
            )
            for position, (slower, window) in enumerate(speeds_and_windows)
        ]

    return record


def test_the_median_of_repeats_counts(repeats, validated):
    runs = repeats((1.1, range(4)), (0.9, range(4)), (1.0, range(4)))
    (case,) = validated(runs, costs=known_costs()).cases
    assert case.runs == ("repeat-0", "repeat-1", "repeat-2")
    np.testing.assert_allclose(case.measured_s_RN, [times_of(run) for run in runs], rtol=1e-9)
    np.testing.assert_allclose(case.measured_s_N, times_of(runs[2]), rtol=1e-9)
    assert case.error == pytest.approx(0, abs=1e-6)
    assert case.repeat_spread == pytest.approx(1.1 / 0.9 - 1, rel=1e-9)
    expected = np.mean([list(measure(observe(run)).fractions.to_document().values()) for run in runs], axis=0)
    assert list(case.measured.to_document().values()) == pytest.approx(expected.tolist())


def test_only_minibatches_of_all_repeats_count(repeats, validated):
    runs = repeats((1.0, range(1, 5)), (1.2, range(3, 8)))
    (case,) = validated(runs, costs=known_costs()).cases
    assert case.minibatches == (3, 4)
    np.testing.assert_allclose(case.measured_s_RN[0], times_of(runs[0])[2:], rtol=1e-9)
    np.testing.assert_allclose(case.measured_s_RN[1], times_of(runs[1])[:2], rtol=1e-9)
    np.testing.assert_allclose(case.predicted_s_N, times_of(runs[0])[2:], rtol=1e-6)


def test_a_single_run_has_no_spread(repeats, validated):
    (case,) = validated(repeats((1.0, range(2))), costs=known_costs()).cases
    assert case.repeat_spread is None


# Memory


def test_memory_is_predicted_where_the_costs_tell(recorded, validated):
    """By hand: what the process has, training's base, tokens of a microbatch, gradients, and what ranks share."""
    memory = {"process": 200_000_000, "per_token": 7000}
    # Under fsdp ranks hold a quarter of the gradients of 202048 parameters while they run later microbatches.
    held = {"base": 30_000_000, "shared": 5_000_000, "gradients": 202_048}
    fsdp = recorded(0, machine=Machine(memory=counted_memory(**memory, **held)))
    odc = recorded(1, machine=Machine(memory=counted_memory(**memory, base=34_000_000, shared=1_000_000)))
    validation = validated([*fsdp, *odc], costs=calibrate([*fsdp, *odc]).costs)
    fullest = max(
        7000 * sum(lengths) + 202_048 * (place > 0)
        for plan in fsdp[0].info.plans.values()
        for rank in plan
        for place, lengths in enumerate(rank)
    )
    private = 200_000_000 + 30_000_000 + fullest
    case = validation.cases[0]
    assert case.measured_peak_bytes_R == (private + 5_000_000,)
    assert case.predicted_peak_bytes == pytest.approx(private + 5_000_000, rel=1e-6)
    assert case.memory_error == pytest.approx(0, abs=1e-6)
    # Under odc: a bf16 copy and an fp32 accumulator of a quarter of 202048 parameters.
    largest = max(sum(lengths) for plan in odc[0].info.plans.values() for rank in plan for lengths in rank)
    expected = 200_000_000 + 34_000_000 + 7000 * largest + 202048 // 4 * (2 + 4)
    assert validation.cases[1].predicted_peak_bytes == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("tokens", "accumulates"), [((2000, 1000), False), ((1000, 2000), True), ((2000,), False)])
def test_memory_depends_on_whether_the_largest_microbatch_has_gradients_beside_it(
    recorded, validated, tokens, accumulates
):
    """Under fsdp the first microbatch of a minibatch has none; costs are fitted to a run of either kind."""
    memory = {"process": 200_000_000, "base": 30_000_000, "per_token": 7000, "shared": 0, "gradients": 202_048}
    machine = Machine(memory=counted_memory(**memory))
    costs = calibrate(recorded(0, machine=machine)).costs
    run = recorded(0, machine=machine, plan=lambda _: ((tuple((some,) for some in tokens)),) * 4)
    (case,) = validated(run, costs=costs).cases
    expected = 230_000_000 + 7000 * 2000 + 202_048 * accumulates
    assert case.predicted_peak_bytes == pytest.approx(expected, rel=1e-6)
    assert case.memory_error == pytest.approx(0, abs=1e-6)


def test_memory_of_runs_that_nobody_counted(recorded, validated):
    counted = Machine(memory=counted_memory(process=100, base=50, per_token=1, shared=10))
    costs = calibrate(recorded(0, machine=counted)).costs
    (case,) = validated(recorded(0), costs=costs).cases
    assert (case.measured_peak_bytes_R, case.memory_error, case.memory_spread) == ((), None, None)
    assert case.predicted_peak_bytes is not None


def test_memory_of_costs_that_do_not_tell(recorded, validated):
    counted = Machine(memory=counted_memory(process=100, base=50, per_token=1, shared=10))
    (case,) = validated(recorded(0, machine=counted), costs=known_costs()).cases
    assert (case.predicted_peak_bytes, case.memory_error) == (None, None)
    assert len(case.measured_peak_bytes_R) == 1


# By hand


def compared(label="case", *, predicted=(1.0,), measured=((1.0,),), minibatches=None, **changes):
    given = {
        "label": label,
        "sync": "odc",
        "policy": "lb-mini",
        "transport": "shm",
        "ranks": 4,
        "runs": ("run",),
        "is_fitted": False,
        "minibatches": tuple(range(len(predicted))) if minibatches is None else minibatches,
        "predicted_s_N": np.array(predicted),
        "measured_s_RN": np.array(measured),
        "predicted": FRACTIONS,
        "measured": FRACTIONS,
        "predicted_peak_bytes": None,
        "measured_peak_bytes_R": (),
    }
    return CaseComparison(**{**given, **changes})


def test_errors_of_one_case():
    case = compared(predicted=(1.1, 3.0), measured=((1.0, 4.0), (2.0, 5.0), (0.5, 4.5)))
    assert case.measured_s_N.tolist() == [1.0, 4.5]
    assert case.error == pytest.approx(4.1 / 5.5 - 1)
    assert case.errors_N.tolist() == pytest.approx([0.1, 3.0 / 4.5 - 1])
    assert case.repeat_spread == pytest.approx(7.0 / 5.0 - 1)


def test_memory_errors_of_one_case():
    case = compared(predicted_peak_bytes=90.0, measured_peak_bytes_R=(100.0, 120.0, 80.0))
    assert case.memory_error == pytest.approx(-0.1)
    assert case.memory_spread == pytest.approx(0.5)
    assert compared(measured_peak_bytes_R=(100.0,)).memory_error is None
    assert compared(predicted_peak_bytes=90.0, measured_peak_bytes_R=(100.0,)).memory_spread is None


def test_errors_of_all_cases():
    cases = (
        compared("a", predicted=(1.2,), is_fitted=True),
        compared("b", predicted=(0.95,)),
        compared("c", predicted=(1.01,)),
    )
    validation = Validation("v", cases, ())
    assert [case.label for case in validation.judged] == ["b", "c"]
    assert validation.mean_absolute_error == pytest.approx(0.03)
    assert validation.worst.label == "b"


def test_speedups_are_of_minibatches_that_both_have():
    first = compared("first", predicted=(2.0, 3.0, 50.0), measured=((4.0, 5.0, 60.0),), minibatches=(4, 5, 6))
    case = compared("case", predicted=(70.0, 1.0, 1.5), measured=((80.0, 2.0, 1.0),), minibatches=(3, 4, 5))
    assert Validation("v", (first, case), ()).speedups(case) == pytest.approx((5.0 / 2.5, 9.0 / 3.0))
    assert Validation("v", (first, case), ()).speedups(first) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("slow_s", "predicted_s", "distinct", "misordered"),
    [
        (1.04, (1.1, 1.0), False, False),
        (1.05, (1.1, 1.0), False, False),
        (1.06, (1.1, 1.0), True, True),
        (1.06, (1.0, 1.0), True, True),
        (1.06, (1.0, 1.01), True, False),
        (2.0, (1.0, 3.0), True, False),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_order_of_cases_counts_where_they_clearly_differ(slow_s, predicted_s, distinct, misordered, swapped):
    fast = compared("fast", predicted=(predicted_s[0],), measured=((1.0,),))
    slow = compared("slow", predicted=(predicted_s[1],), measured=((slow_s,),))
    validation = Validation("v", (slow, fast) if swapped else (fast, slow), ())
    assert validation.distinct_pairs == (((fast, slow),) if distinct else ())
    assert validation.misordered == (((fast, slow),) if misordered else ())


def test_cases_are_ordered_by_the_minibatches_that_both_have():
    """Of other windows, one with the longer minibatches; where they meet, it is the faster."""
    one = compared("one", predicted=(9.0, 2.0), measured=((9.0, 1.0),), minibatches=(0, 1))
    other = compared("other", predicted=(1.0, 0.1), measured=((2.0, 0.1),), minibatches=(1, 2))
    assert Validation("v", (one, other), ()).misordered == ((one, other),)
    apart = compared("apart", predicted=(1.0,), measured=((9.0,),), minibatches=(7,))
    assert Validation("v", (one, apart), ()).misordered == ()
