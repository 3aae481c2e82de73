"""Very many samples for On-Demand Communication: two divisions of the samples over ranks, and the better one.

First microbatches are filled, as few as best fit makes, and balanced over ranks. That is as good as can be where ranks
run many. Where it is not even, samples are balanced by cost, or groups of them that stay together, and each rank fills
its own microbatches.

Legend: S samples, U units (samples or groups), B bins, D ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.balance import find_homes
from odcsim.plan import Plan
from odcsim.policies.base import PlanTask
from odcsim.policies.large.bins import Bins

__all__ = ["Division", "divide"]

# Bins that are balanced so evenly over ranks leave nothing to gain.
_EVEN = 1 + 1e-3


@dataclass(frozen=True, eq=False)
class Division:
    """Microbatches over ranks.

    Attributes:
        bins: the microbatches.
        rank_B: where each is run.
        task: the minibatch.
    """

    bins: Bins
    rank_B: IntArray
    task: PlanTask

    @cached_property
    def busiest_s(self) -> float:
        """Seconds of the busiest rank."""
        time_B = self.bins.cost_B + self.task.cost.constant
        return float((np.bincount(self.rank_B, weights=time_B, minlength=self.task.ranks) / self.task.speeds_D).max())

    @property
    def is_even(self) -> bool:
        """Whether the busiest rank has hardly more than its share."""
        work_s = float(self.bins.cost_B.sum()) + self.task.cost.constant * self.bins.count
        return self.busiest_s <= _EVEN * work_s / float(self.task.speeds_D.sum())

    def plan(self) -> Plan:
        """The plan, each rank's costliest microbatch first."""
        return Plan(self.bins.on_ranks(self.rank_B, ranks=self.task.ranks))


def divide(task: PlanTask) -> Division:
    """The better one of two divisions, the second of which is made only where the first is not even."""
    costs_S = task.cost.sample_costs_S(task.lengths_S)
    tokens_S = np.minimum(task.lengths_S, task.cap_tokens)
    found: list[Division] = []
    if task.groups_S is None:
        tight = Bins.fit(costs_S, tokens_S, cap_tokens=task.cap_tokens)
        found.append(Division(tight, _balanced(tight.cost_B + task.cost.constant, task), task))
    if not found or not found[0].is_even:
        rank_S = _balanced_samples(costs_S, tokens_S, task)
        own = Bins.fit(costs_S, tokens_S, cap_tokens=task.cap_tokens, part_S=rank_S)
        found.append(Division(own, own.part_B, task))
    return min(found, key=lambda division: division.busiest_s)


def _balanced_samples(costs_S: FloatArray, tokens_S: IntArray, task: PlanTask) -> IntArray:
    """The rank of each sample, with a rank's share of the constants guessed from its speed."""
    unit_S = np.arange(costs_S.size) if task.groups_S is None else np.unique(task.groups_S, return_inverse=True)[1]
    share_D = task.speeds_D / task.speeds_D.sum()
    microbatches_D = np.maximum(share_D * (float(tokens_S.sum()) / task.cap_tokens), 1.0)
    cost_U = np.bincount(unit_S, weights=costs_S).astype(np.float64)
    rank_U = _balanced(cost_U, task, loads_D=task.cost.constant * microbatches_D)
    return rank_U[unit_S]


def _balanced(costs: FloatArray, task: PlanTask, *, loads_D: FloatArray | None = None) -> IntArray:
    rank_of = find_homes(costs, parts=task.ranks, loads_P=loads_D, speeds_P=task.speeds_D)
    assert rank_of is not None, "without a cap there is always a way"
    return rank_of
