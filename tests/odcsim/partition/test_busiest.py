"""Exchanges that shorten the busiest rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition.busiest import RankCosts, Units, lower_busiest
from odcsim.partition.fewest import FewestPacker


def rank_costs(tokens, *, cap_tokens, constant, speeds, units=None):
    """Every token costs a second."""
    units = [(sample,) for sample in range(len(tokens))] if units is None else units
    return RankCosts(
        units=Units.of(units, costs_S=np.array(tokens, dtype=np.float64), tokens_S=tokens, cap_tokens=cap_tokens),
        packer=FewestPacker(tokens, cap_tokens=cap_tokens),
        cap_tokens=cap_tokens,
        constant=constant,
        speeds_D=np.array(speeds, dtype=np.float64),
    )


@settings(deadline=None)
@given(
    homes=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), max_size=40),
    constant=st.sampled_from([0.0, 1.0, 30.0]),
    speeds=st.sampled_from([(1.0,) * 4, (1.0, 0.5, 2.0, 1.0)]),
    budget=st.sampled_from([0, 1, 1000, 1_000_000]),
)
def test_the_busiest_is_never_busier(homes, constant, speeds, budget):
    costs = rank_costs([tokens for tokens, _ in homes], cap_tokens=64, constant=constant, speeds=speeds)
    parts = [[unit for unit, (_, home) in enumerate(homes) if home == rank] for rank in range(4)]
    lowered = lower_busiest(parts, costs, budget=budget)
    assert sorted(unit for part in lowered for unit in part) == list(range(len(homes)))
    assert costs.busiest_s(lowered) <= costs.busiest_s(parts)
    if budget == 0:
        assert lowered == parts
    assert lower_busiest(parts, costs, budget=budget) == lowered


@pytest.mark.parametrize(
    ("parts", "tokens", "speeds", "busiest_s"),
    [
        ([[0, 1], []], [5, 5], (1, 1), 5),  # one for nothing
        ([[0, 1], [2, 3]], [9, 7, 5, 3], (1, 1), 12),  # one for one
        ([[0, 1, 2], [3, 4]], [6, 5, 4, 3, 2], (1, 1), 10),
        ([[0, 1], [2, 3, 4, 5]], [9, 9, 4, 4, 4, 4], (1, 1), 17),  # 9+4+4 both
        ([[0, 1], [2]], [6, 6, 6], (1, 2), 6),  # twice as much to the one of twice the speed
        ([[0, 3], [1, 4], [2, 5]], [8, 7, 6, 5, 4, 3], (1, 1, 1), 11),
    ],
)
def test_the_best_where_it_can_be_seen(parts, tokens, speeds, busiest_s):
    costs = rank_costs(tokens, cap_tokens=100, constant=0.0, speeds=speeds)
    assert costs.busiest_s(lower_busiest(parts, costs, budget=100_000)) == busiest_s


def test_a_microbatch_less_is_worth_an_uneven_split():
    # 6+5 and 6+5 need two microbatches each; 6 and 6 against 5+5 need three in all.
    costs = rank_costs([6, 6, 5, 5], cap_tokens=10, constant=1.0, speeds=(1, 0.7))
    lowered = lower_busiest([[0, 2], [1, 3]], costs, budget=100_000)
    assert lowered == [[0, 1], [2, 3]]


def test_good_enough_is_left_alone():
    costs = rank_costs([5, 5], cap_tokens=10, constant=0.0, speeds=(1, 1))
    assert lower_busiest([[0, 1], []], costs, budget=1000, good_enough_s=10.0) == [[0, 1], []]


def test_groups_move_as_a_whole():
    costs = rank_costs([4, 4, 5, 5, 5], cap_tokens=10, constant=0.0, speeds=(1, 1), units=[(0, 1), (2,), (3,), (4,)])
    lowered = lower_busiest([[0, 1, 2], [3]], costs, budget=1000)
    assert costs.busiest_s(lowered) == 13
    assert sorted(costs.units.samples_of(lowered[0]) + costs.units.samples_of(lowered[1])) == list(range(5))
