"""What plans take, worked out plainly: the yardstick of the tests of policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.costs.token_cost import TokenCost
from odcsim.plan import Microbatch, Plan

GOLDEN_COST = TokenCost(quadratic=1.982122 / 32000**2, linear=2.611821 / 32000, constant=0.666759)


def microbatch_s(microbatch: Microbatch, lengths_S: np.ndarray, cost: TokenCost) -> float:
    lengths = [int(lengths_S[sample]) for sample in microbatch]
    return sum(cost.quadratic * length**2 + cost.linear * length for length in lengths) + cost.constant


def steps_s(plan: Plan, lengths_S: np.ndarray, cost: TokenCost) -> list[float]:
    """Each step's longest microbatch."""
    assert plan.has_equal_counts
    return [
        max(microbatch_s(microbatch, lengths_S, cost) for microbatch in step) for step in zip(*plan.ranks, strict=True)
    ]


def rank_times_s(
    plan: Plan, lengths_S: np.ndarray, cost: TokenCost, *, speeds: Sequence[float] | None = None
) -> list[float]:
    """What each rank computes."""
    totals = [sum(microbatch_s(microbatch, lengths_S, cost) for microbatch in rank) for rank in plan.ranks]
    return [total / speed for total, speed in zip(totals, speeds or [1.0] * len(totals), strict=True)]
