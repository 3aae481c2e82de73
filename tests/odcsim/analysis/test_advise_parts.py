"""The parts of an advice, each by itself: candidates, knobs, choice, gains, limits, regret."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.analysis.advice import KnobResult, PairResult
from odcsim.analysis.advice_candidates import Candidate, Knob, KnobPair, knobs_of, policy_candidates
from odcsim.analysis.advice_choice import Option, choose, fastest
from odcsim.analysis.advice_gain import Gain, blocks_s, gain_over
from odcsim.analysis.advice_knobs import best_of_kind, best_pair
from odcsim.analysis.advice_limits import LongestSequence, limits_of
from odcsim.analysis.advice_regret import Regret, Truth, truths_of
from odcsim.policies import find_policy, policy_names
from odcsim.results import CaseResult, Conservation, MemoryResult, TimeFractions
from odcsim.scenario import Case, parse_scenario

# Candidates


def test_every_policy_is_tried_where_it_fits(changed):
    found = policy_candidates(parse_scenario(changed()), group_size=1)
    pairs = [(candidate.case.sync, candidate.case.policy) for candidate in found]
    assert pairs[0] == ("fsdp", "lb-micro")
    assert len(set(pairs)) == len(pairs)
    assert {policy for sync, policy in pairs if sync == "fsdp"} == {
        name for name in policy_names() if find_policy(name).equal_counts
    }
    assert {policy for sync, policy in pairs if sync == "odc"} == {"lb-micro"} | {
        name for name in policy_names() if not find_policy(name).equal_counts
    }
    assert [candidate.changes for candidate in found][:2] == [(), ("policy",)]


def test_what_is_run_now_is_the_first_and_keeps_its_name(changed):
    changes = {"cases.0": {"sync": "fsdp", "policy": "lb-mini", "pad": True, "name": "our own"}}
    found = policy_candidates(parse_scenario(changed(changes)), group_size=1)
    assert found[0].label == "our own"
    assert found[0].case.pad
    assert found[0].settings == ()
    back = {candidate.label: candidate.settings for candidate in found}
    assert back["FSDP lb-micro"] == ("cases.0.policy=lb-micro", "cases.0.pad=false")
    assert back["ODC lb-mini"] == ("cases.0.sync=odc", "cases.0.pad=false")


def test_a_name_that_is_anothers_is_told_apart(changed):
    found = policy_candidates(parse_scenario(changed({"cases.0.name": "ODC lb-mini"})), group_size=1)
    labels = [candidate.label for candidate in found]
    assert labels[0] == "ODC lb-mini (baseline)"
    assert len(set(labels)) == len(labels)


def test_the_policy_that_is_run_now_is_tried_under_odc_too(changed):
    found = policy_candidates(parse_scenario(changed({"cases.0.policy": "verl-native"})), group_size=1)
    assert ("odc", "verl-native") in {(candidate.case.sync, candidate.case.policy) for candidate in found}


def test_padding_without_effect_is_no_other_candidate(changed):
    found = policy_candidates(parse_scenario(changed({"cases.0.pad": True})), group_size=1)
    assert [candidate.label for candidate in found].count("FSDP lb-micro") == 1


# Knobs


def knobs(document, *, longest_tokens=8192, group_size=1, minibatches=60):
    found = knobs_of(
        parse_scenario(document), longest_tokens=longest_tokens, group_size=group_size, minibatches=minibatches
    )
    return {kind: [knob for knob in found if knob.kind == kind] for kind in ("cap", "samples", "overlap")}


def test_knobs_are_turned_from_where_they_are(changed):
    found = knobs(changed({"workload.max_tokens": 20000}))
    assert [knob.settings["workload.max_tokens"] for knob in found["cap"]] == [8192, 40000, 80000]
    assert [knob.settings["workload.samples_per_rank"] for knob in found["samples"]] == [1, 4, 8]
    assert [knob.samples_factor for knob in found["samples"]] == [Fraction(1, 2), 2, 4]
    assert [knob.overlap for knob in found["overlap"]] == ["prefetch", "gather-only", "none"]


def test_a_cap_that_is_there_is_not_tried(changed):
    assert [knob.settings["workload.max_tokens"] for knob in knobs(changed())["cap"]] == [16384, 32768]


def test_odd_numbers_of_samples_are_not_halved(changed):
    found = knobs(changed({"workload.samples_per_rank": None, "workload.samples_per_minibatch": 7}))
    assert [knob.settings for knob in found["samples"]] == [
        {"workload.samples_per_minibatch": 14},
        {"workload.samples_per_minibatch": 28},
    ]


def test_no_knob_cuts_a_group(changed):
    found = knobs(changed({"workload.samples_per_rank": 2, "cluster.gpus_per_node": 4}), group_size=8)
    assert [knob.settings["workload.samples_per_rank"] for knob in found["samples"]] == [4, 8]


def test_blocks_need_minibatches(changed):
    assert [knob.samples_factor for knob in knobs(changed(), minibatches=3)["samples"]] == [Fraction(1, 2), 2]


def test_transfers_of_the_processor_run_beside_nothing(changed):
    assert knobs(changed({"runtime": {"device": "cpu"}}))["overlap"] == []


def test_a_pair_has_the_settings_of_both():
    cap, samples = (
        Knob("cap", "cap 8 tokens", {"workload.max_tokens": 8}),
        Knob("samples", "2 samples a rank", {"workload.samples_per_rank": 2}, samples_factor=Fraction(1, 2)),
    )
    overlap = Knob("overlap", "overlap none", overlap="none")
    pair = KnobPair(cap, samples)
    assert pair.label == "cap 8 tokens, 2 samples a rank"
    assert pair.settings == {"workload.max_tokens": 8, "workload.samples_per_rank": 2}
    assert pair.settings_text == ("workload.max_tokens=8", "workload.samples_per_rank=2")
    assert (pair.kinds, pair.overlap, pair.samples_factor) == (("cap", "samples"), None, Fraction(1, 2))
    for one, other in ((overlap, samples), (samples, overlap)):
        turned = KnobPair(one, other)
        assert (turned.overlap, turned.samples_factor) == ("none", Fraction(1, 2))
        assert "cases.0.overlap=none" in turned.settings_text


def knob_result(knob, speedup, *, fits=True, ci95=None, position=0):
    gain = Gain(speedup, ci95, 1)
    case = replace(case_of(), memory=MemoryResult({"any": 1.0 if fits else 3.0}, 2.0, 1))
    return KnobResult(position=position, knob=knob, case=case, gain=gain, total=gain)


def test_the_best_setting_of_a_kind_is_worth_a_change_and_fits():
    small, large, huge = (Knob("cap", f"cap {tokens} tokens") for tokens in (1, 2, 3))
    samples = Knob("samples", "2 samples a rank")
    found = [
        knob_result(small, 1.02),
        knob_result(large, 1.05),
        knob_result(huge, 1.5, fits=False),
        knob_result(samples, 1.005),
    ]
    assert best_of_kind(found, "cap", advised=None) is found[1]
    assert best_of_kind(found, "samples", advised=None) is None
    assert best_of_kind([knob_result(small, 1.2, ci95=(0.9, 1.4))], "cap", advised=None) is None
    # What is advised stands, whatever it gains: it may be there to fit in memory.
    assert best_of_kind(found, "cap", advised=small) is found[0]
    assert best_of_kind(found, "samples", advised=samples) is found[3]


def test_the_best_pair_gains_more_than_either_knob():
    knobs_ = KnobPair(Knob("cap", "cap"), Knob("samples", "samples"))

    def pair(speedup, beyond, *, ci95=None, position=0, fits=True):
        better = knob_result(knobs_.one, speedup / beyond, fits=fits, position=position)
        gain = Gain(speedup, None, 1)
        return PairResult(
            position=position,
            pair=knobs_,
            better=better,
            case=better.case,
            gain=gain,
            total=gain,
            beyond=Gain(beyond, ci95, 1),
        )

    good, better = pair(1.2, 1.05), pair(1.3, 1.02)
    others = [pair(1.9, 1.005), pair(1.9, 1.2, ci95=(0.9, 1.3)), pair(1.9, 1.2, position=1), pair(1.9, 1.2, fits=False)]
    assert best_pair([good, *others, better], position=0) is better
    assert best_pair(others, position=0) is None


# Gains


def test_blocks_leave_out_what_fills_none():
    assert blocks_s(np.arange(7.0), size=3).tolist() == [3.0, 12.0]
    assert blocks_s(np.arange(3.0), size=1).tolist() == [0.0, 1.0, 2.0]


def test_the_longer_of_both_is_cut():
    gain = gain_over(np.array([1.0, 2.0]), np.array([2.0, 4.0, 1000.0]), seed=0)
    assert (gain.speedup, gain.pairs) == (2.0, 2)
    assert gain.matters


@pytest.mark.parametrize(
    ("speedup", "ci95", "matters"),
    [
        (1.02, (1.01, 1.03), True),
        (1.02, (0.99, 1.05), False),
        (1.009, (1.008, 1.01), False),
        (1.02, None, True),
        (0.9, (0.8, 0.95), False),
    ],
)
def test_a_gain_matters_if_it_is_large_and_not_by_chance(speedup, ci95, matters):
    assert Gain(speedup, ci95, 10).matters is matters


# The choice


def option(sync="fsdp", *, changes=0, pulled=False, seconds=(1.0, 2.0, 3.0), knob=None):
    case = Case(sync=sync, policy="lb-micro")
    label = f"{sync} {changes} {pulled}"
    return Option(Candidate(label, case, pulled, ("policy",) * changes, ()), np.array(seconds), knob)


SLOW, FAST, NEARLY_AS_FAST = (2.0, 3.0, 4.0), (1.0, 2.0, 3.0), (1.005, 2.01, 3.015)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ([option(seconds=SLOW), option("odc", changes=1)], 1),
        ([option(seconds=NEARLY_AS_FAST), option("odc", changes=1)], 0),
        ([option(changes=2, seconds=NEARLY_AS_FAST), option("odc")], 0),
        ([option("odc", seconds=NEARLY_AS_FAST, changes=2), option("odc", pulled=True)], 0),
        ([option("odc", seconds=SLOW, changes=2), option("odc", pulled=True)], 1),
        ([option(changes=1), option(seconds=NEARLY_AS_FAST)], 1),
        ([option(changes=1, seconds=NEARLY_AS_FAST), option(changes=1)], 1),
        ([option(), option(knob=Knob("cap", "cap", {"workload.max_tokens": 1}))], 0),
        ([option(), option()], 0),
    ],
    ids=[
        "faster",
        "fsdp first",
        "fsdp before fewer changes",
        "given before pulled",
        "pulled if it is faster",
        "fewer changes",
        "the faster of equally simple ones",
        "a knob is a change",
        "the first of equals",
    ],
)
def test_the_simplest_of_what_is_as_good_as_the_fastest(options, chosen):
    assert choose(options, seed=0).option is options[chosen]


def test_a_gain_by_chance_is_none():
    """Faster by a tenth in the mean, and by turns faster and slower."""
    noisy = np.where(np.arange(30) % 2, 1.3, 0.5)
    simple, faster = option(seconds=np.ones(30)), option("odc", changes=1, seconds=noisy)
    choice = choose([simple, faster], seed=0)
    assert choice.fastest is faster
    assert choice.option is simple
    assert choice.as_good == (simple, faster)


def test_the_fastest_is_told_on_common_minibatches():
    long, short = option(seconds=(5.0, 1.0, 1.0)), option(seconds=(4.0,))
    assert fastest([long, short]) is short


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["fsdp", "odc"]), st.integers(0, 2), st.floats(1, 2)), min_size=1, max_size=6)
)
def test_the_choice_is_never_worse_than_as_good(drawn):
    options = [option(sync, changes=changes, seconds=(scale, 2 * scale, 3 * scale)) for sync, changes, scale in drawn]
    choice = choose(options, seed=0)
    assert choice.option in choice.as_good
    assert choice.option.seconds_N.mean() < 1.01 * choice.fastest.seconds_N.mean() * (1 + 1e-9)
    assert not any(other.complexity < choice.option.complexity for other in choice.as_good)


# Limits


def case_of(**fractions):
    given = {"compute": 1.0, "exposed_communication": 0.0, "synchronization": 0.0, "optimizer": 0.0, "other": 0.0}
    given |= fractions
    given["compute"] -= sum(fractions.values())
    return CaseResult(
        label="any",
        sync="fsdp",
        policy="lb-micro",
        overlap="none",
        pad=False,
        minibatch_s_N=np.array([3.0, 5.0]),
        lower_bound_s_N=np.array([2.0, 2.0]),
        fractions=TimeFractions(**given),
        conservation=Conservation(1, 0, 1, 0, 0),
        mean_microbatches_per_rank=1.0,
        padding_share=0.0,
        mfu=0.5,
        memory=MemoryResult({"any": 1.0}, 2.0, 1),
        speedup=1.0,
        speedup_ci95=None,
        ranks=1,
    )


@pytest.mark.parametrize(
    ("fractions", "outlasting", "limit"),
    [
        ({"synchronization": 0.02, "other": 0.02}, 1.0, "compute"),
        ({"optimizer": 0.5, "synchronization": 0.02}, 0.0, "compute"),
        ({"synchronization": 0.3, "other": 0.1}, 0.2, "imbalance"),
        ({"synchronization": 0.3, "other": 0.1}, 0.6, "longest sequence"),
        ({"exposed_communication": 0.3, "synchronization": 0.1}, 0.6, "communication"),
        ({"other": 0.3, "synchronization": 0.1}, 0.6, "fixed steps"),
    ],
)
def test_the_largest_loss_is_the_limit(fractions, outlasting, limit):
    longest = LongestSequence(tokens=1, mean_share=0.5, outlasting_share=outlasting)
    limits = limits_of(case_of(**fractions), longest, any_sync_s_N=None)
    assert limits.limit == limit
    assert limits.lost_share == pytest.approx(sum(fractions.values()) - fractions.get("optimizer", 0.0))
    assert limits.bound_ratio == 2.0
    assert limits.any_sync_ratio is None


def test_a_bound_of_any_sync_is_told_beside_that_of_its_own():
    longest = LongestSequence(tokens=1, mean_share=0.5, outlasting_share=0.0)
    limits = limits_of(case_of(), longest, any_sync_s_N=np.array([1.0, 1.5]))
    assert (limits.bound_ratio, limits.any_sync_ratio) == (2.0, 3.2)


# Regret


def regret(seconds_TC):
    seconds_TCN = np.repeat(np.array(seconds_TC)[:, :, None], 3, axis=2)
    truths = tuple(Truth(f"truth {number}", {}) for number in range(len(seconds_TC)))
    return Regret(truths, tuple(range(10, 10 + len(seconds_TC[0]))), None, seconds_TCN, seed=0)


def test_losses_are_against_the_best_under_the_same_truth():
    found = regret([[1.0, 1.1], [2.0, 1.6]])
    assert found.losses_TC == pytest.approx(np.array([[0.0, 0.1], [0.25, 0.0]]))
    assert found.worst(10) == (1, pytest.approx(0.25))
    assert found.worst(11) == (0, pytest.approx(0.1))
    assert found.safest == 11
    assert [found.best(truth) for truth in (0, 1)] == [10, 11]
    assert found.gain(11, over=10, truth=1).speedup == pytest.approx(1.25)
    assert found.safer_than(10) == 11
    assert found.safer_than(11) is None


def test_of_equally_safe_ones_the_first_is_named():
    assert regret([[1.0, 1.0]]).safest == 10


def test_safer_by_chance_is_not_safer():
    found = regret([[1.0, 1.0], [1.1, 1.0]])
    found.seconds_TCN[1, 0] = [0.5, 0.5, 2.3]
    assert found.worst(10)[1] == pytest.approx(0.1)
    assert found.safest == 11
    assert found.safer_than(10) is None


def test_truths_come_on_top_of_what_the_scenario_knows(changed):
    changes = {"cluster.compute_noise": 0.4, "cluster.rank_speeds": {2: 0.6, 0: 2.0}, "planning.known_speeds": True}
    truths = truths_of(parse_scenario(changed(changes)))
    assert truths[0].settings == {}
    assert [truth.settings.get("cluster.compute_noise") for truth in truths[1:4]] == pytest.approx(
        [np.sqrt(0.16 + error**2) for error in (0.1, 0.2, 0.3)]
    )
    assert truths[4].settings == {"cluster.rank_speeds": {2: 0.5, 0: 2.0}}
    assert truths[4].label == "rank 2 1.2x slower, and plans know"
