"""Balancing under a cap in tokens: it always holds, and is rarely in the way."""

from __future__ import annotations

import numpy as np
import pytest
from balance_references import best_largest_time, largest_time
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition.balance import balance
from odcsim.partition.packing import pack_rank

TOKENS = st.lists(st.integers(0, 60), max_size=40)


def costs_of(tokens: list[int]) -> list[float]:
    return [float(length * length + 10 * length) for length in tokens]


def heaviest_tokens(answer: list[list[int]], tokens: list[int]) -> int:
    return max(sum(tokens[item] for item in part) for part in answer)


@given(
    tokens=TOKENS,
    parts=st.integers(1, 8),
    cap=st.integers(1, 200),
    equal_counts=st.booleans(),
    has_speeds=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_cap_always_holds(tokens: list[int], parts: int, cap: int, *, equal_counts: bool, has_speeds: bool):
    speeds = [1.0 + part % 3 for part in range(parts)] if has_speeds else None
    costs = costs_of(tokens)
    answer = balance(costs, parts=parts, equal_counts=equal_counts, speeds_P=speeds, tokens_S=tokens, cap_tokens=cap)
    if answer is None:
        return
    assert sorted(item for part in answer for item in part) == list(range(len(tokens)))
    assert heaviest_tokens(answer, tokens) <= cap
    if equal_counts:
        assert {len(part) for part in answer} <= {len(tokens) // parts, -(-len(tokens) // parts)}


@given(
    tokens=st.lists(st.integers(0, 12), max_size=6),
    parts=st.integers(1, 3),
    cap=st.integers(1, 30),
    equal_counts=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_tiny_cases_are_optimal(tokens: list[int], parts: int, cap: int, *, equal_counts: bool):
    # Costs that run against tokens, so that the cap is in the way of the balance.
    costs = [float(20 - length) for length in tokens]
    loads, speeds = [0.0] * parts, [1.0, 2.0, 1.0][:parts]
    best = best_largest_time(costs, loads=loads, speeds=speeds, equal_counts=equal_counts, tokens=tokens, cap=cap)
    answer = balance(costs, parts=parts, equal_counts=equal_counts, speeds_P=speeds, tokens_S=tokens, cap_tokens=cap)
    if answer is None:
        assert best == float("inf")
    else:
        assert largest_time(answer, costs, loads, speeds) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("equal_counts", [True, False])
def test_a_loose_cap_changes_nothing(*, equal_counts: bool):
    tokens = np.random.default_rng(0).integers(1, 1000, 200).tolist()
    costs = costs_of(tokens)
    free = balance(costs, parts=10, equal_counts=equal_counts)
    assert free == balance(costs, parts=10, equal_counts=equal_counts, tokens_S=tokens, cap_tokens=sum(tokens))


@pytest.mark.parametrize("equal_counts", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_tight_cap_is_kept_and_costs_come_out_even(seed: int, *, equal_counts: bool):
    # 1% of room to spare, and costs that the lengths tell little about.
    rng = np.random.default_rng(seed)
    tokens = rng.integers(100, 1000, 200).tolist()
    costs = rng.uniform(1.0, 3.0, 200).tolist()
    cap = int(1.01 * sum(tokens) / 10)
    answer = balance(costs, parts=10, equal_counts=equal_counts, tokens_S=tokens, cap_tokens=cap)
    assert answer is not None
    assert heaviest_tokens(answer, tokens) <= cap
    assert largest_time(answer, costs) <= 1.001 * sum(costs) / 10


@given(tokens=st.lists(st.integers(1, 60), min_size=1, max_size=30), cap=st.integers(60, 150))
@settings(deadline=None)
def test_what_differencing_can_pack_is_packed(tokens: list[int], cap: int):
    costs = costs_of(tokens)
    packed = pack_rank(range(len(tokens)), costs_S=costs, tokens_S=tokens, cap_tokens=cap)
    answer = balance(costs, parts=len(packed), tokens_S=tokens, cap_tokens=cap)
    assert answer is not None
    assert largest_time(answer, costs) <= 1.0001 * largest_time([list(part) for part in packed], costs)


def test_a_perfect_packing_is_found():
    # Alike in cost, they would be three and three; but only one split leaves 10 tokens on either side.
    assert balance([1.0] * 6, parts=2, tokens_S=[5, 5, 1, 1, 1, 7], cap_tokens=10) == [[2, 3, 4, 5], [0, 1]]


@pytest.mark.parametrize("equal_counts", [True, False])
def test_no_arrangement(*, equal_counts: bool):
    def answer(tokens: list[int], cap: int) -> list[list[int]] | None:
        return balance([1.0] * len(tokens), parts=2, equal_counts=equal_counts, tokens_S=tokens, cap_tokens=cap)

    assert answer([11, 1], 10) is None  # one is too long
    assert answer([7, 7, 7], 10) is None  # they are too long together
    assert answer([6, 6, 6], 10) is None  # no two fit together
    assert answer([6] * 21, 63) is None  # ten fit in a part
    assert answer([], 10) == [[], []]
