"""A whole plan from a list of lengths, in one call.

Legend: S samples of a minibatch, D ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, get_args

import numpy as np

from odcsim.arrays import IntArray
from odcsim.drop_in.costs import CostLike, token_cost
from odcsim.drop_in.inputs import lengths_S_of, one_by_one, speeds_D_of, whole_number
from odcsim.errors import InputError
from odcsim.plan import Plan
from odcsim.policies import Oversize, Policy, find_policy, plan_minibatch
from odcsim.schedule import Sync
from odcsim.suggest import unknown_name

__all__ = ["DropInWarning", "plan_lengths"]

# More than any cluster has; a plan names every one of them.
_MOST_RANKS = 1 << 20

_BEST_POLICY: dict[Sync, str] = {"fsdp": "lockstep", "odc": "independent"}


class DropInWarning(UserWarning):
    """A setting has no effect."""


def plan_lengths(
    lengths: Sequence[int] | IntArray,
    *,
    ranks: int,
    cap_tokens: int | None = None,
    sync: Sync = "odc",
    policy: str | Policy | None = None,
    cost: CostLike | None = None,
    oversize: Oversize = "error",
    groups: Sequence[Hashable] | None = None,
    speeds: Sequence[float] | None = None,
) -> Plan:
    """Which samples each rank runs, in which microbatches: a balanced plan of one minibatch.

    The same input gives the same plan, so every rank can call it for itself; `plan.ranks[rank]` is its part.

    Args:
        lengths: samples' lengths in tokens, at least 1 each; any number of samples, none included.
        ranks: data-parallel ranks D.
        cap_tokens: most tokens of a microbatch; None: the longest sample's.
        sync: `fsdp`: ranks run the same number of microbatches and meet at each; `odc`: each runs its own number.
        policy: how samples become microbatches on ranks, by name; None: the best for the sync, which is `lockstep`
            for `fsdp` and `independent` for `odc`. Of one whose microbatches are pulled (`dynamic`), they are in
            `plan.pulled`, and no rank has any.
        cost: what a microbatch costs, see `token_cost`; None: a 7B decoder on an A100.
        oversize: what happens to a sample over the cap: `error`; `truncate`, which leaves the cutting to whoever loads
            the sample; `drop`, which lists it in `plan.dropped`; `own-microbatch`, which runs it alone.
        groups: a label for each sample; samples of one label stay on one rank (responses to one prompt, say).
        speeds: speed of each rank, where they differ: 0.5 for one that takes twice as long.

    Raises:
        InputError: a value that is not allowed, or a policy of unequal counts under `fsdp`.
        PolicyError: a sample over the cap under `oversize="error"`, or groups with a policy that cannot keep them.

    Warns:
        DropInWarning: a setting without effect.
    """
    lengths_S = lengths_S_of(lengths)
    ranks = whole_number("ranks", ranks, least=1, most=_MOST_RANKS)
    if sync not in get_args(Sync):
        raise unknown_name("sync", sync, get_args(Sync), key="sync")
    chosen = (
        policy
        if isinstance(policy, Policy)
        else find_policy(_BEST_POLICY[sync] if policy is None else policy, key="policy")
    )
    if sync == "fsdp" and not chosen.equal_counts:
        raise InputError(
            "gives ranks unequal numbers of microbatches, which deadlocks under fsdp; allowed: sync='odc', or a policy "
            "with equal counts",
            key="policy",
            value=chosen.name,
        )
    for text in _without_effect(
        chosen, has_cap=cap_tokens is not None, has_cost=cost is not None, oversize=oversize, speeds=speeds
    ):
        warnings.warn(text, DropInWarning, stacklevel=2)
    longest = int(lengths_S.max(initial=1))
    planned = plan_minibatch(
        chosen,
        lengths_S,
        ranks=ranks,
        cap_tokens=longest if cap_tokens is None else whole_number("cap_tokens", cap_tokens, least=1),
        cost=token_cost(cost),
        oversize=oversize,
        groups_S=None if groups is None else _numbers_of(groups, samples=lengths_S.size),
        speeds_D=None if speeds is None else speeds_D_of(speeds, ranks=ranks),
    )
    return planned.plan


def _without_effect(
    policy: Policy, *, has_cap: bool, has_cost: bool, oversize: Oversize, speeds: object
) -> Iterator[str]:
    """A sentence for every setting that was made and changes nothing."""
    if oversize != "error" and not has_cap:
        yield "oversize has no effect without cap_tokens: the longest sample is the cap"
    if has_cost and not policy.uses_cost:
        yield f"cost has no effect: {policy.name} does not balance by it"
    if speeds is not None and not policy.uses_speeds:
        yield f"speeds has no effect: {policy.name} plans as if all ranks were alike"


def _numbers_of(groups: Sequence[Hashable], *, samples: int) -> IntArray:
    """A number for each label, in the order of their first samples."""
    labels = one_by_one(groups, key="groups")
    if len(labels) != samples:
        raise InputError(f"must be one for each of the {samples} samples", key="number of groups", value=len(labels))
    numbers: dict[Any, int] = {}
    try:
        return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)
    except TypeError:
        raise InputError("must be numbers, texts or other hashable labels", key="groups", value=groups) from None
