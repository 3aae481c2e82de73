"""Each published policy on minibatches small enough to work out by hand, and their speed on large ones."""

from __future__ import annotations

import time

import numpy as np
import pytest

from odcsim.costs.token_cost import TokenCost
from odcsim.plan import Plan
from odcsim.policies import find_policy

LINEAR = TokenCost(quadratic=0.0, linear=1.0)
QUADRATIC = TokenCost(quadratic=1.0, linear=0.0)


def plan(name: str, lengths: list[int], *, ranks: int, cap_tokens: int, cost: TokenCost = LINEAR) -> Plan:
    return find_policy(name).plan(np.array(lengths), ranks=ranks, cap_tokens=cap_tokens, cost=cost)


def test_local_sort_deals_out_and_sorts():
    assert plan("local-sort", [5, 3, 9, 1, 7, 2, 8], ranks=2, cap_tokens=9) == Plan(
        ranks=(((0,), (4,), (6,), (2,)), ((3,), (5,), (1,), ()))
    )


def test_local_sort_keeps_ties_in_order():
    assert plan("local-sort", [4, 4, 4], ranks=1, cap_tokens=4) == Plan(ranks=(((0,), (1,), (2,)),))


def test_lb_micro_balances_ranks_then_microbatches():
    # Ranks 6+3+2 = 11 and 5+4+1 = 10, no swap of whole numbers can lower the 11. Two microbatches each, 6 | 3+2 and
    # 5 | 4+1, the heavier first.
    assert plan("lb-micro", [6, 5, 4, 3, 2, 1], ranks=2, cap_tokens=7) == Plan(ranks=(((0,), (3, 4)), ((1,), (2, 5))))


def test_lb_micro_refines_by_swaps():
    # Differencing alone leaves 9+3+1 = 13 against 4+3+2 = 9. No swap moves the 2 that would even them; 3 for 2 moves 1.
    assert plan("lb-micro", [9, 4, 3, 3, 2, 1], ranks=2, cap_tokens=30) == Plan(ranks=(((0, 4, 5),), ((1, 2, 3),)))


def test_lb_micro_agrees_on_the_count_that_the_neediest_rank_needs():
    # 10+1 breaks the cap of 10, so both ranks run two microbatches, though 1+1 would fit one.
    assert plan("lb-micro", [10, 1, 1, 1], ranks=2, cap_tokens=10).counts == (2, 2)


def test_lb_micro_pads_a_rank_of_fewer_samples_than_the_agreed_count():
    # Three samples of 8 under a cap of 8 on two ranks: one rank runs two, the other one and a padding.
    assert plan("lb-micro", [8, 8, 8], ranks=2, cap_tokens=8) == Plan(ranks=(((0,), (1,)), ((2,), ())))


def test_lb_mini_leaves_sample_counts_free():
    assert plan("lb-mini", [10, 1, 1, 1], ranks=2, cap_tokens=10) == Plan(ranks=(((0,),), ((1, 2, 3),)))


def test_lb_mini_leaves_microbatch_counts_free():
    # By squared length 7 weighs 49 and four of 3 weigh 36; those are 12 tokens, two microbatches.
    assert plan("lb-mini", [7, 3, 3, 3, 3], ranks=2, cap_tokens=7, cost=QUADRATIC) == Plan(
        ranks=(((0,),), ((1, 4), (2, 3)))
    )


def test_verl_native_balances_by_its_own_cost():
    # Spreads of the pairs (2K, 18K), (20K, 30K), (42K, 48K) by 24576 s + s^2, in millions: 713, 746, 687. The first two
    # merge to 20K+18K and 30K+2K (1658 and 1690), then 48K joins the former. By s alone or s^2 alone the order differs.
    lengths = [48_000, 42_000, 30_000, 20_000, 18_000, 2_000]
    expected = Plan(ranks=(((0, 3, 4),), ((1, 2, 5),)))
    for cost in (LINEAR, QUADRATIC):
        assert plan("verl-native", lengths, ranks=2, cap_tokens=100_000, cost=cost) == expected
    assert plan("lb-micro", lengths, ranks=2, cap_tokens=100_000, cost=LINEAR) != expected


def test_verl_native_does_not_refine():
    assert plan("verl-native", [9, 4, 3, 3, 2, 1], ranks=2, cap_tokens=30) == Plan(ranks=(((0, 2, 5),), ((1, 3, 4),)))


@pytest.mark.parametrize("name", ["local-sort", "lb-micro", "lb-mini", "verl-native"])
@pytest.mark.parametrize(("samples", "ranks", "limit_s"), [(64, 8, 0.02), (1024, 64, 0.5), (4096, 128, 2.0)])
def test_speed(name: str, samples: int, ranks: int, limit_s: float):
    # Limits are about thirty times what a machine at rest takes: 0.7 ms, 9 ms, 55 ms.
    lengths_S = np.random.default_rng(0).lognormal(9.4, 0.9, samples).clip(16, 65536).astype(np.int64)
    cost = TokenCost(quadratic=1.94e-9, linear=8.16e-5, constant=0.667)
    took_s = []
    for _ in range(3):
        start = time.perf_counter()
        find_policy(name).plan(lengths_S, ranks=ranks, cap_tokens=65536, cost=cost)
        took_s.append(time.perf_counter() - start)
    assert min(took_s) < limit_s
