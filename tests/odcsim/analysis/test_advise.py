"""`advise` on workloads whose right answer is known, and what must hold of every advice."""

from __future__ import annotations

import dataclasses
import itertools
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import yaml

from odcsim.analysis.advice_document import advice_document
from odcsim.analysis.advice_gain import blocks_s, gain_over
from odcsim.analysis.advise import advise
from odcsim.errors import InputError
from odcsim.report.advice_wording import answer, explanation
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate

# Many short samples and a few as long as the cap, where attention weighs most: no company is as heavy as they are.
TAIL = {
    "workload.lengths": {"lognormal": {"mean": 2500, "sigma": 1.2, "max": 8192}},
    "workload.samples_per_rank": 6,
    "workload.minibatches": 8,
    "compute.fitted": {"quadratic": 30.0, "linear": 3.0, "constant": 0.05, "per_tokens": 32000},
}
# Every rank has as much to do at every moment, whoever gets what; no microbatch has a cost of its own.
EQUAL = {
    "workload.lengths": {"constant": 8192},
    "workload.samples_per_rank": 16,
    "workload.minibatches": 6,
    "compute.fitted.constant": 0.0,
}
_MADE = {}


@pytest.fixture
def advised(changed):
    """The advice on the small scenario, changed as asked; made once for all tests that ask for the same."""

    def advice_on(changes=()):
        key = json.dumps(dict(changes), sort_keys=True)
        if key not in _MADE:
            _MADE[key] = advise(parse_scenario(changed(changes)), base_folder=Path())
        return _MADE[key]

    return advice_on


@pytest.fixture
def tight(changed):
    """The small scenario with changes, on devices whose memory lies between the peaks of two cases."""

    def between(changes, *, fits, fits_not):
        (low,), (high,) = (
            [case.memory.peak_bytes for case in simulate(parse_scenario(changed(found)), base_folder=Path()).cases]
            for found in ({**changes, "cases": [fits]}, {**changes, "cases": [fits_not["case"]], **fits_not["changes"]})
        )
        assert low < high
        return {**changes, "cluster.gpu": {"base": "a100-80g-sxm", "memory_bytes": (low + high) / 2 / 0.94}}

    return between


def candidate(advice, sync, policy):
    return next(
        position
        for position, found in enumerate(advice.candidates)
        if (found.case.sync, found.case.policy) == (sync, policy)
    )


def loss(advice, position, truth):
    place = next(place for place, found in enumerate(advice.regret.truths) if found.label.startswith(truth))
    return float(advice.regret.losses_TC[place, advice.regret.positions.index(position)])


# The right answer


def test_equal_samples_need_no_odc(advised):
    advice = advised(EQUAL)
    assert advice.advised.position == 0
    assert advice.advised.settings == ()
    assert not advice.syncs.gain.matters
    assert advice.syncs.gain.pairs == 6
    assert advice.baseline_limits.limit == "compute"
    told = answer(advice)
    assert told.lead == "Keep FSDP lb-micro, which you run now."
    assert any(note.startswith(("FSDP is as good as ODC here", "ODC is slower here")) for note in told.notes)


def test_a_bad_policy_under_fsdp_is_changed_and_the_sync_is_not(advised):
    """Sorted samples of two lengths that a good plan packs together: a plan for collectives is all it takes."""
    changes = {
        "workload.lengths": {"constant": 2048},
        "workload.samples_per_rank": 8,
        "workload.minibatches": 12,
        "cases.0.policy": "local-sort",
        "compute.fitted.constant": 2.0,
    }
    advice = advised(changes)
    chosen = advice.candidates[advice.advised.position]
    assert chosen.case.sync == "fsdp"
    assert chosen.changes == ("policy",)
    # One sample a microbatch pays the constant for each; four samples to a microbatch pay it for a quarter of them.
    assert advice.advised.total.ci95[0] > 2
    assert answer(advice).lead.startswith(f"Use {chosen.label}")
    assert not advice.syncs.gain.matters


