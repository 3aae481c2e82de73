"""What keeps a way of training from being faster: compute, the longest sequence, imbalance, communication, fixed steps.

Legend: N minibatches, S samples of one, D ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.bounds import count_fewest_microbatches
from odcsim.policies import apply_oversize
from odcsim.resolve import ResolvedScenario
from odcsim.results import CaseResult

__all__ = ["Limit", "Limits", "LongestSequence", "limits_of", "longest_sequence"]

Limit = Literal["compute", "longest sequence", "imbalance", "communication", "fixed steps"]

# Where less of rank-time is lost, there is little to win but by computing less.
_LITTLE_LOST = 0.05
# The longest sequence is to blame where it alone outlasts an even share in so many minibatches.
_MOSTLY = 0.5


@dataclass(frozen=True)
class LongestSequence:
    """The longest sequence of a minibatch against an even share of its compute (its cost over the sum of speeds).

    Attributes:
        tokens: of the longest of all.
        mean_share: its compute alone over the even share, mean over minibatches.
        outlasting_share: share of minibatches in which it takes longer than the even share, so that other ranks wait
            for it whatever the plan.
    """

    tokens: int
    mean_share: float
    outlasting_share: float


@dataclass(frozen=True)
class Limits:
    """What limits one way of training.

    Attributes:
        limit: the largest of its losses, in a word.
        lost_share: share of rank-time that is neither compute nor the optimizer's step.
        bound_ratio: mean minibatch time over the lower bound that no plan can beat under its sync.
        any_sync_ratio: under fsdp, the same over the bound that no plan can beat under any sync; None under odc, whose
            bound that is.
    """

    limit: Limit
    lost_share: float
    bound_ratio: float
    any_sync_ratio: float | None


def longest_sequence(resolved: ResolvedScenario, lengths_NS: IntArray) -> LongestSequence:
    """What the longest sequences weigh in minibatches.

    Args:
        resolved: the scenario.
        lengths_NS: as they are drawn, in tokens.
    """
    cost, speeds_D = resolved.cost, resolved.speeds_D
    shares = []
    for lengths_S in lengths_NS:
        run_S = _run_S(resolved, lengths_S)
        if run_S.size:
            fewest = count_fewest_microbatches(run_S.tolist(), cap_tokens=resolved.scenario.workload.max_tokens)
            constants_s = cost.constant * max(fewest, min(run_S.size, speeds_D.size))
            costs_S = cost.sample_costs_S(run_S)
            even_s = (float(costs_S.sum()) + constants_s) / float(speeds_D.sum())
            shares.append((float(costs_S.max()) + cost.constant) / float(speeds_D.max()) / even_s)
    share_N = np.array(shares or [0.0])
    return LongestSequence(int(lengths_NS.max()), float(share_N.mean()), float((share_N > 1).mean()))


def _run_S(resolved: ResolvedScenario, lengths_S: IntArray) -> IntArray:
    """The lengths that are run, dropped samples left out."""
    workload = resolved.scenario.workload
    run_S = apply_oversize(lengths_S, cap_tokens=workload.max_tokens, oversize=workload.oversize).lengths_S
    return run_S[run_S > 0]


def limits_of(case: CaseResult, longest: LongestSequence, *, any_sync_s_N: FloatArray | None) -> Limits:
    """What limits a case.

    Args:
        case: with its times.
        longest: of the same minibatches.
        any_sync_s_N: bounds of its minibatches under any sync; None for a case that has no other bound.
    """
    fractions = case.fractions
    losses: dict[Limit, float] = {
        "imbalance": fractions.synchronization,
        "communication": fractions.exposed_communication,
        "fixed steps": fractions.other,
    }
    lost_share = sum(losses.values())
    limit: Limit = max(losses, key=lambda key: losses[key])
    if lost_share < _LITTLE_LOST:
        limit = "compute"
    elif limit == "imbalance" and longest.outlasting_share >= _MOSTLY:
        limit = "longest sequence"
    any_sync_ratio = None if any_sync_s_N is None else float(case.minibatch_s_N.mean() / any_sync_s_N.mean())
    return Limits(limit, lost_share, case.lower_bound_ratio, any_sync_ratio)
