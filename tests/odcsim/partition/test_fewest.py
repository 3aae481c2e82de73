"""Packing a rank's samples into few microbatches."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.partition.bounds import count_fewest_microbatches
from odcsim.partition.fewest import FewestPacker, pack_fewest

TOKENS = st.lists(st.integers(1, 100), max_size=60)


@settings(deadline=None)
@given(tokens=TOKENS, cap_tokens=st.integers(50, 250))
def test_every_sample_once_under_the_cap(tokens, cap_tokens):
    packed = pack_fewest(range(len(tokens)), tokens_S=tokens, cap_tokens=cap_tokens)
    assert sorted(chain(*packed)) == list(range(len(tokens)))
    for microbatch in packed:
        assert list(microbatch) == sorted(microbatch)
        assert sum(tokens[sample] for sample in microbatch) <= cap_tokens or len(microbatch) == 1
    assert len(packed) >= count_fewest_microbatches(tokens, cap_tokens=cap_tokens)
    # Two microbatches that would fit into one are never left apart.
    loads = sorted(min(sum(tokens[sample] for sample in microbatch), cap_tokens) for microbatch in packed)
    assert len(loads) < 2 or loads[0] + loads[1] > cap_tokens


@pytest.mark.parametrize(
    ("tokens", "fewest"),
    [
        ([], 0),
        ([10], 1),
        ([11], 1),
        ([11, 1], 2),  # a sample over the cap is alone
        ([6, 6, 6], 3),
        ([5] * 4, 2),
        ([4, 4, 3, 3, 3, 3], 2),  # 4+3+3 twice, where the longest first would put 4 to 4: found by differencing
        ([7, 5, 4, 3, 3, 3, 3, 2], 3),  # 7+3, 5+3+2, 4+3+3: all full
    ],
)
def test_as_few_as_there_can_be(tokens, fewest):
    assert len(pack_fewest(range(len(tokens)), tokens_S=tokens, cap_tokens=10)) == fewest


def test_a_part_of_the_samples():
    assert sorted(pack_fewest([4, 1], tokens_S=[9, 5, 9, 9, 5], cap_tokens=10)) == [(1, 4)]


def test_a_set_is_packed_once():
    packer = FewestPacker([5, 6, 7], cap_tokens=12)
    assert packer.pack([2, 0]) is packer.pack([0, 2])
    assert packer.pack([0, 2]) == pack_fewest([0, 2], tokens_S=[5, 6, 7], cap_tokens=12)


def test_many_samples_of_one_rank_are_packed_without_a_deep_search():
    tokens = [7, 8, 9] * 2000
    assert len(pack_fewest(range(6000), tokens_S=tokens, cap_tokens=24)) == 2000