@pytest.fixture
def long_tail(tight):
    """The tail on devices that hold ODC at the scenario's cap, and nothing at a larger one."""
    larger = {"case": {"sync": "fsdp", "policy": "lb-micro"}, "changes": {"workload.max_tokens": 16384}}
    return tight(TAIL, fits={"sync": "odc", "policy": "lb-mini"}, fits_not=larger)


def test_a_long_tail_needs_odc(advised, long_tail):
    advice = advised(long_tail)
    chosen = advice.candidates[advice.advised.position]
    assert chosen.case.sync == "odc"
    assert advice.syncs.gain.ci95[0] > 1.03
    assert advice.baseline_limits.limit == "imbalance"
    assert advice.advised_limits.bound_ratio < advice.baseline_limits.bound_ratio
    assert "cases.0.sync=odc" in advice.advised.settings
    assert answer(advice).lead.startswith(f"Use {chosen.label}: +")


def test_one_sample_a_rank_is_limited_by_the_longest(advised):
    """Nothing can be moved: the rank with the longest sample is waited for under either sync."""
    changes = {**TAIL, "workload.samples_per_rank": 1, "workload.lengths": {"values": [600, 700, 800, 8192]}}
    advice = advised(changes)
    assert advice.candidates[advice.advised.position].case.sync == "fsdp"
    assert advice.longest.outlasting_share == 1
    assert advice.baseline_limits.limit == "longest sequence"
    assert not advice.syncs.gain.matters


def test_a_larger_cap_does_what_odc_does(advised):
    """With memory for it, all samples of a rank go into one microbatch, and ranks meet as rarely as under ODC."""
    advice = advised(TAIL)
    option = advice.advised.option
    assert option.candidate.case.sync == "fsdp"
    assert option.knob.kind == "cap"
    assert not advice.syncs.gain.matters
    told = answer(advice)
    assert any(note.startswith("FSDP is as good as ODC here") for note in told.notes)
    assert any(note.startswith("With the scenario's own settings: ODC ") for note in told.notes)
    assert advice.own_syncs.gain.matters


def test_what_does_not_fit_is_left_out_and_told(advised, tight):
    no_odc = {"case": {"sync": "odc", "policy": "lb-micro"}, "changes": {}}
    advice = advised(tight(TAIL, fits={"sync": "fsdp", "policy": "lb-micro"}, fits_not=no_odc))
    assert {case.sync for case in advice.result.cases if case.memory.fits} == {"fsdp"}
    assert advice.candidates[advice.advised.position].case.sync == "fsdp"
    assert advice.advised.fits
    assert advice.syncs is None
    left_out = {left_out.label: left_out.reason for left_out in advice.left_out}
    assert "more than the" in left_out["ODC lb-mini"]
    assert "Under ODC nothing fits in memory." in answer(advice).notes
    # Nothing is said of what cannot be had.
    assert all(advice.candidates[position].case.sync == "fsdp" for position in advice.regret.positions)


def test_a_tighter_cap_is_advised_where_only_that_fits(advised, tight):
    """The cap is four times the longest sample: one sample to a microbatch fits, and is slow; more do not."""
    changes = {**TAIL, "training.recompute": "none"}
    fsdp, loose = {"sync": "fsdp", "policy": "lb-micro"}, {"workload.max_tokens": 32768}
    advice = advised({**tight(changes, fits=fsdp, fits_not={"case": fsdp, "changes": loose}), **loose})
    assert advice.result.cases[0].memory.fits is False
    assert {case.policy for case in advice.result.cases if case.memory.fits} <= {"local-sort"}
    assert advice.advised.fits
    assert advice.advised.option.candidate.case.policy != "local-sort"
    assert answer(advice).lead.startswith(f"Use {advice.advised.option.candidate.label}, cap 8,192 tokens: ")


def test_where_nothing_fits_it_says_so(advised):
    advice = advised({"cluster.gpu": {"base": "a100-80g-sxm", "memory_bytes": "1 MB"}})
    assert not advice.advised.fits
    told = answer(advice)
    assert told.lead == "Nothing that was tried fits in memory."
    assert "needs" in told.support
    assert len(advice.left_out) >= len(advice.candidates)


