"""Compute is attributed by one set of rules, whether the runtime watches or a profiler's file is read."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from odcrt.tracing.compute_tracker import ComputeTracker
from odcrt.tracing.recorder import Recorder
from odcsim.foreign.attribution import Interruption, attribute
from odcsim.foreign.program import FsdpMark, Pass

TRANSFER_NS = 1000


def program(blocks, *, frozen, ahead, left_out):
    """FSDP2's order of marks and transfers, as (what, unit); some marks are left out, as other models may."""
    yield "enter", 0
    yield "gather", 0
    for unit in range(1, blocks + 1):
        yield "enter", unit
        yield "gather", unit
        yield "leave", unit
    yield "leave", 0
    yield "gather", blocks
    for unit in range(blocks, 0, -1):
        if ahead and unit > 1:
            yield "gather", unit - 1
        if unit not in left_out:
            yield "arrives", unit
        if unit not in frozen:
            yield "scatter_accumulate", unit
    yield "scatter_accumulate", 0


@st.composite
def microbatches(draw):
    """Steps, each with the nanoseconds of compute before it; and those after the last one."""
    blocks = draw(st.integers(1, 4))
    some_units = st.sets(st.integers(1, blocks))
    steps = list(program(blocks, frozen=draw(some_units), ahead=draw(st.booleans()), left_out=draw(some_units)))
    times_ns = draw(st.lists(st.integers(0, 9), min_size=len(steps) + 1, max_size=len(steps) + 1))
    return [(time_ns, *step) for time_ns, step in zip(times_ns, steps, strict=False)], times_ns[-1]


def as_the_runtime_watches(steps, last_ns):
    at_s = [0.0]
    recorder = Recorder(None, rank=0, window=range(1), timer=lambda: at_s[0])
    tracker = ComputeTracker(recorder)
    recorder.begin_minibatch(0)
    recorder.begin_microbatch(0)
    marks = {"enter": tracker.forward_enter, "leave": tracker.forward_exit, "arrives": tracker.backward_enter}
    for time_ns, what, unit in steps:
        at_s[0] += time_ns
        if what in marks:
            marks[what](unit)
        else:
            recorder.span(what, unit, at_s[0], at_s[0] + TRANSFER_NS)
            at_s[0] += TRANSFER_NS
    at_s[0] += last_ns
    recorder.end_microbatch()
    return [(s.name, s.unit, s.start_s, s.end_s) for s in recorder.spans() if s.name in {"forward", "backward"}]


def as_a_file_is_read(steps, last_ns):
    at_ns, marks, gaps, paths = 0, [], [], {"": 0}
    names = {"enter": "pre_forward", "leave": "post_forward", "arrives": "pre_backward"}
    for time_ns, what, unit in steps:
        at_ns += time_ns
        path = f"blocks.{unit}" if unit else ""
        paths[path] = unit
        if what in names:
            marks.append(FsdpMark(at_ns, at_ns, names[what], path))
        else:
            gaps.append(Interruption(at_ns, at_ns + TRANSFER_NS, what, path))
            at_ns += TRANSFER_NS
    found = attribute(Pass(steps[0][0], at_ns + last_ns, 0, tuple(marks)), gaps)
    return [(one.name, paths[one.path], one.start_ns, one.end_ns) for one in found]


def seconds(spans):
    totals = Counter()
    for name, unit, start, end in spans:
        totals[name, unit] += end - start
    return +totals


@given(microbatches())
def test_both_give_every_unit_the_same(microbatch):
    watched, read = as_the_runtime_watches(*microbatch), as_a_file_is_read(*microbatch)
    assert seconds(read) == seconds(watched)
    ends = [(start, end) for *_, start, end in read]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
