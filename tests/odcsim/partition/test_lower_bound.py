"""The lower bound, against every plan there is of tiny minibatches."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds import compute_lower_bound_s, count_fewest_microbatches


def fewest_by_trying(tokens: tuple[int, ...], cap_tokens: int) -> int:
    """Fewest microbatches of any packing; samples over the cap are alone."""

    @cache
    def search(rest: frozenset[int]) -> int:
        if not rest:
            return 0
        first = min(rest)
        others = sorted(rest - {first})
        companies = itertools.chain.from_iterable(
            itertools.combinations(others, size) for size in range(len(others) + 1)
        )
        return min(
            1 + search(rest - {first, *company})
            for company in companies
            if not company or sum(tokens[sample] for sample in (first, *company)) <= cap_tokens
        )

    return search(frozenset(range(len(tokens))))


def best_busiest_rank_s(tokens: list[int], cost: TokenCost, cap_tokens: int, speeds: list[float]) -> float:
    """The busiest rank's time under the best of all plans."""
    best = float("inf")
    for home in itertools.product(range(len(speeds)), repeat=len(tokens)):
        times = []
        for rank, speed in enumerate(speeds):
            mine = tuple(sorted(t for t, where in zip(tokens, home, strict=True) if where == rank))
            work = sum(cost.quadratic * t * t + cost.linear * t for t in mine)
            times.append((work + cost.constant * fewest_by_trying(mine, cap_tokens)) / speed)
        best = min(best, max(times))
    return best


def bound(tokens: list[int], cost: TokenCost, cap_tokens: int, speeds: list[float]) -> float:
    lengths_S = np.array(tokens, dtype=np.int64)
    return compute_lower_bound_s(lengths_S, cost=cost, cap_tokens=cap_tokens, speeds_D=speeds)


COSTS = st.builds(TokenCost, st.integers(0, 3), st.integers(0, 5), st.integers(0, 40))


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    cost=COSTS,
    cap_tokens=st.integers(1, 16),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 1.0, 1.0, 3.0]), min_size=1, max_size=3),
)
def test_no_plan_beats_it(tokens: list[int], cost: TokenCost, cap_tokens: int, speeds: list[float]):
    best_s = best_busiest_rank_s(tokens, cost, cap_tokens, speeds)
    assert bound(tokens, cost, cap_tokens, speeds) <= best_s * (1 + 1e-12)


@given(st.lists(st.integers(1, 12), max_size=7), st.integers(1, 16))
def test_no_packing_needs_fewer_microbatches(tokens: list[int], cap_tokens: int):
    fewest = count_fewest_microbatches(tokens, cap_tokens=cap_tokens)
    assert -(-sum(min(t, cap_tokens) for t in tokens) // cap_tokens) <= fewest
    assert fewest <= fewest_by_trying(tuple(tokens), cap_tokens)


@pytest.mark.parametrize(
    ("tokens", "cap_tokens", "fewest"),
    [
        ([], 8, 0),
        ([8], 8, 1),
        ([4, 4, 1], 8, 2),
        ([7] * 8, 8, 8),  # 56 tokens would fit in 7, but no two together
        ([3] * 7, 8, 4),  # 21 tokens would fit in 3, but no three together
        ([20, 5, 3], 8, 2),  # the one over the cap is alone
        ([7, 7, 4, 4, 4], 10, 4),  # 26 tokens would fit in 3, but nothing beside the 7s
        ([7, 7, 4, 4, 3, 1], 10, 3),  # the 3 and the 1 fit
    ],
)
def test_fewest_microbatches(tokens: list[int], cap_tokens: int, fewest: int):
    assert count_fewest_microbatches(tokens, cap_tokens=cap_tokens) == fewest


LINEAR = TokenCost(quadratic=0, linear=1)


@pytest.mark.parametrize(
    ("tokens", "cost", "cap_tokens", "speeds", "expected_s"),
    [
        ([], LINEAR, 8, [1.0, 1.0], 0.0),
        ([0, 0, 4], LINEAR, 8, [1.0], 4.0),  # dropped samples are run nowhere
        ([6, 4, 2], LINEAR, 8, [1.0, 1.0], 6.0),  # even spread
        ([9, 1, 1, 1], LINEAR, 9, [1.0, 1.0], 9.0),  # the longest sample
        ([2, 3], TokenCost(quadratic=2, linear=1, constant=10), 8, [1.0], 2 * 13 + 5 + 10),
        ([3, 3, 3], TokenCost(quadratic=0, linear=1, constant=10), 5, [1.0], 39.0),  # three microbatches
        (
            [3, 3, 3],
            TokenCost(quadratic=0, linear=1, constant=10),
            5,
            [1.0, 1.0],
            26.0,
        ),  # two share a rank, not a microbatch
        ([5, 5, 5], LINEAR, 20, [1.0, 1.0], 10.0),  # two share a rank
        ([10], LINEAR, 10, [1.0, 2.0], 5.0),  # on the fastest rank
        ([6, 6], LINEAR, 6, [1.0, 2.0], 6.0),  # one each, or both on the faster
        ([6] * 6, LINEAR, 6, [1.0, 2.0], 12.0),  # 36 tokens at speed 3
        ([8, 8, 3, 3, 3], LINEAR, 100, [1.0, 1.0, 1.0], 9.0),  # nothing fits beside the longest in less than 11
        ([5, 5, 1], LINEAR, 100, [1.0, 1.0, 4.0], 2.5),  # the longest two on the fastest
        ([4, 4], TokenCost(quadratic=0, linear=1, constant=100), 8, [1.0, 1.0], 104.0),  # a constant a rank
        ([1] * 12, TokenCost(quadratic=0, linear=1, constant=10), 4, [1.0, 1.0], 26.0),  # half of them need two each
        ([4, 4], TokenCost(quadratic=0, linear=1, constant=100), 8, [1.0, 4.0], 27.0),  # both on the fastest, packed
        # 21 tokens: some rank needs two microbatches; both do, as soon as one has time for two and half of the tokens
        ([9, 6, 3, 3], TokenCost(quadratic=0.125, linear=1, constant=16), 10, [1.0, 1.0], 2 * 16 + 10.5 * 1.375),
    ],
)
def test_values(tokens: list[int], cost: TokenCost, cap_tokens: int, speeds: list[float], expected_s: float):
    assert bound(tokens, cost, cap_tokens, speeds) == pytest.approx(expected_s, rel=1e-12)


def test_speeds_are_positive():
    with pytest.raises(AssertionError, match="no rank"):
        bound([1], LINEAR, 8, [])
    with pytest.raises(AssertionError, match="speed is 0"):
        bound([1], LINEAR, 8, [1.0, 0.0])