def test_a_slow_rank_makes_dynamic_safer(advised):
    """Equal work: nothing is to be won as modelled, and a slow rank holds up every plan made ahead."""
    advice = advised(EQUAL)
    now, dynamic = 0, candidate(advice, "odc", "dynamic")
    assert advice.advised.position == now
    assert loss(advice, now, "rank 2") > loss(advice, dynamic, "rank 2") + 0.05
    assert loss(advice, dynamic, "rank 2") < 0.01
    assert loss(advice, advice.regret.safest, "rank 2") == loss(advice, dynamic, "rank 2")
    assert advice.candidates[advice.regret.safest].is_pulled
    assert "would be safer" in " ".join(explanation(advice))


def test_losses_grow_with_what_is_not_known(advised, long_tail):
    advice = advised(long_tail)
    regret = advice.regret
    assert [truth.label for truth in regret.truths] == [
        "as modelled",
        "compute off by 10%",
        "compute off by 20%",
        "compute off by 30%",
        "rank 2 1.2x slower",
    ]
    means_TC = regret.seconds_TCN.mean(axis=2)
    static = regret.positions.index(candidate(advice, "odc", "lb-mini"))
    assert np.all(np.diff(means_TC[:4, static]) > 0)
    assert np.all(regret.losses_TC.min(axis=1) == 0)
    assert means_TC[4, static] > means_TC[0, static]


# What is the same in every advice


def test_everything_is_paired(advised):
    """Candidates and knobs run the very samples of the baseline, the same number of them."""
    advice = advised(TAIL)
    baseline = advice.result.cases[0]
    assert all(case.conservation == baseline.conservation for case in advice.result.cases)
    samples = 8 * 6 * 4
    for found in advice.knobs:
        assert found.case.conservation.samples == samples
        assert found.case.conservation.tokens == baseline.conservation.tokens
        own = advice.result.cases[found.position]
        assert found.gain.speedup == pytest.approx(found.case.samples_per_second / own.samples_per_second)
        assert found.total.speedup == pytest.approx(found.case.samples_per_second / baseline.samples_per_second)
        assert found.gain.pairs == 8 / max(found.knob.samples_factor, 1)


def test_knobs_are_tried_on_the_first_minibatches(changed, monkeypatch):
    monkeypatch.setattr("odcsim.analysis.advise._FEW_MINIBATCHES", 4)
    changes = {"workload.minibatches": 6, "compute.fitted.constant": 0.0}
    advice = advise(parse_scenario(changed(changes)), base_folder=Path())
    assert (advice.minibatches, advice.few_minibatches) == (6, 4)
    assert advice.regret.seconds_TCN.shape[2] == 4
    assert advice.regret.knob is None
    for found in advice.knobs:
        assert len(found.case.minibatch_s_N) == int(4 / found.knob.samples_factor)
    as_modelled_CN = advice.regret.seconds_TCN[0]
    for place, position in enumerate(advice.regret.positions):
        assert as_modelled_CN[place].tolist() == advice.result.cases[position].minibatch_s_N[:4].tolist()


def test_candidates_are_what_a_run_of_them_gives(advised, changed):
    """No other numbers than those of `odcsim run` on the same cases."""
    advice = advised(TAIL)
    cases = [found.case.model_dump(exclude_unset=True) for found in advice.candidates]
    result = simulate(parse_scenario(changed({**TAIL, "cases": cases})), base_folder=Path())
    for one, other in zip(advice.result.cases, result.cases, strict=True):
        assert dataclasses.replace(other, label=one.label, spans=()).to_document() == one.to_document()


def test_following_the_advice_gives_what_it_promises(advised, changed):
    advice = advised(TAIL)
    changes = {key: yaml.safe_load(value) for key, value in (part.split("=") for part in advice.advised.settings)}
    followed = simulate(parse_scenario(changed({**TAIL, **changes})), base_folder=Path()).cases[0]
    now = simulate(parse_scenario(changed(TAIL)), base_folder=Path()).cases[0]
    assert now.minibatch_s_N.mean() / followed.minibatch_s_N.mean() == pytest.approx(advice.advised.total.speedup)


