"""From what one rank did to the spans of its trace, once the others' arrivals are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from odcsim.engines.timeline import SpanName
from odcsim.errors import InputError
from odcsim.foreign.activity import Collective, Computed
from odcsim.foreign.program import Place
from odcsim.trace_format import TraceSpan

__all__ = ["RankSpans"]

_NS = 1_000_000_000
_NO_UNIT = -1

# Start and end in common time, name, unit, minibatch, microbatch, bytes.
_Row = tuple[int, int, SpanName, int, int, int, int]


class RankSpans:
    """Collects the spans of one rank.

    Args:
        offset_ns: of its clock.
        units: numbers of units, by path.
        minibatches: numbers of minibatches, by their position in the rank's program; others are passed over.
        lengths_NM: for each of these numbers, the lengths of the rank's microbatches; empty where they are not known.
        file: where from, for messages.
    """

    def __init__(
        self,
        *,
        offset_ns: int,
        units: Mapping[str, int],
        minibatches: Mapping[int, int],
        lengths_NM: Mapping[int, Sequence[Sequence[int]]],
        file: object,
    ) -> None:
        self._offset_ns = offset_ns
        self._units = units
        self._minibatches = minibatches
        self._lengths_NM = lengths_NM
        self._file = file
        self._rows: list[_Row] = []

    def common_ns(self, moment_ns: int) -> int:
        """A moment of the rank's clock, by rank 0's."""
        return moment_ns - self._offset_ns

    def add_collective(self, part: Collective, last_ns: int) -> None:
        """Keep the rank's wait and transfer.

        Args:
            part: of this rank.
            last_ns: when the last rank arrived, in common time.
        """
        is_transfer = part.name != "other"
        unit = self._units[part.path] if is_transfer else _NO_UNIT
        place = part.place if is_transfer else part.place._replace(microbatch=-1)
        if part.stall_ns is not None:
            since_ns, until_ns = map(self.common_ns, part.stall_ns)
            if (until_ns := min(until_ns, last_ns)) > since_ns:
                self._add(since_ns, until_ns, "wait", unit, place)
        if part.name != "other":
            free_ns = self.common_ns(part.free_ns)
            begins_ns = min(max(last_ns, self.common_ns(part.arrived_ns)), free_ns)
            self._add(begins_ns, free_ns, part.name, unit, place, part.moved_bytes)

    def add_compute(self, computed: Iterable[Computed]) -> None:
        """Keep forwards, backwards and the optimizer's steps.

        Raises:
            InputError: of a unit that rank 0 does not have.
        """
        for one in computed:
            if one.place.minibatch not in self._minibatches:
                continue
            unit = _NO_UNIT if one.name == "optimizer" else self._units.get(one.path)
            if unit is None:
                raise InputError(
                    f"computes unit {one.path}, which the file of rank 0 does not name: the files are of "
                    "different runs",
                    file=self._file,
                )
            self._add(self.common_ns(one.start_ns), self.common_ns(one.end_ns), one.name, unit, one.place)

    def _add(self, start_ns: int, end_ns: int, name: SpanName, unit: int, place: Place, moved_bytes: int = 0) -> None:
        minibatch = self._minibatches[place.minibatch]
        self._rows.append((start_ns, end_ns, name, unit, minibatch, place.microbatch, moved_bytes))

    @property
    def first_ns(self) -> int:
        """When the first span starts, in common time."""
        return min(row[0] for row in self._rows)

    def finished(self, zero_ns: int) -> tuple[TraceSpan, ...]:
        """All spans by start, in seconds since `zero_ns`."""
        return tuple(self._span(row, zero_ns) for row in sorted(self._rows))

    def _span(self, row: _Row, zero_ns: int) -> TraceSpan:
        start_ns, end_ns, name, unit, minibatch, microbatch, moved_bytes = row
        planned = self._lengths_NM.get(minibatch)
        lengths = planned[microbatch] if planned is not None and microbatch >= 0 else ()
        return TraceSpan(
            name,
            unit,
            minibatch,
            microbatch,
            (start_ns - zero_ns) / _NS,
            (end_ns - zero_ns) / _NS,
            sum(lengths),
            sum(length * length for length in lengths),
            moved_bytes,
        )
