"""What both engines return: how long minibatches took, where each rank's time went, and the spans of one minibatch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.schedule import Schedule

__all__ = ["Outcome", "Span", "SpanName", "Stream", "framed_spans"]

SpanName = Literal["publish", "gather", "forward", "backward", "scatter_accumulate", "wait", "settle", "optimizer"]
Stream = Literal["compute", "gather", "reduce"]


@dataclass(frozen=True)
class Span:
    """Something that one rank did, from `start_s` to `end_s` after the start of its minibatch, in seconds.

    Attributes:
        rank: who.
        name: what, in the words of the trace format; a reduce is a `scatter_accumulate` under either sync.
        unit: FSDP unit, or -1 where the span belongs to none.
        microbatch: position in the rank's order, or -1 where the span belongs to none.
        start_s: start.
        end_s: end.
        stream: `compute`, `gather` or `reduce`: the resource that was held (or, for a wait, stood still).
    """

    rank: int
    name: SpanName
    unit: int
    microbatch: int
    start_s: float
    end_s: float
    stream: Stream


@dataclass(frozen=True)
class Outcome:
    """N minibatches as an engine saw them. Times in seconds.

    For every minibatch n and rank d, compute + exposed communication + synchronization + optimizer + other is the
    minibatch's time.

    Attributes:
        minibatch_s_N: from the minibatch's start until its last rank is done.
        compute_s_ND: time computing.
        exposed_communication_s_ND: time in which the compute stream stood still while the transfer it needed was moving
            (or, under `odc`, was queued behind the rank's own transfers).
        synchronization_s_ND: time in which the compute stream stood still for other ranks.
        optimizer_s_ND: the optimizer's step.
        other_s_ND: publish, settle and fixed costs.
        spans: of the first minibatch, for the ranks that they were asked for; ordered by rank, then start.
    """

    minibatch_s_N: FloatArray
    compute_s_ND: FloatArray
    exposed_communication_s_ND: FloatArray
    synchronization_s_ND: FloatArray
    optimizer_s_ND: FloatArray
    other_s_ND: FloatArray
    spans: tuple[Span, ...] = ()

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        *,
        end_ND: FloatArray,
        compute_ND: FloatArray,
        waited_ND: FloatArray,
        spans: tuple[Span, ...] = (),
    ) -> Outcome:
        """Close the accounts of N minibatches from what each rank did until its last transfer.

        Args:
            schedule: for the costs of opening and closing a minibatch.
            end_ND: when each rank was done, counted from its first microbatch.
            compute_ND: time computing until then.
            waited_ND: time until then in which its compute stream stood still for other ranks.
            spans: of the first minibatch.
        """
        last_N1 = end_ND.max(axis=1, keepdims=True) if end_ND.size else end_ND[:, :0].sum(axis=1, keepdims=True)
        around_s = schedule.opening_s + schedule.closing_s
        return cls(
            minibatch_s_N=last_N1[:, 0] + (around_s + schedule.optimizer_s),
            compute_s_ND=compute_ND,
            # What is left is exposed communication; rounding must not make it negative.
            exposed_communication_s_ND=np.maximum(end_ND - compute_ND - waited_ND, 0.0),
            synchronization_s_ND=waited_ND + (last_N1 - end_ND),
            optimizer_s_ND=np.full_like(end_ND, schedule.optimizer_s),
            other_s_ND=np.full_like(end_ND, around_s),
            spans=spans,
        )


def framed_spans(spans: Iterable[Span], schedule: Schedule, *, end_D: FloatArray, ranks: int) -> tuple[Span, ...]:
    """The spans of a minibatch with what surrounds its microbatches: publish, the last wait, settle, optimizer.

    Args:
        spans: of the microbatches, in seconds since the start of the minibatch.
        schedule: for the costs of opening and closing a minibatch.
        end_D: when each rank was done, counted from its first microbatch.
        ranks: only the first so many are framed.
    """
    opening_s = schedule.opening_s
    last_s = float(end_D.max(initial=0.0)) + opening_s
    settled_s = last_s + schedule.closing_s
    framed = list(spans)
    for rank, end_s in enumerate((end_D[:ranks] + opening_s).tolist()):
        frame: list[tuple[SpanName, float, float]] = [
            ("publish", 0.0, opening_s),
            ("wait", end_s, last_s),
            ("settle", last_s, settled_s),
            ("optimizer", settled_s, settled_s + schedule.optimizer_s),
        ]
        framed += [Span(rank, name, -1, -1, start, end, "compute") for name, start, end in frame if end > start]
    return tuple(sorted(framed, key=lambda span: (span.rank, span.start_s, span.stream)))