# Transfers that take turns with compute: there overlap gains something as well.
SLOW = {**TAIL, "overlap": "none", "cluster.intra_node.bandwidth": "200 MB/s"}


@pytest.mark.parametrize(("changes", "count"), [(TAIL, 2), (SLOW, 4), (EQUAL, 0)])
def test_the_best_of_knobs_that_gain_alone_are_tried_together(advised, changes, count):
    advice = advised(changes)
    expected = set()
    for position in {found.position for found in advice.knobs}:
        gaining = {}
        for found in sorted(advice.knobs, key=lambda found: found.gain.speedup):
            if found.position == position and found.gain.matters and found.case.memory.fits:
                gaining[found.knob.kind] = found.knob.settings_text
        if position == advice.advised.position and advice.advised.option.knob is not None:
            gaining["cap"] = advice.advised.option.knob.settings_text
        kinds = [kind for kind in ("cap", "samples", "overlap") if kind in gaining]
        expected |= {(position, gaining[one] + gaining[other]) for one, other in itertools.combinations(kinds, 2)}
    assert {(found.position, found.pair.settings_text) for found in advice.pairs} == expected
    assert len(advice.pairs) == len(expected) == count


@pytest.mark.parametrize("changes", [TAIL, SLOW])
def test_a_pair_gives_what_both_settings_give(advised, changed, changes):
    """By simulations of each, on as many samples: its gain over the candidate, over the better knob, and over now."""
    advice = advised(changes)

    def seconds_of(position, settings, minibatches):
        candidate = advice.candidates[position]
        given = {"cases": [candidate.case.model_dump(exclude_unset=True)], "workload.minibatches": minibatches}
        given |= {key: yaml.safe_load(value) for key, value in (part.split("=") for part in settings)}
        (case,) = simulate(parse_scenario(changed({**changes, **given})), base_folder=Path()).cases
        return float(case.minibatch_s_N.sum())

    for found in advice.pairs:
        minibatches = int(8 / found.pair.samples_factor)
        pair_s = seconds_of(found.position, found.pair.settings_text, minibatches)
        better = found.better.knob
        better_s = seconds_of(found.position, better.settings_text, int(8 / better.samples_factor))
        assert found.gain.speedup == pytest.approx(seconds_of(found.position, (), 8) / pair_s)
        assert found.total.speedup == pytest.approx(seconds_of(0, (), 8) / pair_s)
        assert found.beyond.speedup == pytest.approx(better_s / pair_s)
        assert found.gain.pairs == minibatches
        assert found.case.memory.fits
        assert found.case.label == f"{advice.candidates[found.position].label}, {found.pair.label}"


def test_a_pair_that_is_worth_more_is_told_and_not_advised(advised):
    advice = advised(TAIL)
    pair = advice.best_pair
    assert pair.position == advice.advised.position
    assert pair.beyond.matters
    assert pair.gain.speedup == max(
        found.gain.speedup for found in advice.pairs if found.position == advice.advised.position
    )
    assert not any("samples" in setting for setting in advice.advised.settings)
    assert advice.ladder[-1].kind == "pair"
    assert advice.ladder[-1].gain is pair.beyond
    assert advice.ladder[-1].over == pair.better.case.label in [step.label for step in advice.ladder]
    (told,) = [note for note in answer(advice).notes if note.startswith("More is to be had with ")]
    assert "cap 32,768 tokens and 24 samples a rank together" in told
    assert told.endswith("But another minibatch is another training recipe.")


def test_no_pair_no_word_of_it(advised):
    advice = advised(EQUAL)
    assert (advice.pairs, advice.best_pair) == ((), None)
    assert "pair" not in [step.kind for step in advice.ladder]
    assert not [note for note in answer(advice).notes if "together" in note]


