"""What a policy is: a named, total function from a minibatch's lengths to a plan.

Invariants of every plan that `Policy.plan` returns (asserted here, whoever wrote the policy):
    every sample is in exactly one microbatch;
    no microbatch holds more tokens than the cap, unless it is a single sample that may (`allow_oversize`);
    a policy of equal counts gives every rank as many microbatches, the lighter ranks' last ones being padding;
    same input, same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from odcsim.arrays import IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import PolicyError
from odcsim.plan import Plan

__all__ = ["PlanFunction", "Policy"]


class PlanFunction(Protocol):
    """The heart of a policy.

    It is handed checked input only (see `Policy.plan`), runs every sample, and may leave counts unequal: padding is
    added for it. A sample over the cap, where there is one, must get a microbatch of its own.
    """

    def __call__(self, lengths_S: IntArray, *, ranks: int, cap_tokens: int, cost: TokenCost) -> Plan:
        """The plan for one minibatch.

        Args:
            lengths_S: samples' lengths in tokens, at least 1.
            ranks: number of ranks, at least 1.
            cap_tokens: most tokens of a microbatch, at least 1.
            cost: time of a microbatch; no sample costs less than nothing.
        """
        ...


@dataclass(frozen=True)
class Policy:
    """A way of balancing and packing.

    Attributes:
        name: as scenarios write it.
        make_plan: computes the plan.
        equal_counts: whether every rank is to run as many microbatches as the others, which `fsdp` needs.
        summary: one line for people.
    """

    name: str
    make_plan: PlanFunction
    equal_counts: bool
    summary: str

    def plan(
        self, lengths_S: IntArray, *, ranks: int, cap_tokens: int, cost: TokenCost, allow_oversize: bool = False
    ) -> Plan:
        """The plan for one minibatch, of any number of samples.

        Args:
            lengths_S: samples' lengths in tokens, at least 1.
            ranks: number of ranks, at least 1.
            cap_tokens: most tokens of a microbatch, at least 1.
            cost: time of a microbatch, which plans are balanced by.
            allow_oversize: whether a sample over the cap runs in a microbatch of its own rather than being refused.

        Raises:
            PolicyError: an argument is out of range, or a sample is over the cap; the same on every rank.
        """
        lengths_S = np.asarray(lengths_S)
        _check_arguments(lengths_S, ranks=ranks, cap_tokens=cap_tokens, cost=cost, allow_oversize=allow_oversize)
        plan = self.make_plan(lengths_S, ranks=ranks, cap_tokens=cap_tokens, cost=cost)
        if self.equal_counts:
            plan = plan.padded()
            assert plan.has_equal_counts, f"{self.name}: microbatch counts {plan.counts} differ"
        assert not plan.dropped, f"{self.name}: dropped samples {plan.dropped}, which is not for a policy to decide"
        # An oversized sample counts as one of cap tokens, so that any company breaks the cap.
        plan.check(np.minimum(lengths_S, cap_tokens).tolist(), ranks=ranks, cap_tokens=cap_tokens)
        return plan


def _check_arguments(
    lengths_S: IntArray, *, ranks: int, cap_tokens: int, cost: TokenCost, allow_oversize: bool
) -> None:
    if ranks < 1:
        raise PolicyError("a plan needs at least 1 rank", key="ranks", value=ranks)
    if cap_tokens < 1:
        raise PolicyError("the cap on a microbatch must be at least 1 token", key="max_tokens", value=cap_tokens)
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
