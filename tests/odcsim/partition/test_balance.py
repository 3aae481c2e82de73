"""Balancing: its invariants, its optimum on tiny cases, and how it compares with plainer methods."""

from __future__ import annotations

import numpy as np
import pytest
from balance_references import SHAPES, best_largest_time, largest_time, longest_first, shaped_costs, sums
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition.balance import balance
from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.refine import lower_heaviest_by_swaps

# Whole numbers, so that sums are exact in any order.
COSTS = st.lists(st.integers(0, 1000).map(float), max_size=70)
PARTS = st.integers(1, 12)
LOADS = st.sampled_from([0.0, 0.0, 100.0, 700.0])
SPEEDS = st.sampled_from([0.5, 1.0, 1.0, 2.0])


def split(costs: list[float], parts: int, **options: object) -> list[list[int]]:
    answer = balance(costs, parts=parts, **options)
    assert answer is not None
    return answer


@given(
    costs=COSTS,
    parts=PARTS,
    equal_counts=st.booleans(),
    data=st.data(),
    has_loads=st.booleans(),
    has_speeds=st.booleans(),
)
@settings(deadline=None)
def test_invariants(
    costs: list[float], parts: int, data: st.DataObject, *, equal_counts: bool, has_loads: bool, has_speeds: bool
):
    loads = data.draw(st.lists(LOADS, min_size=parts, max_size=parts)) if has_loads else None
    speeds = data.draw(st.lists(SPEEDS, min_size=parts, max_size=parts)) if has_speeds else None
    answer = split(costs, parts, equal_counts=equal_counts, loads_P=loads, speeds_P=speeds)
    assert len(answer) == parts
    assert sorted(item for part in answer for item in part) == list(range(len(costs)))
    assert all(part == sorted(part) for part in answer)
    if equal_counts:
        assert {len(part) for part in answer} <= {len(costs) // parts, -(-len(costs) // parts)}
    if loads is None and speeds is None:
        assert sums(answer, costs) == sorted(sums(answer, costs), reverse=True)
        if not equal_counts:
            assert largest_time(answer, costs) <= longest_first(costs, parts)
    assert answer == split(costs, parts, equal_counts=equal_counts, loads_P=loads, speeds_P=speeds)
    assert answer == split(np.array(costs), parts, equal_counts=equal_counts, loads_P=loads, speeds_P=speeds)


@given(
    costs=st.lists(st.integers(0, 30).map(float), max_size=6),
    parts=st.integers(1, 3),
    equal_counts=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_tiny_cases_are_optimal(costs: list[float], parts: int, data: st.DataObject, *, equal_counts: bool):
    loads = data.draw(st.lists(st.sampled_from([0.0, 0.0, 3.0, 40.0]), min_size=parts, max_size=parts))
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.0, 3.0]), min_size=parts, max_size=parts))
    answer = split(costs, parts, equal_counts=equal_counts, loads_P=loads, speeds_P=speeds)
    best = best_largest_time(costs, loads=loads, speeds=speeds, equal_counts=equal_counts)
    assert largest_time(answer, costs, loads, speeds) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("equal_counts", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("count", "parts"), [(20, 3), (33, 8), (64, 8), (130, 16), (256, 16), (384, 128), (500, 7)])
def test_never_worse_than_differencing_with_swaps(count: int, parts: int, shape: str, *, equal_counts: bool):
    for seed in range(3):
        costs = shaped_costs(shape, count, seed)
        differenced = split_by_differencing(costs, parts=parts, equal_counts=equal_counts)
        refined = lower_heaviest_by_swaps(differenced, costs, pairs_budget=1000 * parts)
        answer = split(costs, parts, equal_counts=equal_counts)
        assert largest_time(answer, costs) <= 1.0001 * largest_time(refined, costs)