def test_the_document_has_every_pair(advised):
    advice = advised(SLOW)
    entries = advice_document(advice)["knob_pairs"]
    assert [(entry["candidate"], tuple(entry["settings"])) for entry in entries] == [
        (advice.candidates[found.position].label, found.pair.settings_text) for found in advice.pairs
    ]
    for entry, found in zip(entries, advice.pairs, strict=True):
        assert entry["kinds"] == [found.pair.one.kind, found.pair.other.kind]
        assert entry["same_training"] == ("samples" not in entry["kinds"])
        assert entry["gain_over_better_alone"]["speedup"] == found.beyond.speedup
        assert entry["better_alone"] in (list(found.pair.one.settings_text), list(found.pair.other.settings_text))
        assert entry["worth_more"] == found.beyond.matters


def test_the_ladder_climbs_from_now_to_the_advice(advised):
    advice = advised({**TAIL, "cases.0.policy": "local-sort"})
    kinds = [step.kind for step in advice.ladder]
    assert kinds[:3] == ["baseline", "policy", "sync"]
    assert [step.label for step in advice.ladder if step.is_advised] == [advice.advised.option.label]
    policy, sync = advice.ladder[1:3]
    assert policy.gain.speedup == policy.total.speedup
    assert policy.gain.speedup * sync.gain.speedup == pytest.approx(sync.total.speedup)
    for step in advice.ladder[3:]:
        assert step.kind == "pair" or step.over == advice.candidates[advice.advised.position].label


def test_overlap_is_that_of_the_scenarios_own_cases(advised):
    changes = {**TAIL, "overlap": "none", "cases.1.overlap": "gather-only", "workload.minibatches": 4}
    advice = advised(changes)
    assert {found.case.sync: found.case.overlap for found in advice.candidates} == {
        "fsdp": "none",
        "odc": "gather-only",
    }
    # No candidate is tried with the overlap that it has.
    for found in advice.knobs:
        assert found.knob.overlap != advice.candidates[found.position].case.overlap


def test_one_minibatch_has_no_intervals(advised):
    advice = advised({**TAIL, "workload.minibatches": 1})
    assert advice.syncs.gain.ci95 is None
    assert {found.knob.samples_factor for found in advice.knobs if found.knob.kind == "samples"} == {Fraction(1, 2)}
    json.dumps(advice_document(advice), allow_nan=False)


def test_one_rank_has_no_slow_rank_and_no_overlap(advised):
    advice = advised({"cluster.gpus_per_node": 1})
    assert [truth.label for truth in advice.regret.truths][-1] == "compute off by 30%"
    assert not [found for found in advice.knobs if found.knob.kind == "overlap"]
    assert advice.advised.position == 0


def test_a_sample_over_the_cap_is_refused_as_in_a_run(advised):
    with pytest.raises(InputError, match="oversize"):
        advised({"workload.max_tokens": 3000})


@pytest.mark.parametrize("oversize", ["truncate", "drop"])
def test_no_knob_changes_what_is_trained(advised, oversize):
    advice = advised({"workload.max_tokens": 3000, "workload.oversize": oversize, "workload.minibatches": 4})
    assert not [found for found in advice.knobs if found.knob.kind == "cap"]
    (conserved,) = {
        (found.case.conservation.dropped_tokens, found.case.conservation.truncated_tokens) for found in advice.knobs
    }
    assert sum(conserved) > 0


def test_groups_that_stay_on_one_rank_leave_policies_out(advised, tmp_path):
    (tmp_path / "groups.csv").write_text("".join(f"{100 * (row % 7 + 1)}\n" for row in range(64)))
    (tmp_path / "groups.json").write_text(json.dumps({"group_size": 4}))
    changes = {
        "workload.lengths": {"trace": str(tmp_path / "groups.csv")},
        "workload.samples_per_rank": 4,
        "planning.keep_groups": True,
        "cases": [{"sync": "fsdp", "policy": "lockstep"}],
    }
    advice = advised(changes)
    policies = {found.case.policy for found in advice.candidates}
    assert "lockstep" in policies
    assert "independent" in policies
    assert not policies & {"local-sort", "verl-native", "dynamic"}
    samples = [found.knob.settings for found in advice.knobs if found.knob.kind == "samples"]
    assert {"workload.samples_per_rank": 2} in samples


