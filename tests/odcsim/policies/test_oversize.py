"""Samples over the cap, four ways."""

from __future__ import annotations

import numpy as np
import pytest

from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError, UnknownNameError
from odcsim.plan import Plan
from odcsim.policies import Oversize, apply_oversize, find_policy, plan_minibatch

LENGTHS_S = np.array([3, 12, 5, 9])
LINEAR = TokenCost(quadratic=0.0, linear=1.0)


@pytest.mark.parametrize(
    ("oversize", "lengths", "dropped", "dropped_tokens", "truncated_tokens"),
    [
        ("truncate", [3, 8, 5, 8], (), 0, 5),
        ("drop", [3, 0, 5, 0], (1, 3), 21, 0),
        ("own-microbatch", [3, 12, 5, 9], (), 0, 0),
    ],
)
def test_result(
    oversize: Oversize, lengths: list[int], dropped: tuple[int, ...], dropped_tokens: int, truncated_tokens: int
):
    result = apply_oversize(LENGTHS_S, cap_tokens=8, oversize=oversize)
    assert result.lengths_S.tolist() == lengths
    assert result.dropped == dropped
    assert (result.dropped_tokens, result.truncated_tokens) == (dropped_tokens, truncated_tokens)
    assert LENGTHS_S.tolist() == [3, 12, 5, 9], "the caller's lengths were changed"


@pytest.mark.parametrize("oversize", ["error", "truncate", "drop", "own-microbatch"])
def test_nothing_happens_to_samples_at_the_cap(oversize: Oversize):
    result = apply_oversize(LENGTHS_S, cap_tokens=12, oversize=oversize)
    assert result.lengths_S.tolist() == LENGTHS_S.tolist()
    assert (result.dropped, result.dropped_tokens, result.truncated_tokens) == ((), 0, 0)


@pytest.mark.parametrize(
    ("cap_tokens", "others"),
    [(9, ""), (8, " (and 1 more sample is over it)"), (4, " (and 2 more samples are over it)")],
)
def test_error_names_sample_length_cap_and_ways_out(cap_tokens: int, others: str):
    with pytest.raises(PolicyError) as caught:
        apply_oversize(LENGTHS_S, cap_tokens=cap_tokens, oversize="error")
    assert str(caught.value) == (
        f"oversize: 'error': sample 1 has 12 tokens, over the cap of {cap_tokens} tokens on a microbatch{others}; "
        "raise the cap, or choose truncate, drop or own-microbatch"
    )


def test_an_unknown_way_is_named():
    with pytest.raises(UnknownNameError, match=r"'trunc'.*did you mean 'truncate'\?"):
        apply_oversize(LENGTHS_S, cap_tokens=8, oversize="trunc")


def test_a_plan_after_dropping_speaks_of_the_whole_minibatch():
    answer = plan_minibatch(find_policy("local-sort"), LENGTHS_S, ranks=2, cap_tokens=8, cost=LINEAR, oversize="drop")
    assert answer.plan == Plan(ranks=(((0,),), ((2,),)), dropped=(1, 3))
    assert answer.lengths_S.tolist() == [3, 0, 5, 0]
    assert answer.plan.loads(answer.lengths_S).tokens_DM.tolist() == [[3], [5]]


def test_dropping_everything_leaves_an_empty_plan():
    answer = plan_minibatch(
        find_policy("lb-mini"), np.array([9, 9]), ranks=2, cap_tokens=8, cost=LINEAR, oversize="drop"
    )
    assert answer.plan == Plan(ranks=((), ()), dropped=(0, 1))
    assert answer.dropped_tokens == 18


def test_an_oversized_sample_is_alone_and_shares_its_rank_by_cost():
    # 12 alone weighs as much as 3+9 (in 2 microbatches, 9 being over the cap as well) and 5 evens nothing out.
    answer = plan_minibatch(
        find_policy("lb-mini"), LENGTHS_S, ranks=2, cap_tokens=8, cost=LINEAR, oversize="own-microbatch"
    )
    assert answer.plan == Plan(ranks=(((1,), (0,)), ((3,), (2,))))
