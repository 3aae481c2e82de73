"""Samples over the cap: what happens to them, and the one function that makes a minibatch's plan with that decided.

    error           refuse the minibatch
    truncate        cut the sample to the cap
    drop            leave the sample out
    own-microbatch  run the sample alone, over the cap

Invariants: the tokens of the minibatch are those run plus those dropped plus those cut off; every sample of the
minibatch is in the plan exactly once, or among its dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.plan import Microbatch, Plan
from odcsim.policies.base import Policy
from odcsim.suggest import unknown_name

__all__ = ["MinibatchPlan", "Oversize", "OversizeResult", "apply_oversize", "plan_minibatch"]

Oversize = Literal["error", "truncate", "drop", "own-microbatch"]


@dataclass(frozen=True)
class OversizeResult:
    """A minibatch with its samples over the cap dealt with.

    Attributes:
        lengths_S: every sample's tokens as it is run; 0 for a dropped one.
        dropped: indices of dropped samples, ascending.
        dropped_tokens: tokens of the dropped samples.
        truncated_tokens: tokens cut off the others.
    """

    lengths_S: IntArray
    dropped: tuple[int, ...]
    dropped_tokens: int
    truncated_tokens: int


@dataclass(frozen=True)
class MinibatchPlan:
    """A minibatch's plan, with an account of its tokens.

    Attributes:
        plan: over the indices of the whole minibatch.
        lengths_S: every sample's tokens as it is run; 0 for a dropped one.
        dropped_tokens: tokens of the dropped samples.
        truncated_tokens: tokens cut off samples that are run.
    """

    plan: Plan
    lengths_S: IntArray
    dropped_tokens: int
    truncated_tokens: int


def apply_oversize(lengths_S: IntArray, *, cap_tokens: int, oversize: Oversize) -> OversizeResult:
    """Deal with the samples over the cap.

    Args:
        lengths_S: samples' lengths in tokens.
        cap_tokens: most tokens of a microbatch.
        oversize: what happens to a sample of more.

    Raises:
        PolicyError: `oversize` is "error" and a sample is over the cap; the first one is named.
        UnknownNameError: `oversize` is none of the four.
    """
    if oversize not in get_args(Oversize):
        raise unknown_name("way to deal with samples over the cap", oversize, get_args(Oversize), key="oversize")
    over = np.flatnonzero(lengths_S > cap_tokens)
    run_S = lengths_S.astype(np.int64)
    if oversize == "error" and over.size:
        first, more = int(over[0]), over.size - 1
        also = f" (and {more} more {'sample is' if more == 1 else 'samples are'} over it)" if more else ""
        raise PolicyError(
            f"sample {first} has {lengths_S[first]} tokens, over the cap of {cap_tokens} tokens on a microbatch{also}; "
            "raise the cap, or choose truncate, drop or own-microbatch",
            key="oversize",
            value=oversize,
        )
    dropped: tuple[int, ...] = ()
    if oversize == "truncate":
        run_S = np.minimum(run_S, cap_tokens)
    elif oversize == "drop":
        run_S[over] = 0
        dropped = tuple(over.tolist())
    lost_tokens = int(lengths_S.sum()) - int(run_S.sum())
    return OversizeResult(
        lengths_S=run_S,
        dropped=dropped,
        dropped_tokens=lost_tokens if oversize == "drop" else 0,
        truncated_tokens=lost_tokens if oversize == "truncate" else 0,
    )


def plan_minibatch(
    policy: Policy,
    lengths_S: IntArray,
    *,
    ranks: int,
    cap_tokens: int,
    cost: TokenCost,
    oversize: Oversize = "error",
    speeds_D: Sequence[float] | FloatArray | None = None,
    groups_S: Sequence[int] | IntArray | None = None,
) -> MinibatchPlan:
    """The plan of a minibatch, samples over the cap included.

    Args:
        policy: how to balance and pack.
        lengths_S: samples' lengths in tokens, at least 1.
        ranks: number of ranks, at least 1.
        cap_tokens: most tokens of a microbatch, at least 1.
        cost: time of a microbatch, which plans are balanced by.
        oversize: what happens to a sample over the cap.
        speeds_D: speed of each rank, relative to `cost`; None: all alike. Only policies that use speeds look at it.
        groups_S: a number for each sample; those of one number stay on one rank. None: no groups.

    Raises:
        PolicyError: see `apply_oversize` and `Policy.plan`; the same on every rank.
    """
    result = apply_oversize(lengths_S, cap_tokens=cap_tokens, oversize=oversize)
    kept = np.delete(np.arange(lengths_S.size), result.dropped)
    plan = policy.plan(
        result.lengths_S[kept],
        ranks=ranks,
        cap_tokens=cap_tokens,
        cost=cost,
        allow_oversize=oversize == "own-microbatch",
        speeds_D=speeds_D,
        groups_S=None if groups_S is None else np.asarray(groups_S)[kept],
    )
    if result.dropped:
        plan = Plan(
            ranks=tuple(_renumbered(microbatches, kept) for microbatches in plan.ranks),
            dropped=result.dropped,
            pulled=_renumbered(plan.pulled, kept),
        )
        plan.check(result.lengths_S, ranks=ranks)
    return MinibatchPlan(
        plan=plan,
        lengths_S=result.lengths_S,
        dropped_tokens=result.dropped_tokens,
        truncated_tokens=result.truncated_tokens,
    )


def _renumbered(microbatches: Sequence[Microbatch], numbers: IntArray) -> tuple[Microbatch, ...]:
    """Microbatches of places among the samples kept, as microbatches of samples."""
    return tuple(tuple(int(numbers[place]) for place in microbatch) for microbatch in microbatches)