def test_warnings_are_told_once(advised):
    advice = advised({"cluster.contention": True, "cases.0.pad": True})
    assert advice.warnings == (
        "cases.0.pad has no effect: lb-micro gives equal counts already",
        "cluster.contention has no effect: there is one node only",
    )


def test_progress_grows_up_to_its_end(changed):
    told = []
    advise(parse_scenario(changed()), base_folder=Path(), progress=lambda done, total: told.append((done, total)))
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert len(set(totals)) == 1
    assert 0.7 * totals[0] < done[-1] <= totals[0]


def test_same_input_same_document(changed):
    texts = set()
    for _ in range(2):
        advice = advise(parse_scenario(changed()), base_folder=Path())
        texts.add(json.dumps(advice_document(advice), allow_nan=False))
    assert len(texts) == 1


def test_the_document_holds_what_it_says(advised):
    document = advice_document(advised(TAIL))
    assert list(document) == [
        "schema",
        "scenario",
        "engine",
        "minibatches",
        "lengths",
        "advised",
        "syncs",
        "syncs_with_own_settings",
        "candidates",
        "knobs",
        "knob_pairs",
        "ladder",
        "limits",
        "regret",
        "left_out",
        "warnings",
    ]
    assert document["schema"] == "odcsim.advice/1"
    assert document["scenario"]["cases"][0]["policy"] == "lb-micro"
    assert len(document["scenario"]["cases"]) == 2
    names = [entry["name"] for entry in document["candidates"]]
    assert document["advised"]["name"] == "FSDP lockstep, cap 32,768 tokens"
    assert document["advised"]["settings"] == ["cases.0.policy=lockstep", "workload.max_tokens=32768"]
    assert {document["advised"]["without_knob"], document["advised"]["fastest"]} <= set(names)
    assert {entry["candidate"] for entry in document["knobs"]} <= set(names)
    assert [entry["name"] for entry in document["regret"]["candidates"]] == names
    for entry in document["regret"]["candidates"]:
        assert len(entry["losses"]) == len(document["regret"]["truths"])
    assert json.loads(json.dumps(document)) == json.loads(json.dumps(document, allow_nan=False))


# Intervals


def test_intervals_hold_the_truth_about_as_often_as_they_say(changed):
    """The gain of many minibatches is in the interval of few, for a sync and for a knob in blocks."""
    changes = {
        "workload.lengths": {"lognormal": {"mean": 3000, "sigma": 1.0, "max": 8192}},
        "workload.minibatches": 900,
        "cases": [{"sync": "fsdp", "policy": "lb-micro"}, {"sync": "odc", "policy": "lb-mini"}],
    }
    scenario = parse_scenario(changed(changes))
    twice = parse_scenario(changed({**changes, "workload.samples_per_rank": 4, "workload.minibatches": 450}))
    fsdp, odc = (case.minibatch_s_N for case in simulate(scenario, base_folder=Path()).cases)
    larger = simulate(twice, base_folder=Path()).cases[1].minibatch_s_N
    per_sync = [gain_over(odc[first : first + 30], fsdp[first : first + 30], seed=first) for first in range(0, 900, 30)]
    true_sync = float(fsdp.sum() / odc.sum())
    hits = sum(low <= true_sync <= high for low, high in (gain.ci95 for gain in per_sync))
    assert hits >= 25, "of 30; 28.5 are expected, with a standard deviation of 1.2"
    true_knob = float(odc.sum() / larger.sum())
    knob_gains = [
        gain_over(larger[first : first + 15], blocks_s(odc[2 * first : 2 * first + 30], size=2), seed=first)
        for first in range(0, 450, 15)
    ]
    hits = sum(low <= true_knob <= high for low, high in (gain.ci95 for gain in knob_gains))
    assert hits >= 23, "of 30; with 15 blocks the bootstrap is a little too narrow"
