"""What a policy is: a named, total function from a minibatch's lengths to a plan.

Invariants of every plan that `Policy.plan` returns (asserted here, whoever wrote the policy):
    every sample is in exactly one microbatch;
    no microbatch holds more tokens than the cap, unless it is a single sample that may (`allow_oversize`);
    a policy of equal counts gives every rank as many microbatches, the lighter ranks' last ones being padding;
    samples of one group, where groups are to be kept, are on one rank;
    a pulled policy's microbatches are all in `Plan.pulled`, any other's all on ranks;
    same input, same plan.

Legend: S samples of a minibatch, D ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.plan import Plan

__all__ = ["PlanFunction", "PlanTask", "Policy"]


@dataclass(frozen=True, eq=False)
class PlanTask:
    """One minibatch to plan: what a policy is handed, checked.

    Attributes:
        lengths_S: samples' lengths in tokens, at least 1.
        ranks: number of ranks D, at least 1.
        cap_tokens: most tokens of a microbatch, at least 1.
        cost: time of a microbatch at speed 1; no sample costs less than nothing.
        speeds_D: speed of each rank, relative to `cost`; ones where the plan is not to know them.
        groups_S: number of the group of each sample, whose samples are to be on one rank; None: no groups.
    """

    lengths_S: IntArray
    ranks: int
    cap_tokens: int
    cost: TokenCost
    speeds_D: FloatArray
    groups_S: IntArray | None

    def on_ranks(self, rank_D: IntArray) -> PlanTask:
        """The same for some of the ranks alone.

        Args:
            rank_D: their numbers.
        """
        return replace(self, ranks=rank_D.size, speeds_D=self.speeds_D[rank_D])


class PlanFunction(Protocol):
    """The heart of a policy.

    It is handed checked input only (see `Policy.plan`), runs every sample, and may leave counts unequal: padding is
    added for it. A sample over the cap, where there is one, must get a microbatch of its own.
    """

    def __call__(self, task: PlanTask) -> Plan:
        """The plan for one minibatch."""
        ...


@dataclass(frozen=True)
class Policy:
    """A way of balancing and packing.

    Attributes:
        name: as scenarios write it.
        make_plan: computes the plan.
        equal_counts: whether every rank is to run as many microbatches as the others, which `fsdp` needs.
        summary: one line for people.
        uses_cost: whether it balances by the cost that it is given.
        uses_speeds: whether it looks at the ranks' speeds; otherwise it plans as if all were alike.
        keeps_groups: whether it can keep the samples of a group on one rank.
        is_pulled: whether its microbatches are formed ahead and pulled by whichever rank is free, which `fsdp` cannot.
    """

    name: str
    make_plan: PlanFunction
    equal_counts: bool
    summary: str
    uses_cost: bool = True
    uses_speeds: bool = False
    keeps_groups: bool = False
    is_pulled: bool = False

    def plan(
        self,
        lengths_S: IntArray,
        *,
        ranks: int,
        cap_tokens: int,
        cost: TokenCost,
        allow_oversize: bool = False,
        speeds_D: Sequence[float] | FloatArray | None = None,
        groups_S: Sequence[int] | IntArray | None = None,
    ) -> Plan:
        """The plan for one minibatch, of any number of samples.

        Args:
            lengths_S: samples' lengths in tokens, at least 1.
            ranks: number of ranks, at least 1.
            cap_tokens: most tokens of a microbatch, at least 1.
            cost: time of a microbatch, which plans are balanced by.
            allow_oversize: whether a sample over the cap runs in a microbatch of its own rather than being refused.
            speeds_D: speed of each rank, relative to `cost`, above 0; None: all alike. Only policies that use speeds
                look at it.
            groups_S: a number for each sample; those of one number stay on one rank. None: no groups.

        Raises:
            PolicyError: an argument is out of range, a sample is over the cap, or the policy cannot keep groups; the
                same on every rank.
        """
        lengths_S = np.asarray(lengths_S)
        _check_arguments(lengths_S, ranks=ranks, cap_tokens=cap_tokens, cost=cost, allow_oversize=allow_oversize)
        task = PlanTask(
            lengths_S=lengths_S,
            ranks=ranks,
            cap_tokens=cap_tokens,
            cost=cost,
            speeds_D=_checked_speeds_D(speeds_D, ranks=ranks) if self.uses_speeds else np.ones(ranks),
            groups_S=None if groups_S is None else self._checked_groups_S(groups_S, samples=lengths_S.size),
        )
        plan = self.make_plan(task)
        if self.equal_counts:
            plan = plan.padded()
        self._check_plan(plan, task)
        return plan

    def _checked_groups_S(self, groups_S: Sequence[int] | IntArray, *, samples: int) -> IntArray:
        if not self.keeps_groups:
            raise PolicyError(
                "cannot keep the samples of a group on one rank; allowed: a policy that can, or no groups",
                key="policy",
                value=self.name,
            )
        checked_S = np.asarray(groups_S, dtype=np.int64)
        assert checked_S.shape == (samples,), f"groups of shape {checked_S.shape} for {samples} samples"
        return checked_S

    def _check_plan(self, plan: Plan, task: PlanTask) -> None:
        assert not plan.dropped, f"{self.name}: dropped samples {plan.dropped}, which is not for a policy to decide"
        # An oversized sample counts as one of cap tokens, so that any company breaks the cap.
        plan.check(np.minimum(task.lengths_S, task.cap_tokens), ranks=task.ranks, cap_tokens=task.cap_tokens)
        if self.equal_counts:
            assert plan.has_equal_counts, f"{self.name}: microbatch counts {plan.counts} differ"
        if self.is_pulled:
            assert not any(plan.ranks), f"{self.name}: microbatches on ranks, in a plan whose microbatches are pulled"
        else:
            assert not plan.pulled, f"{self.name}: microbatches to be pulled, in a plan that names ranks"
        if task.groups_S is not None:
            self._check_groups(plan, task.groups_S)

    def _check_groups(self, plan: Plan, groups_S: IntArray) -> None:
        samples_D = [sum(map(len, microbatches)) for microbatches in plan.ranks]
        rank_S = np.empty(groups_S.size, dtype=np.int64)
        rank_S[np.fromiter(plan.samples(), dtype=np.int64)] = np.repeat(np.arange(len(plan.ranks)), samples_D)
        _, first_G, group_S = np.unique(groups_S, return_index=True, return_inverse=True)
        apart_S = np.flatnonzero(rank_S != rank_S[first_G[group_S]])
        if apart_S.size:
            sample = apart_S[0]
            first = first_G[group_S[sample]]
            raise AssertionError(
                f"{self.name}: group {groups_S[sample]} is on ranks {rank_S[first]} and {rank_S[sample]}"
            )


def _checked_speeds_D(speeds_D: Sequence[float] | FloatArray | None, *, ranks: int) -> FloatArray:
    if speeds_D is None:
        return np.ones(ranks)
    checked_D = np.asarray(speeds_D, dtype=np.float64)
    assert checked_D.shape == (ranks,), f"speeds of shape {checked_D.shape} for {ranks} ranks"
    wrong_D = ~np.isfinite(checked_D) | (checked_D <= 0)
    if wrong_D.any():
        rank = int(wrong_D.argmax())
        raise PolicyError("must be finite and above 0", key=f"speed of rank {rank}", value=float(checked_D[rank]))
    return checked_D


def _check_arguments(
    lengths_S: IntArray, *, ranks: int, cap_tokens: int, cost: TokenCost, allow_oversize: bool
) -> None:
    if ranks < 1:
        raise PolicyError("a plan needs at least 1 rank", key="ranks", value=ranks)
    if cap_tokens < 1:
        raise PolicyError("the cap on a microbatch must be at least 1 token", key="max_tokens", value=cap_tokens)
    if not 0 <= cost.constant < np.inf:
        raise PolicyError(
            "constant of a microbatch; it must be finite and not negative", key="compute", value=cost.constant
        )
    assert lengths_S.ndim == 1, f"lengths of shape {lengths_S.shape}; one dimension is expected"
    if lengths_S.size == 0:
        return
    assert np.issubdtype(lengths_S.dtype, np.integer), f"lengths of type {lengths_S.dtype}; integers are expected"
    shortest = int(lengths_S.argmin())
    if lengths_S[shortest] < 1:
        raise PolicyError(
            "a sample must have at least 1 token", key=f"length of sample {shortest}", value=int(lengths_S[shortest])
        )
    longest = int(lengths_S.argmax())
    if lengths_S[longest] > cap_tokens and not allow_oversize:
        raise PolicyError(
            f"the sample exceeds the cap of {cap_tokens} tokens",
            key=f"length of sample {longest}",
            value=int(lengths_S[longest]),
        )
    costs_S = cost.sample_costs_S(lengths_S)
    wrong_S = ~np.isfinite(costs_S) | (costs_S < 0)
    if wrong_S.any():
        sample = int(wrong_S.argmax())
        raise PolicyError(
            f"cost of sample {sample} ({lengths_S[sample]} tokens); it must be finite and not negative",
            key="compute",
            value=float(costs_S[sample]),
        )
