"""The lower bound on a minibatch in lockstep, against every plan there is of tiny minibatches."""

from __future__ import annotations

import numpy as np
import pytest
from best_plans import least_lockstep_s
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds import compute_lower_bound_s, lockstep_lower_bound_s

LINEAR = TokenCost(quadratic=0, linear=1)
SQUARE = TokenCost(quadratic=1, linear=0)


def bound(tokens: list[int], cost: TokenCost, cap_tokens: int, ranks: int) -> float:
    return lockstep_lower_bound_s(np.array(tokens, dtype=np.int64), cost=cost, cap_tokens=cap_tokens, ranks=ranks)


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    cost=st.builds(TokenCost, st.integers(0, 3), st.integers(0, 5), st.integers(0, 40)),
    cap_tokens=st.integers(1, 24),
    ranks=st.integers(1, 4),
)
def test_no_plan_beats_it(tokens: list[int], cost: TokenCost, cap_tokens: int, ranks: int):
    best_s = least_lockstep_s(tokens, cost, cap_tokens, ranks)
    assert bound(tokens, cost, cap_tokens, ranks) <= best_s * (1 + 1e-12)


@given(
    tokens=st.lists(st.integers(1, 99), min_size=1, max_size=40),
    constant=st.integers(0, 40),
    cap_tokens=st.integers(1, 200),
    ranks=st.integers(1, 9),
)
def test_it_is_no_less_than_the_even_spread_or_the_busiest_rank(
    tokens: list[int], constant: int, cap_tokens: int, ranks: int
):
    cost = TokenCost(quadratic=0.01, linear=1, constant=constant)
    lengths_S = np.array(tokens)
    found_s = bound(tokens, cost, cap_tokens, ranks) * (1 + 1e-12)
    steps = -(-int(np.minimum(lengths_S, cap_tokens).sum()) // (ranks * cap_tokens))
    assert found_s >= cost.sample_costs_S(lengths_S).sum() / ranks + constant * steps
    assert found_s >= cost.sample_costs_S(lengths_S).max() + constant * steps
    assert found_s >= compute_lower_bound_s(lengths_S, cost=cost, cap_tokens=cap_tokens, speeds_D=np.ones(ranks))


# Each is the best plan's own time.
@pytest.mark.parametrize(
    ("tokens", "cost", "cap_tokens", "ranks", "expected_s"),
    [
        ([], LINEAR, 8, 2, 0.0),
        ([0, 0, 4], LINEAR, 8, 1, 4.0),  # dropped samples are run nowhere
        ([6, 4, 2], LINEAR, 12, 2, 6.0),  # even spread
        ([9, 1, 1, 1], LINEAR, 12, 2, 9.0),  # the longest sample
        ([5, 5, 5], LINEAR, 20, 2, 10.0),  # two meet on a rank
        ([3, 3, 3], TokenCost(quadratic=0, linear=1, constant=10), 5, 2, 26.0),  # two steps, though 9 tokens fit in one
        ([9, 8, 7, 6], LINEAR, 10, 2, 16.0),  # each alone: the 9 and the 7 set the heights
        ([9, 4, 4, 3, 3], LINEAR, 9, 1, 23.0),  # one rank
        ([4, 4, 4, 4, 3, 3], SQUARE, 8, 2, 41.0),  # two share: 16 + 16, then 9 or more beside the rest
        ([10, 5, 5, 5, 5], SQUARE, 10, 2, 125.0),  # two of 5 cannot reach the 10 beside them
        ([20, 5, 3], LINEAR, 8, 1, 28.0),  # over the cap: alone
        ([7, 1], LINEAR, 8, 5, 7.0),  # more ranks than samples
        ([4, 4, 4, 4], TokenCost(quadratic=0, linear=0, constant=1), 4, 2, 2.0),  # constants alone
    ],
)
def test_values(tokens: list[int], cost: TokenCost, cap_tokens: int, ranks: int, expected_s: float):
    assert bound(tokens, cost, cap_tokens, ranks) == pytest.approx(expected_s, rel=1e-12)
    assert least_lockstep_s([t for t in tokens if t], cost, cap_tokens, ranks) == pytest.approx(expected_s, rel=1e-12)


def test_a_rank_is_needed():
    with pytest.raises(AssertionError, match="0 ranks"):
        bound([1], LINEAR, 8, 0)
