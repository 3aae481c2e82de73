"""Lists of indices as verl's callers expect them, for any input."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.drop_in import agreed_micro_batch_indices, micro_batch_indices, seqlen_balanced_partitions, token_cost
from odcsim.errors import InputError

TOKENS_ALONE = (0.0, 1.0, 0.0)
LENGTHS = st.lists(st.integers(1, 100), max_size=24)


def sums_of(lists, values):
    return [sum(values[item] for item in items) for items in lists]


# seqlen_balanced_partitions


@settings(deadline=None)
@given(
    values=st.lists(st.one_of(st.integers(0, 9), st.integers(0, 10**12)), max_size=40),
    parts=st.integers(1, 12),
    equal_size=st.booleans(),
)
def test_partitions_are_what_callers_assert(values, parts, equal_size):
    lists = seqlen_balanced_partitions(values, parts, equal_size)
    assert len(lists) == parts
    assert sorted(chain.from_iterable(lists)) == list(range(len(values)))
    assert all(items == sorted(items) for items in lists)
    assert sum(map(bool, lists)) == min(parts, len(values)), "a list is empty without need"
    if equal_size:
        sizes = set(map(len, lists))
        assert max(sizes) - min(sizes) <= 1
    assert all(one >= other for one, other in pairwise(sums_of(lists, values)))
    assert lists == seqlen_balanced_partitions(np.array(values, dtype=np.float64), parts, equal_size)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_sum_is_next_to_the_mean(seed):
    values = np.random.default_rng(seed).lognormal(8.0, 0.7, 128).astype(int)
    for equal_size in (False, True):
        sums = sums_of(seqlen_balanced_partitions(values, 8, equal_size), values)
        assert max(sums) < 1.002 * values.sum() / 8


def test_values_are_balanced_as_they_come():
    """Callers pass work, not lengths: nothing is squared here."""
    assert sums_of(seqlen_balanced_partitions([6, 3, 3, 4, 2, 6], 2), [6, 3, 3, 4, 2, 6]) == [12, 12]


def test_nothing_is_left_empty_where_there_are_items_enough():
    assert sorted(seqlen_balanced_partitions([5, 0, 0], 3)) == [[0], [1], [2]]
    assert sorted(map(len, seqlen_balanced_partitions([0, 0, 0, 0], 3))) == [1, 1, 2]


def test_fewer_items_than_lists():
    assert seqlen_balanced_partitions([1, 3], 4) == [[1], [0], [], []]
    assert seqlen_balanced_partitions([], 2) == [[], []]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], 0), "k_partitions: 0: must be a whole number of 1 or more"),
        (([1, -2], 2), r"seqlen_list\[1\]: -2: must be a finite number of 0 or more"),
        (([1, float("nan")], 2), r"seqlen_list\[1\]: nan: must be a finite number of 0 or more"),
        (([1, "long"], 2), r"seqlen_list\[1\]: 'long': must be a finite number of 0 or more"),
        ((None, 2), "seqlen_list: None: must be values in one row"),
    ],
)
def test_what_cannot_be_balanced_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        seqlen_balanced_partitions(*arguments)


# micro_batch_indices, agreed_micro_batch_indices


@settings(deadline=None)
@given(
    ranks=st.lists(LENGTHS, min_size=1, max_size=4),
    cap_tokens=st.integers(50, 250),
    multiple_of=st.integers(1, 3),
    fewest=st.integers(0, 5),
)
def test_microbatches_of_all_ranks(ranks, cap_tokens, multiple_of, fewest):
    how = {"num_batches_divided_by": multiple_of, "min_num_micro_batch": fewest, "allow_oversize": True}
    agreed = agreed_micro_batch_indices(ranks, cap_tokens, **how)
    assert len(agreed) == len(ranks)
    counts = {len(microbatches) for microbatches in agreed}
    assert len(counts) == 1, "ranks would wait for each other"
    (count,) = counts
    assert count % multiple_of == 0
    assert count >= fewest
    cost = token_cost()
    for lengths, microbatches in zip(ranks, agreed, strict=True):
        assert sorted(chain.from_iterable(microbatches)) == list(range(len(lengths)))
        assert sum(map(bool, microbatches)) == min(count, len(lengths)), "a microbatch is empty without need"
        for samples in microbatches:
            assert samples == sorted(samples)
            assert len(samples) == 1 or sum(lengths[sample] for sample in samples) <= cap_tokens
        costs = sums_of(microbatches, cost.sample_costs_S(np.array(lengths, dtype=np.int64)))
        assert all(one >= other for one, other in pairwise(costs))
    # Each rank alone needs no more.
    for lengths in ranks:
        assert len(micro_batch_indices(lengths, cap_tokens, **how)) <= count


def test_as_few_as_the_cap_allows_by_descending_cost():
    assert micro_batch_indices([4, 6, 1, 3], 8) == [[1, 2], [0, 3]]
    assert micro_batch_indices([4, 6, 1, 3], 14) == [[0, 1, 2, 3]]
    # 4 + 4 and 3 + 3 + 2 is the only way to get by with two.
    assert micro_batch_indices([4, 4, 3, 3, 2], 8, cost=TOKENS_ALONE) == [[0, 1], [2, 3, 4]]


def test_cost_decides_the_parts_and_tokens_the_cap():
    lengths = [100, 60, 60, 60, 60]

    def lengths_in(cap_tokens, cost):
        return [
            [lengths[sample] for sample in samples] for samples in micro_batch_indices(lengths, cap_tokens, cost=cost)
        ]

    # A sample of 100 costs as much as 2.8 of 60 where only attention counts, and as 1.7 where only tokens do.
    assert lengths_in(240, (1.0, 0.0, 0.0)) == [[100, 60], [60, 60, 60]]
    assert lengths_in(240, TOKENS_ALONE) == [[60, 60, 60], [100, 60]]
    # Two would need three of 60 in one.
    assert lengths_in(170, (1.0, 0.0, 0.0)) == [[100], [60, 60], [60, 60]]


def test_as_many_as_are_asked_for():
    assert micro_batch_indices([3, 2, 1], 8, min_num_micro_batch=2) == [[0], [1, 2]]
    assert micro_batch_indices([3, 2, 1], 8, num_batches_divided_by=2) == [[0], [1, 2]]
    assert micro_batch_indices([3, 2], 8, min_num_micro_batch=3) == [[0], [1], []]
    assert micro_batch_indices([3, 2, 1], 3, num_batches_divided_by=4) == [[0], [1], [2], []]
    # 37 tokens would go into two of 19, these five samples do not.
    assert len(micro_batch_indices([14, 11, 6, 3, 3], 19)) == 3
    assert len(micro_batch_indices([14, 11, 6, 3, 3], 19, num_batches_divided_by=2)) == 4
    assert micro_batch_indices([], 8) == []
    assert micro_batch_indices([], 8, min_num_micro_batch=2) == [[], []]


def test_ranks_agree_without_talking():
    """hiyouga/EasyR1#11004, #11012: the agreed count exceeded a light rank's samples; it asserted, the others hung."""
    assert agreed_micro_batch_indices([[8, 7, 6], [2]], 8) == [[[0], [1], [2]], [[0], [], []]]
    assert agreed_micro_batch_indices([[], [2]], 8) == [[[]], [[0]]]
    assert agreed_micro_batch_indices([[], []], 8) == [[], []]
    assert agreed_micro_batch_indices([], 8) == []


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"max_token_len": 0}, "max_token_len: 0: must be a whole number of 1 or more"),
        ({"num_batches_divided_by": 0}, "num_batches_divided_by: 0: must be a whole number of 1 or more"),
        ({"min_num_micro_batch": -1}, "min_num_micro_batch: -1: must be a whole number of 0 or more"),
        ({"lengths": [1, 0]}, r"lengths\[1\]: 0: must be a whole number from 1"),
        ({"cost": (1.0,)}, "cost: .*must be a TokenCost"),
    ],
)
def test_what_is_not_allowed_is_named(given_, message):
    arguments = {"lengths": [1, 2], "max_token_len": 8, **given_}
    with pytest.raises(InputError, match=message):
        micro_batch_indices(arguments.pop("lengths"), arguments.pop("max_token_len"), **arguments)


def test_the_rank_of_a_sample_over_the_cap_is_named():
    with pytest.raises(InputError, match=r"lengths_of_ranks\[1\]\[2\]: 9: the sample exceeds the cap of 8 tokens"):
        agreed_micro_batch_indices([[1, 2], [3, 4, 9]], 8)
