"""Spans: what one rank did, for how long, and for which unit and microbatch; each is one line of JSON in a trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, get_args

from odcsim.engines.timeline import SpanName, Stream
from odcsim.errors import InputError
from odcsim.suggest import unknown_name
from odcsim.trace_format.numbers import LARGEST, is_finite_number

__all__ = ["COMPUTE_NAMES", "SPAN_NAMES", "TraceSpan", "span_from_line"]

SPAN_NAMES: tuple[SpanName, ...] = get_args(SpanName)

# A rank does one of these at a time.
COMPUTE_NAMES = frozenset({"forward", "backward", "optimizer"})

_STREAMS: dict[SpanName, Stream] = {"gather": "gather", "scatter_accumulate": "reduce"}

# Keys of a line that hold whole numbers, and the least of each.
_WHOLE_NUMBERS = {"unit": -1, "minibatch": 0, "microbatch": -1, "tokens": 0, "squared_tokens": 0, "bytes": 0}
_TIMES = ("start_s", "end_s")


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """Something that one rank did.

    Attributes:
        name: what.
        unit: FSDP unit: 0 is the root, blocks count from 1; -1 where the span belongs to none.
        minibatch: the run's minibatch, from 0.
        microbatch: position in the rank's order, or -1 where the span belongs to none.
        start_s: start, in seconds since the run's origin.
        end_s: end.
        tokens: of the microbatch; 0 where the span belongs to none, or where they are not known.
        squared_tokens: sum of the squared lengths of the microbatch's samples, likewise.
        size_bytes: that a transfer moved to or from this rank; 0 for everything else. The line's key is "bytes".
    """

    name: SpanName
    unit: int
    minibatch: int
    microbatch: int
    start_s: float
    end_s: float
    tokens: int = 0
    squared_tokens: int = 0
    size_bytes: int = 0

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s

    @property
    def stream(self) -> Stream:
        """The resource that the span held, or on which it waited."""
        return _STREAMS.get(self.name, "compute")

    def to_line(self) -> str:
        """The line of a trace, its end included."""
        # float() because NumPy's numbers, which are floats too, are written differently.
        return (
            f'{{"name":"{self.name}","unit":{self.unit},"minibatch":{self.minibatch},"microbatch":{self.microbatch},'
            f'"start_s":{float(self.start_s)!r},"end_s":{float(self.end_s)!r},"tokens":{self.tokens},'
            f'"squared_tokens":{self.squared_tokens},"bytes":{self.size_bytes}}}\n'
        )


def span_from_line(line: bytes, *, file: object, number: int) -> TraceSpan:
    """The span that a line holds.

    Args:
        line: as read, with its end.
        file: the trace, for messages.
        number: of the line, from 1.

    Raises:
        InputError: the line is cut off, is not JSON, lacks a key, or holds a value that is not allowed.
    """
    where: dict[str, Any] = {"file": file, "key": f"line {number}"}
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        if not line.endswith(b"\n"):
            raise InputError("the trace is cut off in the middle of this line; record the run again", **where) from None
        raise InputError("is not JSON; a line of a trace is one JSON object", **where) from None
    if type(record) is not dict:
        raise InputError("must be a JSON object", **where)
    try:
        name = record["name"]
        whole = {key: record[key] for key in _WHOLE_NUMBERS}
        times = [record[key] for key in _TIMES]
    except KeyError as missing:
        raise InputError(f"the span lacks the key {missing}", **where) from None
    if name not in SPAN_NAMES:
        raise unknown_name("span name", name, SPAN_NAMES, **where)
    for key, number_ in whole.items():
        if type(number_) is not int or number_ < _WHOLE_NUMBERS[key]:
            raise InputError(f"{key} must be a whole number of at least {_WHOLE_NUMBERS[key]}", value=number_, **where)
        if number_ > LARGEST:
            raise InputError(f"{key} must be at most {LARGEST}", value=number_, **where)
    for key, time_s in zip(_TIMES, times, strict=True):
        if not is_finite_number(time_s):
            raise InputError(f"{key} must be a finite number of seconds", value=time_s, **where)
    start_s, end_s = map(float, times)
    if end_s < start_s:
        raise InputError(f"the span ends at {end_s:.9g} s, before its start at {start_s:.9g} s", **where)
    return TraceSpan(
        name,
        whole["unit"],
        whole["minibatch"],
        whole["microbatch"],
        start_s,
        end_s,
        whole["tokens"],
        whole["squared_tokens"],
        whole["bytes"],
    )
