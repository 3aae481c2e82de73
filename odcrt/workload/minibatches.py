"""The minibatches and plans of a scenario: the very ones that `odcsim run` makes of it. Needs no torch.

Tests compare what is drawn here with what the simulator draws.

Legend: N minibatches, D ranks, M microbatches of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from odcrt.workload.job import PlannedMicrobatch, Queue
from odcsim.arrays import FloatArray, IntArray
from odcsim.minibatches import draw_slowdowns, plan_of_case
from odcsim.plan import Microbatch
from odcsim.policies import MinibatchPlan
from odcsim.resolve import ResolvedCase, ResolvedScenario
from odcsim.results import Conservation
from odcsim.trace_format import PulledPositions

__all__ = ["PlannedCase", "plan_case"]


@dataclass(frozen=True)
class PlannedCase:
    """The minibatches of one case.

    Attributes:
        plans: of each minibatch, with the padding that is run.
        conservation: where samples and tokens go, over all of them.
        microbatches_NDM: what each rank runs; nothing where microbatches are pulled.
        queues_N: what is pulled in each minibatch; empty for a policy whose plans name ranks.
        model_flops: of forward and backward, without recomputation.
    """

    plans: tuple[MinibatchPlan, ...]
    conservation: Conservation
    microbatches_NDM: tuple[tuple[tuple[PlannedMicrobatch, ...], ...], ...]
    queues_N: tuple[Queue, ...]
    model_flops: float

    @property
    def counts_ND(self) -> IntArray:
        """Microbatches of every rank, padding included."""
        return np.array([[len(microbatches) for microbatches in minibatch] for minibatch in self.microbatches_NDM])

    @property
    def padding(self) -> int:
        """Padding microbatches."""
        return sum(not microbatch.samples for microbatch in self._microbatches())

    @property
    def largest_microbatch_tokens(self) -> int:
        """Tokens of the largest microbatch."""
        return max((microbatch.tokens for microbatch in self._microbatches()), default=0)

    def _microbatches(self) -> Iterator[PlannedMicrobatch]:
        for minibatch in self.microbatches_NDM:
            yield from chain.from_iterable(minibatch)
        for queue in self.queues_N:
            yield from queue.microbatches

    def as_pulled(self, pulled_N: Sequence[PulledPositions]) -> PlannedCase:
        """The same minibatches once it is known which rank has pulled what: plans that name ranks.

        Args:
            pulled_N: of each minibatch, the positions that each rank pulled. Together they must be all positions.
        """
        plans, microbatches_NDM = [], []
        for planned, queue, pulled_D in zip(self.plans, self.queues_N, pulled_N, strict=True):
            rank_of = {position: rank for rank, positions in enumerate(pulled_D) for position in positions}
            pulled = sum(map(len, pulled_D))
            assert pulled == len(rank_of) == len(queue.microbatches), f"pulled {pulled_D} of {len(queue.microbatches)}"
            plans.append(replace(planned, plan=planned.plan.assigned([rank_of[place] for place in sorted(rank_of)])))
            microbatches_NDM.append(
                tuple(
                    tuple(queue.taken(position, rank=rank, turn=turn) for turn, position in enumerate(positions))
                    for rank, positions in enumerate(pulled_D)
                )
            )
        return replace(self, plans=tuple(plans), microbatches_NDM=tuple(microbatches_NDM), queues_N=())


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
        plans.append(replace(planned, plan=planned.plan.padded()) if case.case.pad else planned)
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
            _microbatches_DM(resolved, planned, minibatch=minibatch) for minibatch, planned in enumerate(plans)
        ),
        queues_N=tuple(_queue(resolved, planned, minibatch=minibatch) for minibatch, planned in enumerate(plans))
        if case.policy.is_pulled
        else (),
        model_flops=resolved.model.model_flops(
            tokens=float(sum(lengths_S.sum() for lengths_S in run)),
            squared_tokens=float(sum((lengths_S.astype(np.float64) ** 2).sum() for lengths_S in run)),
        ),
    )


def _microbatches_DM(
    resolved: ResolvedScenario, planned: MinibatchPlan, *, minibatch: int
) -> tuple[tuple[PlannedMicrobatch, ...], ...]:
    stretch_DM = _stretch_DM(resolved, minibatch=minibatch, microbatches=max(planned.plan.counts, default=0))
    return tuple(
        tuple(
            replace(microbatch, stretch=float(stretch_DM[rank, position]))
            for position, microbatch in enumerate(_with_lengths(microbatches, planned.lengths_S))
        )
        for rank, microbatches in enumerate(planned.plan.ranks)
    )


def _queue(resolved: ResolvedScenario, planned: MinibatchPlan, *, minibatch: int) -> Queue:
    pulled = planned.plan.pulled
    return Queue(
        microbatches=tuple(_with_lengths(pulled, planned.lengths_S)),
        stretch_DM=_stretch_DM(resolved, minibatch=minibatch, microbatches=len(pulled)),
    )


def _stretch_DM(resolved: ResolvedScenario, *, minibatch: int, microbatches: int) -> FloatArray:
    """How many times longer each rank's m-th microbatch takes than on a rank of speed 1."""
    slowdowns_DM = draw_slowdowns(resolved, minibatch=minibatch, microbatches=microbatches)
    return slowdowns_DM / resolved.speeds_D[:, None]


def _with_lengths(microbatches: Sequence[Microbatch], lengths_S: IntArray) -> Iterator[PlannedMicrobatch]:
    lengths: list[int] = lengths_S.tolist()
    for samples in microbatches:
        yield PlannedMicrobatch(samples=samples, lengths=tuple(lengths[sample] for sample in samples))
