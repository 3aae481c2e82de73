"""One rank's spans of a recorded run, sorted into minibatches, microbatches and visits. Times in seconds.

A span of compute belongs to a visit by its unit and phase. The root is visited twice each way (see
`odcsim.schedule.decoder_visits`): what comes before the blocks of a forward is the embedding, what comes after them the
head; in a backward it is the other way round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from odcsim.analysis.observations import Transfer
from odcsim.schedule import ROOT_UNIT, Visit
from odcsim.trace_format import TraceSpan

__all__ = ["RankReader", "VisitPlaces"]

_TRANSFERS = ("gather", "scatter_accumulate")
_ROUNDING_S = 1e-6


class VisitPlaces:
    """Where a span of compute belongs: the position of its visit."""

    def __init__(self, visits: Sequence[Visit]) -> None:
        places: dict[tuple[int, str], list[int]] = defaultdict(list)
        for position, visit in enumerate(visits):
            places[visit.unit, visit.phase].append(position)
        self._places = dict(places)

    def place(self, name: str, unit: int, *, blocks_seen: bool) -> int:
        """The visit of a span; `blocks_seen`: whether a block of the same phase came before it."""
        places = self._places[unit, name]
        return places[int(blocks_seen)] if unit == ROOT_UNIT else places[0]


class RankReader:
    """One rank's spans, sorted into minibatches, microbatches and visits; N minibatches of the window."""

    def __init__(self, places: VisitPlaces, window: range, spans: Iterable[TraceSpan]) -> None:
        minibatches = len(window)
        self.counts = [0] * minibatches
        self.loads: dict[tuple[int, int], tuple[int, int]] = {}
        self.compute_s: dict[tuple[int, int, int], float] = defaultdict(float)
        self.transfers: list[Transfer] = []
        self.durations_s = {name: np.zeros(minibatches) for name in ("publish", "settle", "optimizer")}
        self.start_s_N = np.full(minibatches, np.inf)
        self.first_s_N = np.full(minibatches, np.inf)
        self.last_s_N = np.full(minibatches, -np.inf)
        self.published_s_N = np.full(minibatches, -np.inf)
        self.settling_s_N = np.full(minibatches, np.inf)
        self.settled_s_N = np.full(minibatches, -np.inf)
        self.end_s_N = np.full(minibatches, -np.inf)
        self._places = places
        self._microbatch = (-1, -1)
        self._blocks_seen: set[str] = set()
        self._wait: TraceSpan | None = None
        for span in spans:
            self._read(span, span.minibatch - window.start)
        # A rank without a microbatch begins and ends with its opening.
        idle = ~np.isfinite(self.first_s_N)
        opened_s = np.where(np.isfinite(self.start_s_N), np.maximum(self.start_s_N, self.published_s_N), np.nan)
        self.first_s_N[idle] = opened_s[idle]
        self.last_s_N[idle] = opened_s[idle]

    def _read(self, span: TraceSpan, n: int) -> None:
        self.start_s_N[n] = min(self.start_s_N[n], span.start_s)
        self.end_s_N[n] = max(self.end_s_N[n], span.end_s)
        if span.name in self.durations_s:
            self.durations_s[span.name][n] += span.duration_s
            if span.name == "settle":
                self.settling_s_N[n] = min(self.settling_s_N[n], span.start_s)
                self.settled_s_N[n] = span.end_s
            elif span.name == "publish":
                self.published_s_N[n] = span.end_s
            return
        if span.microbatch < 0:
            return
        m = span.microbatch
        if (n, m) != self._microbatch:
            self._microbatch, self._blocks_seen, self._wait = (n, m), set(), None
        self.counts[n] = max(self.counts[n], m + 1)
        self.loads[n, m] = (span.tokens, span.squared_tokens)
        self.first_s_N[n] = min(self.first_s_N[n], span.start_s)
        self.last_s_N[n] = max(self.last_s_N[n], span.end_s)
        if span.name == "wait":
            self._wait = span
        elif span.name in _TRANSFERS:
            ready_s = self._ready_for(span)
            self.transfers.append(
                Transfer(span.name, span.unit, n, m, ready_s, span.start_s, span.end_s, span.size_bytes)
            )
        elif span.unit >= 0:
            self._wait = None
            place = self._places.place(span.name, span.unit, blocks_seen=span.name in self._blocks_seen)
            self.compute_s[n, m, place] += span.duration_s
            if span.unit != ROOT_UNIT:
                self._blocks_seen.add(span.name)

    def _ready_for(self, transfer: TraceSpan) -> float:
        """When the rank was ready for a transfer: since the wait before it, if there is one."""
        wait = self._wait
        # A wait that outlasts a transfer's start is for another one, which runs beside it.
        if wait is None or wait.end_s > transfer.start_s + _ROUNDING_S:
            return transfer.start_s
        self._wait = None
        return wait.start_s
