"""The minibatches and plans of a scenario: the very ones that `odcsim run` makes of it. Needs no torch.

Tests compare what is drawn here with what the simulator draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcrt.workload.job import PlannedMicrobatch
from odcsim.arrays import IntArray
from odcsim.minibatches import draw_slowdowns, plan_of_case
from odcsim.plan import Plan
from odcsim.policies import MinibatchPlan
from odcsim.resolve import ResolvedCase, ResolvedScenario
from odcsim.results import Conservation

__all__ = ["PlannedCase", "plan_case"]


@dataclass(frozen=True)
class PlannedCase:
    """The minibatches of one case.

    Attributes:
        plans: of each minibatch, with the padding that is run.
        conservation: where samples and tokens go, over all of them.
        microbatches_NDM: what each rank runs.
        model_flops: of forward and backward, without recomputation.
    """

    plans: tuple[MinibatchPlan, ...]
    conservation: Conservation
    microbatches_NDM: tuple[tuple[tuple[PlannedMicrobatch, ...], ...], ...]
    model_flops: float

    @property
    def counts_ND(self) -> IntArray:
        """Microbatches of every rank, padding included."""
        return np.array([[len(microbatches) for microbatches in minibatch] for minibatch in self.microbatches_NDM])

    @property
    def padding(self) -> int:
        """Padding microbatches."""
        return sum(
            not microbatch.samples
            for minibatch in self.microbatches_NDM
            for microbatches in minibatch
            for microbatch in microbatches
        )

    @property
    def largest_microbatch_tokens(self) -> int:
        """Tokens of the largest microbatch."""
        return max(
            (
                microbatch.tokens
                for minibatch in self.microbatches_NDM
                for microbatches in minibatch
                for microbatch in microbatches
            ),
            default=0,
        )


def plan_case(
    resolved: ResolvedScenario, case: ResolvedCase, lengths_NS: IntArray, *, file: Path | None = None
) -> PlannedCase:
    """Plan all minibatches of a case.

    Raises:
        PolicyError: a minibatch cannot be planned.
    """
    plans = []
    for minibatch, lengths_S in enumerate(lengths_NS):
        planned = plan_of_case(resolved, case, lengths_S, minibatch=minibatch, file=file)
        plan = planned.plan.padded() if case.case.pad else planned.plan
        plans.append(MinibatchPlan(plan, planned.lengths_S, planned.dropped_tokens, planned.truncated_tokens))
    run = [planned.lengths_S for planned in plans]
    return PlannedCase(
        plans=tuple(plans),
        conservation=Conservation(
            samples=lengths_NS.size,
            dropped_samples=sum(len(planned.plan.dropped) for planned in plans),
            tokens=int(lengths_NS.sum()),
            dropped_tokens=sum(planned.dropped_tokens for planned in plans),
            truncated_tokens=sum(planned.truncated_tokens for planned in plans),
        ),
        microbatches_NDM=tuple(
            _microbatches(resolved, planned.plan, planned.lengths_S, minibatch=minibatch)
            for minibatch, planned in enumerate(plans)
        ),
        model_flops=resolved.model.model_flops(
            tokens=float(sum(lengths_S.sum() for lengths_S in run)),
            squared_tokens=float(sum((lengths_S.astype(np.float64) ** 2).sum() for lengths_S in run)),
        ),
    )


def _microbatches(
    resolved: ResolvedScenario, plan: Plan, lengths_S: IntArray, *, minibatch: int
) -> tuple[tuple[PlannedMicrobatch, ...], ...]:
    stretch_DM = draw_slowdowns(resolved, minibatch=minibatch, microbatches=max(plan.counts, default=0))
    stretch_DM = stretch_DM / resolved.speeds_D[:, None]
    lengths: Sequence[int] = lengths_S.tolist()
    return tuple(
        tuple(
            PlannedMicrobatch(
                samples=samples,
                lengths=tuple(lengths[sample] for sample in samples),
                stretch=float(stretch_DM[rank, position]),
            )
            for position, samples in enumerate(microbatches)
        )
        for rank, microbatches in enumerate(plan.ranks)
    )
