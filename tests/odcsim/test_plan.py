"""Plans: what their microbatches hold, padding, and the invariants that `check` asserts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.plan import Plan

LENGTHS = np.array([5, 1, 7, 2, 4])
# Rank 0 runs samples 2 and 3 together, then 0; rank 1 runs 4; rank 2 nothing; sample 1 is dropped.
PLAN = Plan(ranks=(((2, 3), (0,)), ((4,),), ()), dropped=(1,))


def test_counts_and_order():
    assert PLAN.counts == (2, 1, 0)
    assert list(PLAN.samples()) == [2, 3, 0, 4]
    assert not PLAN.has_equal_counts
    assert Plan(ranks=()).has_equal_counts


def test_padding_goes_last_and_only_where_it_is_missing():
    padded = PLAN.padded()
    assert padded.ranks == (((2, 3), (0,)), ((4,), ()), ((), ()))
    assert padded.dropped == (1,)
    assert padded.has_equal_counts
    assert padded.padded() == padded


def test_loads():
    loads = PLAN.loads(LENGTHS)
    assert loads.counts_D.tolist() == [2, 1, 0]
    assert loads.tokens_DM.tolist() == [[9, 5], [4, 0], [0, 0]]
    assert loads.squared_tokens_DM.tolist() == [[53, 25], [16, 0], [0, 0]]
    assert loads.samples_DM.tolist() == [[2, 1], [1, 0], [0, 0]]


def test_loads_of_padding():
    loads = PLAN.padded().loads(LENGTHS)
    assert loads.counts_D.tolist() == [2, 2, 2]
    assert loads.tokens_DM.tolist() == [[9, 5], [4, 0], [0, 0]]


@pytest.mark.parametrize("plan", [Plan(ranks=()), Plan(ranks=((), ())), Plan(ranks=(((), ()), ((),)))])
def test_loads_without_samples(plan):
    loads = plan.loads(np.array([], dtype=np.int64))
    assert loads.tokens_DM.shape == (len(plan.ranks), max(plan.counts, default=0))
    assert not loads.tokens_DM.any()


def test_squares_do_not_overflow():
    loads = Plan(ranks=(((0, 1),),)).loads(np.array([10**9, 10**9]))
    assert loads.squared_tokens_DM.tolist() == [[2e18]]


@given(st.data())
def test_loads_conserve_what_is_run(data):
    samples = data.draw(st.integers(0, 12))
    lengths = np.array(data.draw(st.lists(st.integers(1, 99), min_size=samples, max_size=samples)), dtype=np.int64)
    place_of = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=samples, max_size=samples))
    ranks = tuple(
        tuple(tuple(i for i in range(samples) if place_of[i] == (rank, position)) for position in range(4))
        for rank in range(3)
    )
    plan = Plan(ranks=ranks)
    plan.check(lengths, ranks=3, cap_tokens=99 * 12)
    loads = plan.loads(lengths)
    assert loads.tokens_DM.sum() == lengths.sum()
    assert loads.squared_tokens_DM.sum() == (lengths**2).sum()
    assert loads.samples_DM.sum() == samples


@pytest.mark.parametrize(
    ("plan", "arguments", "problem"),
    [
        (PLAN, {"ranks": 2}, "3 ranks in the plan, 2 in the cluster"),
        (Plan(ranks=(((0, 1, 2, 3),),)), {"ranks": 1}, "a sample is missing from the plan, or appears twice"),
        (Plan(ranks=(((0, 1, 2, 3, 4, 4),),)), {"ranks": 1}, "a sample is missing from the plan, or appears twice"),
        (Plan(ranks=(((0, 1, 2, 3, 4),),), dropped=(4,)), {"ranks": 1}, "appears twice"),
        (Plan(ranks=(((0, 1, 2, 3, 4, 5),),)), {"ranks": 1}, "a sample is missing from the plan, or appears twice"),
        (PLAN, {"ranks": 3, "cap_tokens": 8}, "rank 0: a microbatch of 9 tokens, cap 8"),
    ],
)
def test_check_finds_what_is_wrong(plan, arguments, problem):
    with pytest.raises(AssertionError, match=problem):
        plan.check(LENGTHS, **arguments)


def test_check_passes_what_is_right():
    PLAN.check(LENGTHS, ranks=3, cap_tokens=9)
    PLAN.padded().check(LENGTHS.tolist(), ranks=3, cap_tokens=9)


# Microbatches that are pulled

QUEUE = Plan(ranks=((), (), ()), dropped=(1,), pulled=((2, 3), (0,), (4,)))


def test_a_queue_has_samples_and_no_counts():
    assert list(QUEUE.samples()) == [2, 3, 0, 4]
    assert QUEUE.counts == (0, 0, 0)
    assert not QUEUE.has_equal_counts
    QUEUE.check(LENGTHS, ranks=3, cap_tokens=9)


def test_padding_leaves_a_queue_as_it_is():
    assert QUEUE.padded() == QUEUE


def test_what_comes_of_pulling_names_ranks():
    assigned = QUEUE.assigned([2, 0, 2])
    assert assigned == Plan(ranks=(((0,),), (), ((2, 3), (4,))), dropped=(1,))
    assigned.check(LENGTHS, ranks=3, cap_tokens=9)
    assert assigned.loads(LENGTHS).tokens_DM.tolist() == [[5, 0], [0, 0], [9, 4]]
    assert PLAN.assigned([]) == PLAN


def test_a_queue_has_no_loads_and_no_other_ranks():
    with pytest.raises(AssertionError, match="once the plan is `assigned`"):
        QUEUE.loads(LENGTHS)
    with pytest.raises(AssertionError, match="ranks of 2 of 3 pulled"):
        QUEUE.assigned([0, 1])


@pytest.mark.parametrize(
    ("plan", "cap_tokens", "problem"),
    [
        (Plan(ranks=((), ((0,),)), pulled=((1, 2), (3, 4))), None, "both on ranks and to be pulled"),
        (Plan(ranks=((), ()), pulled=((1, 2), (3, 4))), None, "a sample is missing from the plan, or appears twice"),
        (Plan(ranks=((), ()), pulled=((0, 1, 2), (3, 4))), 12, "to be pulled: a microbatch of 13 tokens, cap 12"),
    ],
)
def test_check_finds_what_is_wrong_with_a_queue(plan, cap_tokens, problem):
    with pytest.raises(AssertionError, match=problem):
        plan.check(LENGTHS, ranks=2, cap_tokens=cap_tokens)


@given(st.data())
def test_assigning_keeps_samples_and_order(data):
    samples = data.draw(st.permutations(range(data.draw(st.integers(0, 12)))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(samples)), max_size=5)))
    borders = [0, *cuts, len(samples)]
    pulled = tuple(tuple(samples[first:last]) for first, last in pairwise(borders))
    ranks = data.draw(st.integers(1, 4))
    rank_of = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(pulled), max_size=len(pulled)))
    plan = Plan(ranks=((),) * ranks, pulled=pulled).assigned(rank_of)
    plan.check([1] * len(samples), ranks=ranks)
    assert not plan.pulled
    for rank, microbatches in enumerate(plan.ranks):
        assert list(microbatches) == [pulled[place] for place in range(len(pulled)) if rank_of[place] == rank]
