"""From the spans of an engine to those of a trace, so that simulated and measured runs look alike to every reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from odcsim.engines.timeline import Span, SpanName
from odcsim.trace_format.info import PlannedLengths
from odcsim.trace_format.spans import TraceSpan

__all__ = ["simulated_spans_to_trace"]


def _nothing(_name: SpanName, _unit: int) -> int:
    return 0


def simulated_spans_to_trace(
    spans: Iterable[Span],
    *,
    plan: PlannedLengths,
    minibatch: int = 0,
    start_s: float = 0.0,
    bytes_of: Callable[[SpanName, int], int] = _nothing,
) -> tuple[tuple[TraceSpan, ...], ...]:
    """The spans of one simulated minibatch, as a trace has them.

    Args:
        spans: of an `Outcome`.
        plan: what the ranks ran; tokens come from here.
        minibatch: which one it was.
        start_s: when it began, in seconds since the run's origin.
        bytes_of: bytes that a transfer moves, by its name and unit; asked for transfers alone.

    Returns:
        For each rank up to the last that has spans, its spans ordered by start: what `write_run` takes.
    """
    by_rank: dict[int, list[TraceSpan]] = {}
    for span in spans:
        lengths = plan[span.rank][span.microbatch] if span.microbatch >= 0 else ()
        moves = span.name in {"gather", "scatter_accumulate"}
        by_rank.setdefault(span.rank, []).append(
            TraceSpan(
                span.name,
                span.unit,
                minibatch,
                span.microbatch,
                float(start_s + span.start_s),
                float(start_s + span.end_s),
                sum(lengths),
                sum(length * length for length in lengths),
                bytes_of(span.name, span.unit) if moves else 0,
            )
        )
    ranks = range(max(by_rank, default=-1) + 1)
    return tuple(
        tuple(sorted(by_rank.get(rank, []), key=lambda span: (span.start_s, span.end_s, span.stream))) for rank in ranks
    )
