"""Filling steps, and exchanges that lower their heights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition.lockstep import even_out_steps, fill_steps, sort_bins
from odcsim.partition.step_exchanges import lower_heights

TOKENS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def is_under_cap(bins, tokens, cap_tokens):
    return all(sum(tokens[sample] for sample in chosen) <= cap_tokens or len(chosen) == 1 for chosen in bins)


def costs_of(tokens):
    return np.array(tokens, dtype=np.float64) ** 2 / 50 + np.array(tokens)


@settings(deadline=None)
@given(
    tokens=TOKENS, ranks=st.integers(1, 5), cap_tokens=st.integers(40, 200), constant=st.sampled_from([0.0, 5.0, 200.0])
)
def test_filled_steps_hold_every_sample_under_the_cap(tokens, ranks, cap_tokens, constant):
    costs = costs_of(tokens).tolist()
    found = fill_steps(costs, tokens, ranks=ranks, cap_tokens=cap_tokens, constant=constant)
    assert [filled.time_s for filled in found] == sorted(filled.time_s for filled in found)
    for filled in found:
        assert sorted(sample for chosen in filled.bins for sample in chosen) == list(range(len(tokens)))
        assert is_under_cap(filled.bins, tokens, cap_tokens)
        assert filled.heights == sorted(filled.heights, reverse=True)
        assert filled.time_s == pytest.approx(sum(filled.heights) + constant * len(filled.heights))


def test_bins_make_the_best_steps_by_descending_cost():
    filled = sort_bins([[0], [1, 2], [], [3]], [5.0, 1.0, 1.0, 9.0], ranks=2, constant=1.0)
    assert (filled.bins, filled.heights, filled.time_s) == ([[3], [0], [1, 2]], [9, 2], 13)


def test_the_height_of_a_step_is_that_of_its_longest_sample_where_that_is_enough():
    (best, *_) = fill_steps([10.0, 6, 5, 5, 4, 3, 3], [10, 6, 5, 5, 4, 3, 3], ranks=3, cap_tokens=10, constant=1.0)
    assert best.heights == [10, 3]


@settings(deadline=None)
@given(
    samples=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 11)), min_size=1, max_size=40),
    ranks=st.sampled_from([1, 2, 3, 4]),
    has_owners=st.booleans(),
    divides=st.booleans(),
    budget=st.sampled_from([0, 500, 1_000_000]),
)
def test_exchanges_lower_heights_under_the_cap(samples, ranks, has_owners, divides, budget):
    tokens = [length for length, _ in samples]
    bins = [[sample for sample, (_, home) in enumerate(samples) if home == number] for number in range(12)]
    cap_tokens = max(60, *(sum(tokens[sample] for sample in chosen) for chosen in bins))
    owners = [number // (12 // ranks) for number in range(12)] if has_owners else None
    given = {"ranks": ranks, "cap_tokens": cap_tokens, "budget": budget, "divides": divides, "owners": owners}
    costs_S, tokens_S = costs_of(tokens), np.array(tokens)
    lowered = lower_heights(bins, costs_S, tokens_S, **given)
    assert len(lowered) == 12
    assert sorted(sample for chosen in lowered for sample in chosen) == list(range(len(samples)))
    assert is_under_cap(lowered, tokens, cap_tokens)

    def heights_s(of_bins):
        loads = [costs_S[chosen].sum() for chosen in map(list, of_bins)]
        if owners is None:
            return sum(sorted(loads, reverse=True)[::ranks])
        each = 12 // ranks
        owned = [sorted(loads[rank * each : (rank + 1) * each], reverse=True) for rank in range(ranks)]
        return sum(map(max, zip(*owned, strict=True)))

    assert heights_s(lowered) <= heights_s(bins) * (1 + 1e-12)
    if owners is not None:
        owner_of = {sample: owner for chosen, owner in zip(bins, owners, strict=True) for sample in chosen}
        for chosen, owner in zip(lowered, owners, strict=True):
            assert {owner_of[sample] for sample in chosen} <= {owner}
    assert lower_heights(bins, costs_S, tokens_S, **given) == lowered


@pytest.mark.parametrize(
    ("bins", "costs", "divides", "heights"),
    [
        ([[0, 1], [2]], [5, 4, 3], False, [7]),  # 5 against 4+3
        ([[0, 1], [2, 3]], [7, 5, 4, 2], False, [9]),
        ([[0, 1], [2], [3], [4]], [9, 2, 8, 3, 3], False, [10, 3]),  # 9 | 8+2 and 3 | 3
        ([[0, 1], [2, 3, 4]], [9, 9, 5, 4, 4], True, [17]),  # 9 for 4+4: only a division does that
    ],
)
def test_exchanges_that_can_be_seen(bins, costs, divides, heights):
    lowered = lower_heights(
        bins,
        np.array(costs, dtype=np.float64),
        np.array(costs),
        ranks=2,
        cap_tokens=100,
        budget=100_000,
        divides=divides,
    )
    loads = sorted((sum(costs[sample] for sample in chosen) for chosen in lowered), reverse=True)
    assert loads[::2] == heights


def test_steps_are_evened_out():
    # 7+1 and 3+3 of the first step become 7 and 3+3+1; the second is even already.
    costs = np.array([7.0, 1, 3, 3, 2, 2])
    bins = even_out_steps([[0, 1], [2, 3], [4], [5]], costs, costs.astype(np.int64), ranks=2, cap_tokens=10)
    assert sorted(sorted(costs[chosen].tolist()) for chosen in bins) == [[1, 3, 3], [2], [2], [7]]
