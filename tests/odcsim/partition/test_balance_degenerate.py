"""Balancing of what hardly needs it, and of very much: an answer, after bounded work."""

from __future__ import annotations

import numpy as np
import pytest

from odcsim.partition import exchange
from odcsim.partition.arrangement import Arrangement
from odcsim.partition.balance import balance

EQUAL_COUNTS = pytest.mark.parametrize("equal_counts", [True, False])


def sizes(answer: list[list[int]] | None) -> list[int]:
    assert answer is not None
    return sorted(len(part) for part in answer)


@EQUAL_COUNTS
def test_no_items(*, equal_counts: bool):
    assert balance([], parts=3, equal_counts=equal_counts) == [[], [], []]
    assert balance([], parts=2, equal_counts=equal_counts, speeds_P=[1.0, 2.0], loads_P=[0.0, 1.0]) == [[], []]


@EQUAL_COUNTS
def test_one_item(*, equal_counts: bool):
    assert balance([2.0], parts=1, equal_counts=equal_counts) == [[0]]
    assert balance([2.0], parts=300, equal_counts=equal_counts) == [[0], *[[]] * 299]
    assert balance([2.0], parts=2, equal_counts=equal_counts, speeds_P=[1.0, 2.0]) == [[], [0]]


@EQUAL_COUNTS
def test_one_part_takes_everything(*, equal_counts: bool):
    assert balance([1.0, 3.0, 2.0] * 9, parts=1, equal_counts=equal_counts) == [list(range(27))]


@EQUAL_COUNTS
def test_more_parts_than_items_are_alone_heaviest_first(*, equal_counts: bool):
    answer = balance([float(item % 7) + 1 for item in range(20)], parts=25, equal_counts=equal_counts)
    assert answer is not None
    assert sizes(answer) == [0] * 5 + [1] * 20
    assert answer[:3] == [[6], [13], [5]]


@EQUAL_COUNTS
@pytest.mark.parametrize("count", [22, 1000])
@pytest.mark.parametrize("cost", [0.0, 5.0])
def test_equal_costs_spread_evenly(count: int, cost: float, *, equal_counts: bool):
    answer = balance([cost] * count, parts=7, equal_counts=equal_counts)
    assert set(sizes(answer)) == {count // 7, -(-count // 7)}


@pytest.mark.parametrize("count", [40, 2000])
def test_a_giant_is_left_alone(count: int):
    answer = balance([1e6, *[1.0] * count], parts=5)
    assert answer is not None
    assert answer[0] == [0]
    assert sizes(answer) == [1] + [count // 4] * 4


@pytest.mark.parametrize("count", [39, 1999])
def test_a_giant_gets_the_cheapest_company_where_counts_are_equal(count: int):
    costs = [1e6, *(float(item) for item in range(1, count + 1))]
    answer = balance(costs, parts=5, equal_counts=True)
    assert answer is not None
    assert answer[0] == list(range((count + 1) // 5))


@EQUAL_COUNTS
def test_some_costs_of_zero(*, equal_counts: bool):
    costs = [0.0, 4.0, 0.0, 4.0, 0.0, 4.0] * 30
    answer = balance(costs, parts=9, equal_counts=equal_counts)
    assert answer is not None
    assert {sum(costs[item] for item in part) for part in answer} == {40.0}


@EQUAL_COUNTS
@pytest.mark.parametrize("largest", [1e-300, 1e300])
def test_extreme_costs(largest: float, *, equal_counts: bool):
    costs = (np.random.default_rng(0).uniform(0.5, 1.0, 300) * largest).tolist()
    answer = balance(costs, parts=6, equal_counts=equal_counts)
    assert answer is not None
    totals = [sum(costs[item] for item in part) for part in answer]
    assert max(totals) <= (1 + 1e-4) * min(totals)


@EQUAL_COUNTS
def test_costs_that_rounding_swallows(*, equal_counts: bool):
    costs = [1e20, 1e20, *[1.0] * 400]
    answer = balance(costs, parts=4, equal_counts=equal_counts)
    assert answer is not None
    assert sorted(item for part in answer for item in part) == list(range(402))
    assert sum(item < 2 for item in answer[0]) == sum(item < 2 for item in answer[1]) == 1


@pytest.mark.parametrize(
    ("parts", "speeds", "equal_counts"), [(2, [1.0], False), (256, [1.0, 2.0], False), (40_000, [1.0], True)]
)
def test_a_million_items(monkeypatch: pytest.MonkeyPatch, parts: int, speeds: list[float], *, equal_counts: bool):
    """What is compared stays within the budget, but for the round that was begun within it."""
    arrangements = []

    class Watched(Arrangement):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            arrangements.append(self)

    monkeypatch.setattr(exchange, "Arrangement", Watched)
    costs = np.random.default_rng(0).lognormal(0.0, 1.0, 1_000_000)
    answer = balance(costs, parts=parts, equal_counts=equal_counts, speeds_P=np.resize(speeds, parts))
    assert answer is not None
    assert sum(len(part) for part in answer) == 1_000_000
    (arrangement,) = arrangements
    budget = exchange._MOST_COMPARISONS + exchange._MOST_COMPARISONS_PER_ITEM * 1_000_000
    one_round = parts * 400  # fewer than 200 offers of either part of a pair
    assert arrangement.comparisons <= budget + one_round
