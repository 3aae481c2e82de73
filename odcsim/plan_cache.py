"""Plans that were made already, for whoever plans the same minibatches again: a plan is a function of what it is asked.

What a plan does not depend on may change between runs: syncs, overlaps, transfers, slowdowns, noise, and speeds that
plans do not know. Runs of other minibatches draw the same samples first, so only what comes first in a run is kept.

Invariant: whoever asks gets what `plan_minibatch` would have made.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.policies import MinibatchPlan, Oversize, Policy, plan_minibatch

__all__ = ["PlanCache"]

# Of which each takes 80 to 200 bytes.
_MOST_SAMPLES = 1_000_000


class PlanCache:
    """Plans kept for the same question. What came first stays: once it is full, nothing more is kept.

    Args:
        first_samples: plans of so many samples, from the first of a run on, are kept.
        most_samples: of all plans together.

    Attributes:
        made: plans that had to be made.
        found: plans that were there.
    """

    def __init__(self, *, first_samples: int, most_samples: int = _MOST_SAMPLES) -> None:
        self.made = 0
        self.found = 0
        self._first_samples = first_samples
        self._room = most_samples
        self._plans: dict[Hashable, MinibatchPlan] = {}

    def plan_minibatch(
        self,
        policy: Policy,
        lengths_S: IntArray,
        *,
        samples_before: int,
        ranks: int,
        cap_tokens: int,
        cost: TokenCost,
        oversize: Oversize,
        speeds_D: FloatArray | None,
        groups_S: Sequence[int] | IntArray | None,
    ) -> MinibatchPlan:
        """The plan of a minibatch, as `odcsim.policies.plan_minibatch` makes it.

        Args:
            policy: how to balance and pack.
            lengths_S: samples' lengths in tokens.
            samples_before: of the run's minibatches before this one.
            ranks: number of ranks D.
            cap_tokens: most tokens of a microbatch.
            cost: time of a microbatch, which plans are balanced by.
            oversize: what happens to a sample over the cap.
            speeds_D: speed of each rank; None: all alike.
            groups_S: a number for each sample; those of one number stay on one rank. None: no groups.

        Raises:
            PolicyError: there is no plan; asked again, it is raised again.
        """
        # A policy that does not look at speeds plans alike whatever they are.
        looked_at_D = speeds_D if policy.uses_speeds else None
        key = (
            policy,
            _content(lengths_S),
            ranks,
            cap_tokens,
            cost,
            oversize,
            None if looked_at_D is None else looked_at_D.tobytes(),
            None if groups_S is None else _content(groups_S),
        )
        plan = self._plans.get(key)
        if plan is not None:
            self.found += 1
            return plan
        plan = plan_minibatch(
            policy,
            lengths_S,
            ranks=ranks,
            cap_tokens=cap_tokens,
            cost=cost,
            oversize=oversize,
            speeds_D=speeds_D,
            groups_S=groups_S,
        )
        self.made += 1
        samples = lengths_S.size
        if samples_before + samples <= self._first_samples and samples <= self._room:
            self._room -= samples
            # Others get it too.
            plan.lengths_S.setflags(write=False)
            self._plans[key] = plan
        return plan


def _content(numbers: Sequence[int] | IntArray) -> bytes:
    return np.asarray(numbers, dtype=np.int64).tobytes()
