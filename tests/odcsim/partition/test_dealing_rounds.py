"""Items dealt a round at a time go where they would one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition import dealing_rounds
from odcsim.partition.dealing_rounds import Needs, Times, deal_in_rounds


@pytest.fixture(scope="module")
def always_in_rounds():
    """However few parts there are, and however few items a round has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dealing_rounds, "_FEWEST_PARTS", 1)
        patch.setattr(dealing_rounds, "_LEAST_SHARE", 0.0)
        yield


def one_by_one(parts, costs_S):
    homes = []
    for cost in costs_S:
        part = np.array([int(np.argmin(parts.keys_P))])
        parts.take(part, np.array([cost]))
        homes.append(int(part[0]))
    return homes


def descending(generator, samples):
    return np.sort(generator.random(samples) ** generator.integers(1, 6))[::-1].copy()


@pytest.mark.usefixtures("always_in_rounds")
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), samples=st.integers(1, 80), parts=st.integers(1, 20))
def test_to_the_part_that_ends_first(seed, samples, parts):
    """Costs are drawn, so no two parts are equally first."""
    generator = np.random.default_rng(seed)
    costs_S, ends_P, paces_P = descending(generator, samples), 3 * generator.random(parts), 1 + generator.random(parts)
    rounds, single = Times(ends_P.copy(), paces_P), Times(ends_P.copy(), paces_P)
    assert deal_in_rounds(rounds, costs_S) == one_by_one(single, costs_S)
    np.testing.assert_allclose(rounds.keys_P, single.keys_P, rtol=1e-12)


@pytest.mark.usefixtures("always_in_rounds")
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 20), most=st.integers(1, 6), full=st.integers(0, 20))
def test_to_the_part_that_lacks_most_for_an_item(seed, parts, most, full):
    """Of the parts only so many may fill their last place; items are as many as places that may be filled."""
    generator = np.random.default_rng(seed)
    places_P = generator.integers(1, most + 1, parts)
    last_places = min(full, parts)
    lacks_P = places_P * (0.5 + generator.random(parts))
    costs_S = descending(generator, int(places_P.sum()) - (parts - last_places))
    rounds, single = (Needs(lacks_P.copy(), places_P.copy(), last_places) for _ in range(2))
    assert deal_in_rounds(rounds, costs_S) == one_by_one(single, costs_S)
    assert (rounds.places_P == single.places_P).all()
    assert rounds.last_places == single.last_places == 0
    assert np.count_nonzero(rounds.places_P == 0) == last_places


def test_a_round_has_as_many_items_as_go_to_different_parts(monkeypatch):
    """And with few parts nothing is dealt: that is as quick one by one."""
    monkeypatch.setattr(dealing_rounds, "_FEWEST_PARTS", 128)
    parts = 200
    times = Times(np.zeros(parts), np.ones(parts))
    costs_S = np.concatenate([np.full(parts, 5.0), np.full(parts, 4.0), [3.0] * 3])
    homes = deal_in_rounds(times, costs_S)
    assert homes[:parts] == homes[parts : 2 * parts] == list(range(parts))
    assert homes[2 * parts :] == [0, 1, 2]
    few = Times(np.zeros(5), np.ones(5))
    assert deal_in_rounds(few, costs_S) == []
    assert (few.keys_P == 0).all()
