"""The parts that balancing is made of: the floor, first arrangements, and the exchange of a pair."""

from __future__ import annotations

import numpy as np
import pytest
from balance_references import best_largest_time
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition import exchange
from odcsim.partition.arrangement import Arrangement
from odcsim.partition.dealing import deal, fit_tokens
from odcsim.partition.exchange import even_out
from odcsim.partition.nearest import Limits, nearest_exchange, nearest_exchange_under_cap
from odcsim.partition.task import PartitionTask


def task_of(
    costs: list[float],
    *,
    parts: int,
    equal_counts: bool = False,
    loads: list[float] | None = None,
    speeds: list[float] | None = None,
    tokens: list[int] | None = None,
    cap: int = 0,
) -> PartitionTask:
    """A task whose costs are sorted, and whose tokens, if any, are in the order of the sorted costs."""
    return PartitionTask(
        costs_S=np.array(sorted(costs, reverse=True), dtype=np.float64),
        loads_P=np.array(loads or [0.0] * parts),
        speeds_P=np.array(speeds or [1.0] * parts),
        equal_counts=equal_counts,
        tokens_S=None if tokens is None else np.array(tokens, dtype=np.int64),
        cap_tokens=cap,
    )


@given(
    costs=st.lists(st.integers(0, 30).map(float), max_size=6),
    parts=st.integers(1, 3),
    equal_counts=st.booleans(),
    is_alike=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_no_arrangement_is_below_the_floor(costs: list[float], parts: int, *, equal_counts: bool, is_alike: bool):
    loads, speeds = ([2.0] * parts, [3.0] * parts) if is_alike else ([0.0, 5.0, 1.0][:parts], [1.0, 2.0, 0.5][:parts])
    task = task_of(costs, parts=parts, equal_counts=equal_counts, loads=loads, speeds=speeds)
    best = best_largest_time(costs, loads=loads, speeds=speeds, equal_counts=equal_counts)
    assert task.floor_time <= best * (1 + 1e-12)


@pytest.mark.parametrize(
    ("costs", "parts", "equal_counts", "floor"),
    [
        ([], 2, False, 0.0),
        ([4.0, 4.0, 4.0, 4.0], 2, False, 8.0),  # an even spread
        ([9.0, 1.0, 1.0], 2, False, 9.0),  # the costliest
        ([5.0, 5.0, 5.0], 2, False, 10.0),  # two in one part
        ([3.0] * 7, 3, False, 9.0),  # three in one part
        ([9.0, 3.0, 1.0, 1.0], 2, True, 10.0),  # the costliest has company
        ([9.0, 9.0, 3.0, 2.0, 1.0, 1.0], 3, True, (9 + 9 + 1 + 1) / 2),  # the two costliest have company
    ],
)
def test_floors(costs: list[float], parts: int, floor: float, *, equal_counts: bool):
    assert task_of(costs, parts=parts, equal_counts=equal_counts).floor_time == pytest.approx(floor, rel=1e-12)


def test_the_costliest_first_to_the_part_that_ends_first():
    homes = deal(task_of([8.0, 7.0, 6.0, 5.0, 4.0], parts=2))
    assert homes is not None
    assert homes.tolist() == [0, 1, 1, 0, 0]


def test_to_the_part_that_ends_first_with_the_item():
    # On the faster part the first item ends after 4, as the second one does on the slower; the third after 6, not 8.
    homes = deal(task_of([8.0, 4.0, 4.0], parts=2, speeds=[2.0, 1.0]))
    assert homes is not None
    assert homes.tolist() == [0, 1, 0]


@given(
    costs=st.lists(st.integers(0, 50).map(float), max_size=30),
    parts=st.integers(1, 7),
    has_cap=st.booleans(),
)
def test_dealing_to_the_neediest_keeps_counts_equal(costs: list[float], parts: int, *, has_cap: bool):
    tokens = [1] * len(costs) if has_cap else None
    homes = deal(task_of(costs, parts=parts, equal_counts=True, tokens=tokens, cap=-(-len(costs) // parts)))
    assert homes is not None
    counts = np.bincount(homes, minlength=parts)
    assert counts.max() - counts.min() <= 1


def test_a_giant_is_filled_up_with_the_least():
    homes = deal(task_of([100.0, 9.0, 8.0, 7.0, 6.0, 5.0, 2.0, 1.0, 1.0], parts=3, equal_counts=True))
    assert homes is not None
    assert (homes == homes[0]).tolist() == [True, *[False] * 6, True, True]


def test_parts_without_room_are_passed_over():
    # The third item would go to the second part, which has no room for it; the fourth finds room nowhere.
    homes = deal(task_of([9.0, 8.0, 7.0], parts=2, tokens=[4, 6, 5], cap=10))
    assert homes is not None
    assert homes.tolist() == [0, 1, 0]
    assert deal(task_of([9.0, 8.0, 7.0, 6.0], parts=2, tokens=[4, 6, 5, 5], cap=10)) is None


def test_tokens_go_where_they_leave_least_room():
    homes = fit_tokens(task_of([1.0] * 6, parts=2, tokens=[5, 5, 1, 1, 1, 7], cap=10))
    assert homes is not None
    assert homes.tolist() == [1, 1, 0, 0, 0, 0]
    assert fit_tokens(task_of([1.0] * 3, parts=2, tokens=[6, 6, 6], cap=10)) is None


OFFERS = st.lists(st.integers(-40, 40).map(float), min_size=4, max_size=4)


def distance_of(given_offer: float, taken_offer: float, wanted: float, overshoot: float) -> float:
    missing = wanted - (given_offer - taken_offer)
    return missing if missing >= 0 else -missing * overshoot


@given(
    offers=st.lists(st.tuples(OFFERS, OFFERS), min_size=3, max_size=3),
    wanted=st.lists(st.integers(0, 30).map(float), min_size=3, max_size=3),
    overshoot=st.sampled_from([None, 0.5, 1.0, 3.0]),
    room=st.integers(0, 60),
)
def test_the_nearest_exchange_is_the_nearest(
    offers: list[tuple[list[float], list[float]]], wanted: list[float], overshoot: float | None, room: int
):
    offers_Q2K = np.array(offers)
    # Tokens as costs, so that room is what the taker may gain in work as well.
    limits = Limits(tokens_Q2K=offers_Q2K.astype(np.int64), room_Q2=np.array([[100, room]] * 3))
    weights = {
        "wanted_Q": np.array(wanted),
        "overshoot_Q": None if overshoot is None else np.full(3, overshoot),
    }
    capped = nearest_exchange_under_cap(offers_Q2K, limits, **weights)
    free = nearest_exchange(offers_Q2K.copy(), **weights)
    for pair, (given_K, taken_K) in enumerate(offers):
        distances = {
            (i, j): distance_of(given_K[i], taken_K[j], wanted[pair], overshoot or 1.0)
            for i in range(4)
            for j in range(4)
        }
        found = distances[tuple(free.offer_Q2[pair].tolist())]
        assert found == min(distances.values())
        assert free.distance_Q[pair] == pytest.approx(found, abs=1e-12)
        allowed = [distances[i, j] for i, j in distances if given_K[i] - taken_K[j] <= room]
        assert capped.distance_Q[pair] == min(allowed, default=np.inf)
        if allowed:
            assert distances[tuple(capped.offer_Q2[pair].tolist())] == min(allowed)


@given(
    costs=st.lists(st.integers(0, 200).map(float), min_size=1, max_size=40),
    parts=st.integers(2, 7),
    equal_counts=st.booleans(),
    has_cap=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_evening_out_keeps_what_it_must_and_never_ends_later(
    costs: list[float], parts: int, seed: int, *, equal_counts: bool, has_cap: bool
):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(costs))
    homes = order % parts if equal_counts else rng.integers(0, parts, len(costs))
    tokens = rng.integers(0, 9, len(costs)).tolist() if has_cap else None
    cap = int(np.bincount(homes, weights=tokens, minlength=parts).max()) if has_cap else 0
    task = task_of(costs, parts=parts, equal_counts=equal_counts, tokens=tokens, cap=cap)
    evened = even_out(task, homes)
    assert task.largest_time(evened) <= task.largest_time(homes)
    assert task.keeps_cap(evened)
    counts = np.bincount(evened, minlength=parts)
    assert counts.sum() == len(costs)
    if equal_counts:
        assert counts.max() - counts.min() <= 1


def test_no_exchange_of_the_last_part_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "_GOOD_ENOUGH", 0.0)
    monkeypatch.setattr(exchange, "_MOST_COMPARISONS", 10**9)
    task = task_of(np.random.default_rng(0).lognormal(0.0, 1.0, 20).tolist(), parts=4)
    arrangement = Arrangement(task, even_out(task, np.arange(20) % 4))
    assert not any(arrangement.lower_the_last(size, turn=0) for size in (1, 2, 3))


def test_late_parts_exchange_with_early_ones_one_pair_each():
    # Parts end at 10, 9, 2 and 1. The first evens out with the fourth, the second with the third, by 1 at best.
    task = task_of([6.0, 5.0, 4.0, 4.0, 2.0, 1.0], parts=4)
    arrangement = Arrangement(task, np.array([0, 1, 0, 1, 2, 3]))
    arrangement.exchange_in_pairs(1, late=5.5, turn=0, idle=0)
    assert sorted(task.works_P(arrangement.homes_S()).tolist()) == [5.0, 5.0, 6.0, 6.0]
