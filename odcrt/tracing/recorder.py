"""What a rank does, kept as spans in the project's trace format. Times in seconds of the rank's own clock.

A recorder must not slow down what it watches. While a minibatch runs, a span costs one extension of a list: no
dictionaries, no objects that the garbage collector would have to visit, no files. Spans become lines of a trace when
the recorder is closed, or between minibatches once many have come together. Minibatches outside of the window leave
nothing.

    recorder = Recorder(folder, rank=rank, window=(2, 3), clock=align_clocks(barrier, exchange))
    recorder.begin_minibatch(2)
    recorder.begin_microbatch(0, tokens=4096, squared_tokens=6_000_000)
    recorder.span("gather", unit, start_s, end_s, size_bytes)     # times by recorder.now_s()
    recorder.end_microbatch()
    recorder.end_minibatch()
    recorder.close()

Spans must be reported in the order in which they end, and a wait before the transfer that it precedes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

from odcsim.engines.timeline import SpanName
from odcsim.trace_format import ClockInfo, RankTraceWriter, TraceSpan

__all__ = ["NullRecorder", "Recorder", "SpanObserver", "now_s"]

now_s = time.perf_counter

# What spans of one microbatch share: its minibatch, itself, its tokens and its squared tokens.
_Context = tuple[int, int, int, int]

_VALUES_OF_A_SPAN = 6
# Spans kept in memory before a minibatch's end writes them: some 20 MB.
_MOST_KEPT_SPANS = 100_000


class SpanObserver(Protocol):
    """Who is told of what a recorder is told; see `odcrt.tracing.compute_tracker`."""

    def begin_microbatch(self) -> None:
        """A microbatch begins."""

    def end_microbatch(self) -> None:
        """The microbatch is over; what is still to be kept of it must be kept now."""

    def interval(self, name: SpanName, unit: int, start_s: float, end_s: float) -> None:
        """A span is reported, and kept after this."""


class Recorder:
    """Records one rank.

    A recorder is a context manager that closes itself, also after an exception: the spans until then are worth keeping.

    Args:
        folder: of the run, for the rank's trace; None keeps spans in memory alone (see `spans`).
        rank: this rank.
        window: the minibatches to record: a range, or the first one and how many.
        clock: from `align_clocks`; by default, times stay as the rank's own clock reads them.
        timer: reads that clock.

    Attributes:
        recording: whether spans are kept just now.
        observer: told of every span and microbatch while recording.
        now_s: reads the clock.
    """

    __slots__ = (
        "_context",
        "_minibatch",
        "_rank",
        "_rows",
        "_window",
        "_writer",
        "_zero_s",
        "now_s",
        "observer",
        "recording",
    )

    def __init__(
        self,
        folder: Path | None,
        *,
        rank: int,
        window: range | tuple[int, int],
        clock: ClockInfo | None = None,
        timer: Callable[[], float] = now_s,
    ) -> None:
        self._rank = rank
        self._window = window if isinstance(window, range) else range(window[0], window[0] + window[1])
        assert self._window.step == 1, "a window has no gaps"
        self._zero_s = 0.0 if clock is None else clock.zero_s(rank)
        self._writer = None if folder is None else RankTraceWriter(folder, rank=rank)
        # The values of all spans one after the other. Floats, whole numbers and names are no burden to the garbage
        # collector; a tuple for each span would make it run every few hundred spans.
        self._rows: list[Any] = []
        self._minibatch = -1
        self._context: _Context = (-1, -1, 0, 0)
        self.recording = False
        self.observer: SpanObserver | None = None
        self.now_s = timer

    @property
    def window(self) -> range:
        """The minibatches that are recorded."""
        return self._window

    def begin_minibatch(self, minibatch: int) -> None:
        """What follows belongs to this minibatch."""
        self._minibatch = minibatch
        self._context = (minibatch, -1, 0, 0)
        self.recording = minibatch in self._window

    def begin_microbatch(self, microbatch: int, *, tokens: int = 0, squared_tokens: int = 0) -> None:
        """What follows belongs to this microbatch, which holds so many tokens (0: not known)."""
        if self.recording:
            self._context = (self._minibatch, microbatch, tokens, squared_tokens)
            if self.observer is not None:
                self.observer.begin_microbatch()

    def span(self, name: SpanName, unit: int, start_s: float, end_s: float, size_bytes: int = 0) -> None:
        """Keep a span, if its minibatch is recorded.

        Args:
            name: what was done.
            unit: FSDP unit, or -1.
            start_s: by `now_s`.
            end_s: by `now_s`.
            size_bytes: that a transfer moved.
        """
        if self.recording:
            if self.observer is not None:
                self.observer.interval(name, unit, start_s, end_s)
            self._rows += (name, unit, start_s, end_s, size_bytes, self._context)

    def keep(self, name: SpanName, unit: int, start_s: float, end_s: float) -> None:
        """Keep a span that the observer need not be told of, since it comes from there."""
        self._rows += (name, unit, start_s, end_s, 0, self._context)

    def end_microbatch(self) -> None:
        """What follows belongs to no microbatch; to be called as soon as backward has returned."""
        if self.recording:
            if self.observer is not None:
                self.observer.end_microbatch()
            self._context = (self._minibatch, -1, 0, 0)

    def end_minibatch(self) -> None:
        """Nothing is kept until the next minibatch begins."""
        self.recording = False
        if self._writer is not None and len(self._rows) >= _MOST_KEPT_SPANS * _VALUES_OF_A_SPAN:
            self._write(self._writer)

    def spans(self) -> list[TraceSpan]:
        """What is in memory: everything so far for a recorder without a folder. In the order of a trace."""
        kept = [
            TraceSpan(
                name,
                unit,
                minibatch,
                microbatch,
                # The clock counts nanoseconds; what lies beyond is noise of the subtraction.
                round(start_s - self._zero_s, 9),
                round(end_s - self._zero_s, 9),
                tokens,
                squared_tokens,
                size_bytes,
            )
            for name, unit, start_s, end_s, size_bytes, (minibatch, microbatch, tokens, squared_tokens) in self._kept()
        ]
        # Within a minibatch only: a clock that jumped must show.
        return sorted(kept, key=lambda span: (span.minibatch, span.start_s, span.end_s))

    def _kept(self) -> Iterator[tuple[Any, ...]]:
        values = iter(self._rows)
        return zip(*[values] * _VALUES_OF_A_SPAN, strict=True)

    def _write(self, writer: RankTraceWriter) -> None:
        writer.write_spans(self.spans())
        self._rows.clear()

    def close(self) -> None:
        """Finish the trace. Safe to call twice.

        Raises:
            InputError: the folder cannot be written to.
        """
        self.recording = False
        if self._writer is not None:
            self._write(self._writer)
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class NullRecorder(Recorder):
    """Records nothing, for next to nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None, rank=0, window=range(0))

    def begin_minibatch(self, minibatch: int) -> None:
        """Nothing."""

    def begin_microbatch(self, microbatch: int, *, tokens: int = 0, squared_tokens: int = 0) -> None:
        """Nothing."""

    def span(self, name: SpanName, unit: int, start_s: float, end_s: float, size_bytes: int = 0) -> None:
        """Nothing."""

    def end_microbatch(self) -> None:
        """Nothing."""

    def end_minibatch(self) -> None:
        """Nothing."""
