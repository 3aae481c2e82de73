"""Bins of whole samples: few of them, none over, and every token accounted for."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.drop_in import pack_indices
from odcsim.errors import InputError, PolicyError, UnknownNameError
from odcsim.lengths import read_trace
from odcsim.partition.bounds import count_fewest_microbatches


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), max_size=60),
    seq_length=st.integers(1, 70),
    oversize=st.sampled_from(["truncate", "drop", "own-microbatch"]),
)
def test_every_sample_and_every_token_is_accounted_for(lengths, seq_length, oversize):
    packing = pack_indices(lengths, seq_length, oversize=oversize)
    over = [sample for sample, tokens in enumerate(lengths) if tokens > seq_length]
    dropped = over if oversize == "drop" else []
    assert packing.dropped == dropped
    assert sorted([*chain.from_iterable(packing.bins), *dropped]) == list(range(len(lengths)))
    for samples, tokens in zip(packing.bins, packing.seq_lengths, strict=True):
        assert samples == sorted(samples)
        assert tokens == [packing.lengths[sample] for sample in samples]
        assert sum(tokens) <= seq_length or (oversize == "own-microbatch" and samples[0] in over and len(samples) == 1)
    assert packing.bins == sorted(packing.bins)
    counted = packing.conservation
    assert (counted.samples, counted.tokens) == (len(lengths), sum(lengths))
    assert counted.dropped_samples == len(dropped)
    assert counted.run_tokens == sum(chain.from_iterable(packing.seq_lengths))
    assert counted.tokens == counted.run_tokens + counted.dropped_tokens + counted.truncated_tokens
    assert packing == pack_indices(np.array(lengths, dtype=np.int64), seq_length, oversize=oversize)


def test_the_fullest_bin_with_room_takes_the_next_longest():
    # 7 alone leaves 3, 6 leaves 4; the 4 fits the second exactly, the 3 the first.
    assert pack_indices([3, 7, 4, 6], 10).bins == [[0, 1], [2, 3]]
    # Fuller first: 8 leaves 2 and 5 leaves 5, so a 2 goes with the 8.
    assert pack_indices([8, 5, 2], 10).bins == [[0, 2], [1]]


def test_one_sample_a_bin_and_all_in_one():
    assert pack_indices([6, 6, 6], 10).bins == [[0], [1], [2]]
    assert pack_indices([6, 6, 6], 18).bins == [[0, 1, 2]]
    assert pack_indices([5], 5).bins == [[0]]


def test_no_samples():
    packing = pack_indices([], 10)
    assert (packing.bins, packing.seq_lengths, packing.slots, packing.filled) == ([], [], 0, 1.0)


def test_slots_are_those_of_the_rows_there_are():
    packing = pack_indices([10, 6, 3, 25], 10, oversize="own-microbatch")
    assert packing.bins == [[0], [1, 2], [3]]
    assert packing.slots == 10 + 10 + 25
    assert packing.filled == pytest.approx(44 / 45)
    dropping = pack_indices([10, 6, 3, 25], 10, oversize="drop")
    assert (dropping.slots, dropping.filled) == (20, 19 / 20)


def count_best_fit(lengths, seq_length):
    """Bins that best fit, the longest first, needs."""
    rooms = np.empty(0, dtype=np.int64)
    for tokens in sorted(lengths, reverse=True):
        left = np.where(rooms >= tokens, rooms - tokens, seq_length + 1)
        if left.size and left.min() <= seq_length:
            rooms[left.argmin()] -= tokens
        else:
            rooms = np.append(rooms, seq_length - tokens)
    return rooms.size


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 30), max_size=60), seq_length=st.integers(30, 70))
def test_bins_are_never_more_than_best_fit_needs(lengths, seq_length):
    assert len(pack_indices(lengths, seq_length).bins) <= count_best_fit(lengths, seq_length)


@pytest.mark.parametrize(
    "name", ["gsm8k_train_sft", "arena_hard_v2_o3mini_chat", "qmsum_train_sft", "synthetic_longalign_10k_qwen"]
)
@pytest.mark.parametrize("rows_of_longest", [1, 2])
def test_bins_are_next_to_the_fewest(traces, name, rows_of_longest):
    lengths = read_trace(traces / f"{name}.csv").lengths_S
    seq_length = int(lengths.max()) * rows_of_longest
    bins = len(pack_indices(lengths, seq_length).bins)
    assert bins <= 1.03 * count_fewest_microbatches(lengths.tolist(), cap_tokens=seq_length)


def test_bins_are_fewer_than_best_fit_needs(traces):
    lengths = read_trace(traces / "gsm8k_train_sft.csv").lengths_S
    assert len(pack_indices(lengths, 1092).bins) < 0.99 * count_best_fit(lengths, 1092)


@pytest.mark.parametrize(
    ("given_", "error", "message"),
    [
        ({"seq_length": 0}, InputError, "seq_length: 0: must be a whole number of 1 or more"),
        ({"lengths": [1, 0]}, InputError, r"lengths\[1\]: 0: must be a whole number from 1"),
        ({"oversize": "split"}, UnknownNameError, "oversize: 'split': unknown way"),
        ({"seq_length": 2}, PolicyError, "sample 2 has 3 tokens, over the cap of 2 tokens"),
    ],
)
def test_what_is_not_allowed_is_named(given_, error, message):
    arguments = {"lengths": [1, 2, 3], "seq_length": 4, **given_}
    with pytest.raises(error, match=message):
        pack_indices(arguments.pop("lengths"), arguments.pop("seq_length"), **arguments)
