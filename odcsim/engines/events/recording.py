"""Spans of the microbatches of one rank. What has no length leaves no span. Times in seconds of the environment."""

from __future__ import annotations

from odcsim.engines.events.transfers import Issue, Transfer
from odcsim.engines.timeline import Span, SpanName, Stream
from odcsim.schedule import Visit

__all__ = ["RankRecorder"]


class RankRecorder:
    """Collects what one rank does.

    Attributes:
        microbatch: the one that the rank is in; the rank keeps it up to date.
    """

    def __init__(self, rank: int, *, visits: tuple[Visit, ...]) -> None:
        self._rank = rank
        self._visits = visits
        self._spans: list[Span] = []
        self._streams: list[_RecordedStream] = []
        self.microbatch = -1

    def computed(self, visit: int, start_s: float, end_s: float) -> None:
        """The rank computed the visit with this index."""
        self.add(self._visits[visit].phase, self._visits[visit].unit, self.microbatch, start_s, end_s, "compute")

    def waited(self, start_s: float, end_s: float) -> None:
        """The compute stream stood still for other ranks."""
        self.add("wait", -1, self.microbatch, start_s, end_s, "compute")

    def recorded(self, issue: Issue, stream: Stream) -> Issue:
        """The same as `issue`, with a span for each transfer."""
        recorded = _RecordedStream(self, issue, stream=stream, visits=self._visits)
        self._streams.append(recorded)
        return recorded.issue

    def add(self, name: SpanName, unit: int, microbatch: int, start_s: float, end_s: float, stream: Stream) -> None:
        """Keep a span, if it has a length."""
        if end_s > start_s:
            self._spans.append(Span(self._rank, name, unit, microbatch, start_s, end_s, stream))

    def finish(self) -> list[Span]:
        """All spans, once the rank is done; streams one after the other."""
        for stream in self._streams:
            stream.close_latest()
        self._streams.clear()
        return self._spans


class _RecordedStream:
    """Notes each transfer when the next one is issued: by then it is over, and its times are known."""

    def __init__(self, recorder: RankRecorder, issue: Issue, *, stream: Stream, visits: tuple[Visit, ...]) -> None:
        self._recorder = recorder
        self._issue = issue
        self._stream: Stream = stream
        self._visits = visits
        self._latest: Transfer | None = None
        self._visit = -1
        self._microbatch = 0  # of the latest transfer, which may be ahead of the compute stream's

    def issue(self, visit: int) -> Transfer:
        """See `Issue`."""
        self.close_latest()
        if visit <= self._visit:
            self._microbatch += 1
        self._visit = visit
        self._latest = self._issue(visit)
        return self._latest

    def close_latest(self) -> None:
        """Keep the latest transfer, which is over."""
        if self._latest is not None:
            name: SpanName = "gather" if self._stream == "gather" else "scatter_accumulate"
            self._recorder.add(
                name,
                self._visits[self._visit].unit,
                self._microbatch,
                self._latest.start_s,
                self._latest.end_s,
                self._stream,
            )
