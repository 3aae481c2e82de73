"""Swaps between the heaviest part and the others."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.partition import refine
from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.refine import lower_heaviest_by_swaps


@st.composite
def split_items(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    costs = draw(st.lists(st.integers(0, 200).map(float), min_size=1, max_size=30))
    parts = draw(st.integers(1, 6))
    home = draw(st.lists(st.integers(0, parts - 1), min_size=len(costs), max_size=len(costs)))
    return [[item for item, part in enumerate(home) if part == number] for number in range(parts)], costs


def largest_sum(parts: list[list[int]], costs: list[float]) -> float:
    return max(sum(costs[item] for item in part) for part in parts)


def test_one_swap_evens_two_parts():
    # 17 against 3: moving a difference of 7 evens them, and 8 for 1 is one way (the lightest of the heavy part first).
    assert lower_heaviest_by_swaps([[0, 1], [2, 3]], [9.0, 8.0, 1.0, 2.0]) == [[0, 2], [1, 3]]


def test_the_lightest_part_is_asked_first():
    # The heaviest (10+4) could swap with either. With the lightest (1+1), 4 for 1 leaves 11 and 5, as would 10 for 1.
    parts = lower_heaviest_by_swaps([[0, 1], [2, 3], [4, 5]], [10.0, 4.0, 5.0, 6.0, 1.0, 1.0], pairs_budget=1)
    assert parts == [[0, 4], [2, 3], [1, 5]]


def test_no_swap_helps():
    assert lower_heaviest_by_swaps([[0], [1, 2]], [10.0, 1.0, 1.0]) == [[0], [1, 2]]


def test_nothing_to_do():
    assert lower_heaviest_by_swaps([], []) == []
    assert lower_heaviest_by_swaps([[1, 0]], [1.0, 2.0]) == [[0, 1]]
    assert lower_heaviest_by_swaps([[0], [], [1]], [0.0, 0.0]) == [[0], [], [1]]


@given(split_items())
def test_sizes_stay_and_the_heaviest_only_gets_lighter(case: tuple[list[list[int]], list[float]]):
    parts, costs = case
    refined = lower_heaviest_by_swaps(parts, costs)
    assert [len(part) for part in refined] == [len(part) for part in parts]
    assert sorted(item for part in refined for item in part) == list(range(len(costs)))
    assert largest_sum(refined, costs) <= largest_sum(parts, costs)
    assert refined == lower_heaviest_by_swaps(parts, costs)


@given(split_items())
def test_no_swap_of_the_heaviest_is_left(case: tuple[list[list[int]], list[float]]):
    parts, costs = case
    refined = lower_heaviest_by_swaps(parts, costs, pairs_budget=10**6)
    totals = [sum(costs[item] for item in part) for part in refined]
    heaviest = max(range(len(refined)), key=lambda part: (totals[part], part))
    for other, members in enumerate(refined):
        for given_item in refined[heaviest]:
            for taken in members if other != heaviest else ():
                moved = costs[given_item] - costs[taken]
                assert max(totals[heaviest] - moved, totals[other] + moved) >= totals[heaviest] * (1 - 1e-5)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_budget_bounds_the_pairs_looked_at(monkeypatch: pytest.MonkeyPatch, budget: int):
    looked_at = []
    original = refine._best_swap
    monkeypatch.setattr(refine, "_best_swap", lambda *args, **kwargs: looked_at.append(1) or original(*args, **kwargs))
    costs = np.random.default_rng(0).lognormal(0.0, 1.0, 80).tolist()
    parts = [list(range(start, 80, 8)) for start in range(8)]
    refined = lower_heaviest_by_swaps(parts, costs, pairs_budget=budget)
    assert len(looked_at) == budget
    assert (refined == parts) == (budget == 0)


@pytest.mark.parametrize("equal_counts", [True, False])
@pytest.mark.parametrize(("samples", "parts"), [(512, 32), (8192, 256)])
def test_quadratic_costs_do_not_stall_and_come_out_even(samples: int, parts: int, *, equal_counts: bool):
    lengths = np.random.default_rng(1).lognormal(9.4, 0.7, samples).clip(16, 65536)
    costs = (lengths**2).tolist()
    start = time.perf_counter()
    split = split_by_differencing(costs, parts=parts, equal_counts=equal_counts)
    refined = lower_heaviest_by_swaps(split, costs)
    assert time.perf_counter() - start < 2.0  # 70 ms on a machine at rest
    assert largest_sum(refined, costs) <= 1.0001 * sum(costs) / parts
