"""Troubles that users of other balancers and packers reported, put to the functions that take their places.

What holds for every policy is in `tests/odcsim/policies/test_field_cases.py`, for the sampler in
`tests/odcrt/test_sampler.py`.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from odcsim.drop_in import (
    agreed_micro_batch_indices,
    micro_batch_indices,
    pack_indices,
    plan_lengths,
    seqlen_balanced_partitions,
)
from odcsim.errors import InputError, PolicyError


@pytest.mark.parametrize(("samples", "parts"), [(206, 4), (249, 2)])
def test_counts_that_the_number_of_parts_does_not_divide(samples, parts):
    """verl#4152, verl#473, miles#1356 ("206 % 4 != 0"), NeMo-RL#648 ("249 not a multiple of 2")."""
    values = np.random.default_rng(samples).integers(1, 8193, samples)
    lists = seqlen_balanced_partitions(values, parts, equal_size=True)
    assert sorted(map(len, lists)) == sorted(samples // parts + (part < samples % parts) for part in range(parts))
    sums = [int(values[items].sum()) for items in lists]
    # Sizes differ, sums hardly: the lists with an item more hold shorter ones.
    assert max(sums) < 1.001 * values.sum() / parts


def test_the_cap_is_a_hard_postcondition():
    """verl#7553: eight samples of 7 tokens under a cap of 8 came out with 14 tokens in one microbatch."""
    assert micro_batch_indices([7] * 8, 8) == [[sample] for sample in range(8)]
    # Two ranks of 4 + 3 x 3: ceil(13 / 8) = 2 microbatches would do by the tokens, if 4 + 3 and 3 + 3 did.
    assert agreed_micro_batch_indices([[4, 3, 3, 3], [7, 7]], 7) == [[[0, 1], [2, 3]], [[0], [1]]]


@pytest.mark.timeout(20)
def test_a_sample_over_the_cap_is_said_and_never_looped_over():
    """OpenRLHF#1280, SkyRL#1477: one sample over the cap; a knapsack packer elsewhere never returned."""
    with pytest.raises(InputError, match=r"lengths\[0\]: 21: the sample exceeds the cap of 20 tokens"):
        micro_batch_indices([21], 20)
    assert micro_batch_indices([20], 20) == [[0]]
    assert micro_batch_indices([21, 10, 10], 20, allow_oversize=True) == [[0], [1, 2]]
    with pytest.raises(PolicyError, match="sample 0 has 21 tokens, over the cap of 20 tokens"):
        pack_indices([21], 20)
    assert pack_indices([21, 10, 10], 20, oversize="own-microbatch").bins == [[0], [1, 2]]
    assert pack_indices([21] * 1000, 20, oversize="drop").bins == []


def test_fewer_samples_than_parts():
    """slime#1823, reverted since: fewer samples than parts failed an assertion."""
    assert seqlen_balanced_partitions([30, 50, 40], 8) == [[1], [2], [0], [], [], [], [], []]
    assert seqlen_balanced_partitions([30, 50, 40], 8, equal_size=True) == [[1], [2], [0], [], [], [], [], []]


def test_the_cap_counts_effective_lengths():
    """verl#3088: 2040 tokens in rows that are padded to 4096 were refused under a cap of 2048."""
    assert micro_batch_indices([300, 500, 900, 340], 2048) == [[0, 1, 2, 3]]


def test_nine_items_over_four_parts():
    """verl#6869: 9 over 4 came out as 3, 3, 3, 0."""
    assert sorted(map(len, seqlen_balanced_partitions([5] * 9, 4, equal_size=True))) == [2, 2, 2, 3]
    assert sorted(map(len, seqlen_balanced_partitions([5] * 9, 4))) == [2, 2, 2, 3]


@pytest.mark.parametrize("rows_of_8192", [1, 2, 4])
def test_an_odd_row_packs_as_well_as_an_even_one(rows_of_8192):
    """trl#3887: 3000 samples of 4096 tokens give or take 512 filled 1524, 795 and 385 rows of 8192, 16384 and 32768
    tokens; with one token more to a row nothing was packed, 3000 rows came out.
    """
    lengths = np.random.default_rng(0).normal(4096, 512, 3000).astype(int).clip(100, 8192)
    even = pack_indices(lengths, 8192 * rows_of_8192)
    odd = pack_indices(lengths, 8192 * rows_of_8192 + 1)
    # Other samples of the same kind need up to 2% more or fewer.
    assert len(odd.bins) <= len(even.bins) <= 1.02 * {1: 1524, 2: 795, 4: 385}[rows_of_8192]
    # Where more than two go into a row, next to nothing is left free; 795 rows of 16384 tokens left 6%.
    assert rows_of_8192 == 1 or even.filled > 0.99
    assert sum(map(sum, odd.seq_lengths)) == lengths.sum()


def test_tokens_are_cut_off_only_when_asked_and_then_counted():
    """trl#4554, trl#4632: of samples of 4, 2, 3 and 1 tokens in rows of 3, one token was missing without a word."""
    with pytest.raises(PolicyError, match="sample 0 has 4 tokens, over the cap of 3 tokens"):
        pack_indices([4, 2, 3, 1], 3)
    cut = pack_indices([4, 2, 3, 1], 3, oversize="truncate")
    assert (cut.bins, cut.seq_lengths) == ([[0], [1, 3], [2]], [[3], [2, 1], [3]])
    assert (cut.conservation.tokens, cut.conservation.run_tokens, cut.conservation.truncated_tokens) == (10, 9, 1)
    dropped = pack_indices([4, 2, 3, 1], 3, oversize="drop")
    assert (dropped.bins, dropped.dropped, dropped.conservation.dropped_tokens) == ([[1, 3], [2]], [0], 4)
    # trl#5075: nothing is ever split, which leaves the rest of a conversation without its beginning.
    whole = pack_indices([4, 2, 3, 1], 3, oversize="own-microbatch")
    assert (whole.bins, whole.conservation.run_tokens) == ([[0], [1, 3], [2]], 10)


def test_slots_count_the_rows_that_are_left():
    """axolotl#3848, axolotl#3861: slots still counted rows that had been dropped, or crashed when none was left."""
    packing = pack_indices([8, 5, 4, 12], 8, oversize="drop")
    assert (packing.bins, packing.slots, packing.filled) == ([[0], [1], [2]], 24, 17 / 24)
    nothing_left = pack_indices([12, 12], 8, oversize="drop")
    assert (nothing_left.bins, nothing_left.slots, nothing_left.filled) == ([], 0, 1.0)
    assert nothing_left.conservation.dropped_tokens == 24


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
def test_whole_plans_conserve_samples_whatever_their_number(sync):
    """verl#4152, slime#1823: the same for whole plans, from none to many, over a number of ranks that divides few."""
    for samples in (0, 1, 6, 7, 8, 50):
        lengths = np.random.default_rng(samples).integers(1, 8193, samples)
        plan = plan_lengths(lengths, ranks=7, cap_tokens=8192, sync=sync)
        assert sorted(plan.samples()) == list(range(samples))
        assert sum(len(microbatch) for microbatch in chain.from_iterable(plan.ranks)) == samples
