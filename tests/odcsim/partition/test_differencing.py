"""Differencing: known answers, its guarantee, equal counts for any number of items, and speed."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.partition.differencing import split_by_differencing

COSTS = st.lists(st.integers(0, 1000).map(float), max_size=60)
PARTS = st.integers(1, 12)


def sums(parts: list[list[int]], costs: list[float]) -> list[float]:
    return [sum(costs[item] for item in part) for part in parts]


def test_five_numbers_into_two_parts_differ_by_two():
    # 8-7 and 6-5 leave 1 and 1, 4-1 leaves 3, 3-1 leaves 2. The best possible is 0, which differencing misses.
    costs = [8.0, 7.0, 6.0, 5.0, 4.0]
    parts = split_by_differencing(costs, parts=2, equal_counts=False)
    assert parts == [[1, 3, 4], [0, 2]]
    assert sums(parts, costs) == [16, 14]


def test_five_numbers_into_three_parts():
    # (8) (7) (6) join without meeting, then (5, 4) meets them: 8, 7+4, 6+5.
    parts = split_by_differencing([8.0, 7.0, 6.0, 5.0, 4.0], parts=3, equal_counts=False)
    assert sorted(parts) == [[0], [1, 4], [2, 3]]


def test_equal_counts_pair_large_with_small():
    # States (1, 2) (3, 4) (5, 6); 1+4 and 2+3 tie, and then 6 and 5 join them.
    costs = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    parts = split_by_differencing(costs, parts=2, equal_counts=True)
    assert sums(parts, costs) == [11, 10]
    assert [len(part) for part in parts] == [3, 3]


def test_a_giant_is_left_alone_unless_counts_are_equal():
    costs = [100.0, *[1.0] * 7]
    assert split_by_differencing(costs, parts=2, equal_counts=False) == [[0], [1, 2, 3, 4, 5, 6, 7]]
    assert [len(part) for part in split_by_differencing(costs, parts=2, equal_counts=True)] == [4, 4]


@pytest.mark.parametrize("equal_counts", [True, False])
def test_fewer_items_than_parts_are_alone_heaviest_first(*, equal_counts: bool):
    assert split_by_differencing([1.0, 3.0, 2.0], parts=5, equal_counts=equal_counts) == [[1], [2], [0], [], []]
    assert split_by_differencing([], parts=3, equal_counts=equal_counts) == [[], [], []]


@pytest.mark.parametrize("equal_counts", [True, False])
def test_one_part_takes_everything(*, equal_counts: bool):
    assert split_by_differencing([1.0, 3.0, 2.0], parts=1, equal_counts=equal_counts) == [[0, 1, 2]]


@pytest.mark.parametrize("equal_counts", [True, False])
def test_equal_costs_spread_evenly(*, equal_counts: bool):
    parts = split_by_differencing([5.0] * 22, parts=4, equal_counts=equal_counts)
    assert sorted(len(part) for part in parts) == [5, 5, 6, 6]


def test_no_part_is_refused():
    with pytest.raises(AssertionError, match="0 parts"):
        split_by_differencing([1.0], parts=0, equal_counts=True)


@given(costs=COSTS, parts=PARTS, equal_counts=st.booleans())
def test_invariants(costs: list[float], parts: int, *, equal_counts: bool):
    answer = split_by_differencing(costs, parts=parts, equal_counts=equal_counts)
    assert len(answer) == parts
    assert sorted(item for part in answer for item in part) == list(range(len(costs)))
    totals = sums(answer, costs)
    assert totals == sorted(totals, reverse=True)
    # Merging never widens a spread, so no two sums differ by more than the largest item; the largest sum hence is at
    # most the mean plus that.
    assert totals[0] - totals[-1] <= max(costs, default=0)
    assert totals[0] <= sum(costs) / parts + max(costs, default=0)
    assert all(part == sorted(part) for part in answer)
    if equal_counts:
        assert {len(part) for part in answer} <= {len(costs) // parts, -(-len(costs) // parts)}
    assert answer == split_by_differencing(costs, parts=parts, equal_counts=equal_counts)


@pytest.mark.parametrize(("equal_counts", "largest_share"), [(True, 1.10), (False, 1.0005)])
def test_8192_items_into_256_parts_are_quick_and_even(*, equal_counts: bool, largest_share: float):
    costs = np.random.default_rng(0).lognormal(0.0, 0.75, 8192).tolist()
    start = time.perf_counter()
    parts = split_by_differencing(costs, parts=256, equal_counts=equal_counts)
    took_s = time.perf_counter() - start
    assert max(sums(parts, costs)) <= largest_share * sum(costs) / 256
    assert took_s < 2.0  # 30 ms at most on a machine at rest
