"""A rank's samples under the token cap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odcsim.partition.bounds import count_fewest_microbatches
from odcsim.partition.packing import pack_rank, pack_ranks_alike


def pack(tokens: list[int], cap_tokens: int, costs: list[float] | None = None) -> tuple[tuple[int, ...], ...]:
    return pack_rank(
        range(len(tokens)), costs_S=costs or [float(t) for t in tokens], tokens_S=tokens, cap_tokens=cap_tokens
    )


def test_as_few_as_the_tokens_need_by_descending_cost():
    # 14 tokens under 8 need 2: differencing makes 6+1 and 4+3.
    assert pack([4, 6, 1, 3], 8) == ((0, 3), (1, 2))
    assert pack([6, 3, 2, 1], 8) == ((0,), (1, 2, 3))


def test_one_more_when_differencing_breaks_the_cap():
    # 16 tokens fit two microbatches of 8 as 4+4 and 3+3+2, but differencing makes 4+3+2 = 9. Three get 6, 6 and 4.
    assert pack([4, 4, 3, 3, 2], 8) == ((0, 4), (2, 3), (1,))


def test_cost_decides_the_parts_and_tokens_the_cap():
    # By cost the three short samples belong together, by tokens they do not fit.
    costs = [100.0, 1.0, 1.0, 1.0]
    assert pack([5, 4, 4, 4], 12, costs) == ((0,), (1, 2, 3))
    assert pack([5, 4, 4, 4], 11, costs) == ((0,), (1, 3), (2,))


def test_a_sample_over_the_cap_is_alone_and_the_others_are_packed_without_it():
    with_giant = pack([30, 6, 3, 2, 1], 8)
    without = pack([6, 3, 2, 1], 8)
    assert with_giant == ((0,), *(tuple(sample + 1 for sample in microbatch) for microbatch in without))


def test_no_samples_no_microbatches():
    assert pack([], 8) == ()
    assert pack_ranks_alike([[], []], costs_S=[], tokens_S=[], cap_tokens=8) == ((), ())


def test_a_rank_with_fewer_samples_than_the_agreed_count_has_fewer_microbatches():
    tokens = [8, 8, 8, 1]
    packed = pack_ranks_alike([[0, 1, 2], [3]], costs_S=[8.0, 8.0, 8.0, 1.0], tokens_S=tokens, cap_tokens=8)
    assert packed == (((0,), (1,), (2,)), ((3,),))


def test_the_count_is_agreed_between_ranks():
    # Alone, the second rank would run one microbatch of 4 tokens.
    tokens = [7, 7, 2, 2]
    packed = pack_ranks_alike([[0, 1], [2, 3]], costs_S=[7.0, 7.0, 2.0, 2.0], tokens_S=tokens, cap_tokens=8)
    assert packed == (((0,), (1,)), ((2,), (3,)))


@given(tokens=st.lists(st.integers(1, 30), max_size=24), cap_tokens=st.integers(1, 40), quadratic=st.booleans())
def test_invariants(tokens: list[int], cap_tokens: int, *, quadratic: bool):
    costs = [float(t * t) if quadratic else float(t) for t in tokens]
    microbatches = pack(tokens, cap_tokens, costs)
    assert sorted(sample for microbatch in microbatches for sample in microbatch) == list(range(len(tokens)))
    for microbatch in microbatches:
        assert microbatch
        assert len(microbatch) == 1 or sum(tokens[sample] for sample in microbatch) <= cap_tokens
    weights = [sum(costs[sample] for sample in microbatch) for microbatch in microbatches]
    assert weights == sorted(weights, reverse=True)
    assert len(microbatches) >= count_fewest_microbatches(tokens, cap_tokens=cap_tokens)
