"""Transfers beside each other: how many were under way, worked out by hand, and what that is found to cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.analysis.observations import Transfer
from odcsim.analysis.transfers import _fit_contended, _overlaps_D

TRUE_F = np.array([2e-4, 3e-9])


def transfers(*intervals):
    return [
        Transfer("gather", 1, 0, position, start_s, start_s, end_s, 100)
        for position, (start_s, end_s) in enumerate(intervals)
    ]


def test_how_many_others_were_under_way():
    """Half the time of one beside one, a fifth of its own; nobody counts itself, nor what it did before and after."""
    overlaps = _overlaps_D([transfers((0, 10), (20, 21)), transfers((5, 30)), transfers((8, 9), (9, 10)), []])
    assert overlaps[0] == pytest.approx([(5 + 2) / 10, 1.0])
    assert overlaps[1] == pytest.approx([(5 + 1 + 2) / 25])
    assert overlaps[2] == pytest.approx([2.0, 2.0])
    assert overlaps[3] == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 40), max_size=8, unique=True).map(lambda edges: sorted(edges)[: len(edges) // 2 * 2]),
        min_size=1,
        max_size=4,
    )
)
def test_others_under_way_are_counted_moment_by_moment(edges_D):
    intervals_D = [list(zip(edges[::2], edges[1::2], strict=True)) for edges in edges_D]
    found_D = _overlaps_D([transfers(*intervals) for intervals in intervals_D])
    for rank, intervals in enumerate(intervals_D):
        for (start, end), found in zip(intervals, found_D[rank], strict=True):
            moments = [
                start <= moment < end and low <= moment < high
                for other, others in enumerate(intervals_D)
                if other != rank
                for low, high in others
                for moment in range(41)
            ]
            assert found == pytest.approx(sum(moments) / (end - start))


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("crowded", ["alike", "large ones"])
def test_what_others_cost_is_told_from_what_bytes_cost(noise, crowded):
    """Also where it is the large transfers that meet others."""
    generator = np.random.Generator(np.random.PCG64(0))
    moved_K, others_K = generator.choice([5e4, 2e5], 600), 3 * generator.random(600)
    if crowded == "large ones":
        others_K = np.where(moved_K > 1e5, 1 + others_K * 2 / 3, others_K / 3)
    time_K = (2e-4 + 3e-9 * moved_K) * (1 + 0.2 * others_K) * np.exp(noise * generator.standard_normal(600))
    fit, contention = _fit_contended(moved_K, time_K, others_K, np.arange(600), seed=0)
    off = 1e-5 if noise == 0 else 0.1
    assert contention.value == pytest.approx(0.2, rel=off)
    assert fit.values_F == pytest.approx([2e-4, 3e-9], rel=off)
    if noise:
        assert contention.low < 0.2 < contention.high


def test_intervals_of_what_others_cost_hold_the_truth_about_as_often_as_they_say():
    """Where the large transfers are the crowded ones, what bytes cost is as unsure as what others do."""
    held = []
    for seed in range(60):
        generator = np.random.Generator(np.random.PCG64(seed))
        moved_K, others_K = generator.choice([5e4, 2e5], 120), generator.random(120)
        others_K = np.where(moved_K > 1e5, 1 + 2 * others_K, others_K)
        time_K = (2e-4 + 3e-9 * moved_K) * (1 + 0.2 * others_K) * np.exp(0.1 * generator.standard_normal(120))
        fit, contention = _fit_contended(moved_K, time_K, others_K, np.arange(120), seed=seed)
        held.append((contention.low < 0.2 < contention.high, *((fit.low_F < TRUE_F) & (fit.high_F > TRUE_F))))
    assert (np.mean(held, axis=0) >= 0.85).all(), np.mean(held, axis=0)


def test_others_that_are_always_as_many_cannot_be_told_from_the_rest():
    """All is latency and bytes then: a transfer takes what it took."""
    moved_K = np.array([5e4, 2e5] * 20)
    time_K = (2e-4 + 3e-9 * moved_K) * 1.6
    fit, contention = _fit_contended(moved_K, time_K, np.full(40, 3.0), np.arange(40), seed=0)
    assert not contention.identified
    assert contention.value == 0
    np.testing.assert_allclose(fit.fitted_K, time_K, rtol=1e-9)