@pytest.mark.parametrize("equal_counts", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("count", "parts"), [(1024, 64), (1500, 100), (2048, 2)])
def test_nor_with_many_items(count: int, parts: int, shape: str, *, equal_counts: bool):
    costs = shaped_costs(shape, count, seed=0)
    differenced = split_by_differencing(costs, parts=parts, equal_counts=equal_counts)
    refined = lower_heaviest_by_swaps(differenced, costs, pairs_budget=1000 * parts)
    answer = split(costs, parts, equal_counts=equal_counts)
    assert largest_time(answer, costs) <= 1.0001 * largest_time(refined, costs)


@pytest.mark.parametrize("equal_counts", [True, False])
@pytest.mark.parametrize(("count", "parts"), [(12, 3), (60, 8), (700, 20)])
def test_the_order_of_equal_items_does_not_matter(count: int, parts: int, *, equal_counts: bool):
    costs = shaped_costs("few values", count, seed=1)
    shuffled = np.random.default_rng(0).permutation(costs).tolist()
    expected = sums(split(costs, parts, equal_counts=equal_counts), costs)
    assert sums(split(shuffled, parts, equal_counts=equal_counts), shuffled) == expected


@pytest.mark.parametrize("equal_counts", [True, False])
def test_a_scale_does_not_matter(*, equal_counts: bool):
    costs = shaped_costs("log-normal", 300, seed=2)
    expected = split(costs, 10, equal_counts=equal_counts)
    assert split([cost * 2.0**-40 for cost in costs], 10, equal_counts=equal_counts) == expected
    assert split([cost * 2.0**40 for cost in costs], 10, equal_counts=equal_counts) == expected


def test_faster_parts_get_more():
    costs = shaped_costs("log-normal", 400, seed=3)
    speeds = [1.0, 2.0, 0.5, 1.0, 4.0, 1.5]
    answer = split(costs, 6, speeds_P=speeds)
    assert largest_time(answer, costs, speeds=speeds) <= 1.0001 * sum(costs) / sum(speeds)


def test_loads_are_evened_out():
    costs = shaped_costs("log-normal", 400, seed=3)
    loads = [0.0, 30.0, 5.0, 60.0, 0.0, 1.0]
    answer = split(costs, 6, loads_P=loads)
    assert largest_time(answer, costs, loads=loads) <= 1.0001 * (sum(costs) + sum(loads)) / 6


def test_a_part_that_is_late_anyway_gets_nothing():
    answer = split([3.0] * 40, 4, loads_P=[0.0, 1000.0, 0.0, 0.0])
    assert answer[1] == []
    assert sorted(len(part) for part in answer) == [0, 13, 13, 14]


def test_parts_of_equal_loads_and_speeds_are_alike():
    costs = shaped_costs("squared", 50, seed=4)
    assert split(costs, 5, loads_P=[2.0] * 5, speeds_P=[3.0] * 5) == split(costs, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 0}, "into 0 parts"),
        ({"parts": 2, "loads_P": [1.0]}, "loads of shape"),
        ({"parts": 2, "loads_P": [1.0, -1.0]}, "a load is -1.0"),
        ({"parts": 2, "speeds_P": [1.0]}, "speeds of shape"),
        ({"parts": 2, "speeds_P": [1.0, 0.0]}, "a speed is 0.0"),
        ({"parts": 2, "speeds_P": [1.0, float("inf")]}, "a speed is not finite"),
        ({"parts": 2, "tokens_S": [1, 1]}, "given together"),
        ({"parts": 2, "cap_tokens": 8}, "given together"),
        ({"parts": 2, "tokens_S": [1], "cap_tokens": 8}, "1 lengths for 2 items"),
        ({"parts": 2, "tokens_S": [1, -1], "cap_tokens": 8}, "a length is -1"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], message: str):
    with pytest.raises(AssertionError, match=message):
        balance([1.0, 2.0], **options)


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_bad_costs_are_refused(cost: float):
    with pytest.raises(AssertionError, match="a cost"):
        balance([1.0, cost], parts=2)
