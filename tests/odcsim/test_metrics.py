"""Figures of a result: where rank-time went, and a paired speedup with its interval."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.engines.timeline import Outcome
from odcsim.metrics import RankTimeTotals, paired_speedup

# Two ranks, one minibatch of ten seconds.
OUTCOME = Outcome(
    minibatch_s_N=np.array([10.0]),
    compute_s_ND=np.array([[6.0, 4.0]]),
    exposed_communication_s_ND=np.array([[1.0, 1.0]]),
    synchronization_s_ND=np.array([[0.0, 2.0]]),
    optimizer_s_ND=np.array([[1.0, 1.0]]),
    other_s_ND=np.array([[2.0, 2.0]]),
)


def fractions_of(*outcomes, padding_s=0.0):
    totals = RankTimeTotals()
    for outcome in outcomes:
        totals.add(outcome, padding_s_ND=np.array([[0.0, padding_s]]))
    return totals.fractions().to_document()


def test_fractions_are_shares_of_rank_time():
    assert fractions_of(OUTCOME) == pytest.approx(
        {"compute": 0.5, "exposed_communication": 0.1, "synchronization": 0.1, "optimizer": 0.1, "other": 0.2}
    )


def test_padding_computes_but_trains_nothing():
    found = fractions_of(OUTCOME, padding_s=3.0)
    assert (found["compute"], found["other"]) == pytest.approx((0.35, 0.35))
    assert sum(found.values()) == pytest.approx(1)


def test_long_minibatches_weigh_more():
    idle = dataclasses.replace(
        OUTCOME,
        minibatch_s_N=np.array([30.0]),
        compute_s_ND=np.array([[0.0, 0.0]]),
        synchronization_s_ND=np.array([[26.0, 26.0]]),
    )
    assert fractions_of(OUTCOME, idle)["compute"] == pytest.approx(10 / 80)


def test_minibatches_of_all_outcomes_are_kept_in_order():
    totals = RankTimeTotals()
    for seconds in (10.0, 7.0):
        outcome = dataclasses.replace(OUTCOME, minibatch_s_N=np.array([seconds]))
        totals.add(outcome, padding_s_ND=np.zeros((1, 2)))
    assert totals.minibatch_s_N.tolist() == [10.0, 7.0]


def test_equal_times_give_exactly_one():
    times = np.random.default_rng(0).exponential(1.0, size=50)
    assert paired_speedup(times, times.copy(), seed=0) == (1.0, (1.0, 1.0))


def test_pairing_takes_out_what_both_share():
    """Twice as fast in every minibatch is twice as fast in every resample, however unlike the minibatches are."""
    baseline_s = np.array([1.0, 1000.0, 3.0, 50.0])
    speedup, (low, high) = paired_speedup(baseline_s, baseline_s / 2, seed=0)
    assert (speedup, low, high) == pytest.approx((2, 2, 2), rel=1e-12)


def test_speedup_is_the_ratio_of_means():
    speedup, _ = paired_speedup(np.array([1.0, 9.0]), np.array([1.0, 3.0]), seed=0)
    assert speedup == 2.5


def test_one_minibatch_has_no_interval():
    assert paired_speedup(np.array([6.0]), np.array([4.0]), seed=0) == (1.5, None)


def test_the_seed_fixes_the_interval():
    generator = np.random.default_rng(0)
    baseline_s, case_s = generator.exponential(1.0, size=(2, 30))
    intervals = [paired_speedup(baseline_s, case_s, seed=seed)[1] for seed in (0, 0, 1)]
    assert intervals[0] == intervals[1] != intervals[2]


def test_the_interval_narrows_with_the_root_of_the_minibatches():
    generator = np.random.default_rng(0)
    widths = []
    for minibatches in (50, 800):
        low, high = paired_speedup(*generator.uniform(1, 2, size=(2, minibatches)), seed=0)[1]
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says():
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(60):
        shared_s = generator.exponential(1.0, size=60)
        baseline_s = 1.5 * shared_s + generator.uniform(0, 1, size=60)
        case_s = shared_s + generator.uniform(0, 1, size=60)
        low, high = paired_speedup(baseline_s, case_s, seed=trial)[1]
        hits += low <= (1.5 + 0.5) / (1.0 + 0.5) <= high
    assert hits >= 51  # 57 are expected, with a standard deviation of 1.7


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=20))
def test_the_interval_lies_within_the_ratios_of_single_minibatches(pairs):
    baseline_s, case_s = np.array(pairs).T
    speedup, (low, high) = paired_speedup(baseline_s, case_s, seed=0)
    ratios = baseline_s / case_s
    assert ratios.min() * (1 - 1e-9) <= low <= high <= ratios.max() * (1 + 1e-9)
    assert ratios.min() * (1 - 1e-9) <= speedup <= ratios.max() * (1 + 1e-9)
