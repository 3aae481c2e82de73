"""Whose compute is whose: the rules of the tracker on hand-made sequences of marks, in FSDP2's order and in others.

Every stretch of compute has a length of its own, so that a wrong owner shows in the sums.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcrt.tracing.compute_tracker import ComputeTracker
from odcrt.tracing.recorder import Recorder


class Rank:
    """A rank on a clock of its own: marks and intervals as they come, compute as time that passes between them."""

    def __init__(self, *, window=range(1)):
        self.at_s = 0.0
        self.reads = 0
        self.recorder = Recorder(None, rank=0, window=window, timer=self.clock)
        self.tracker = ComputeTracker(self.recorder)
        self.recorder.begin_minibatch(0)
        self.recorder.begin_microbatch(0, tokens=10, squared_tokens=100)

    def clock(self):
        self.reads += 1
        return self.at_s

    def computes(self, length_s):
        self.at_s += length_s

    def interval(self, name, unit, length_s=100.0):
        self.recorder.span(name, unit, self.at_s, self.at_s + length_s)
        self.at_s += length_s

    def gather(self, unit):
        self.interval("gather", unit)

    def reduce(self, unit):
        self.interval("scatter_accumulate", unit)

    def wait(self):
        self.interval("wait", -1)

    def enter(self, unit):
        self.tracker.forward_enter(unit)

    def leave(self, unit):
        self.tracker.forward_exit(unit)

    def arrives(self, unit):
        self.tracker.backward_enter(unit)

    def forward(self, blocks, *, waits=False):
        """The forward of a root and its blocks: 1 s of embedding, 10 u of block u, 5 s of head."""
        self.enter(0)
        self.collective(self.gather, 0, waits=waits)
        self.computes(1.0)
        for unit in range(1, blocks + 1):
            self.enter(unit)
            self.collective(self.gather, unit, waits=waits)
            self.computes(10.0 * unit)
            self.leave(unit)
        self.computes(5.0)
        self.leave(0)

    def backward(self, blocks, *, arrivals=True, waits=False, prefetches=True):
        """FSDP2's backward: 7 s of loss and head, 20 u of block u, and 2 s of embedding."""

        def gathers(unit):
            if unit >= 1:
                self.collective(self.gather, unit, waits=waits)

        if prefetches:
            gathers(blocks)
        self.computes(7.0)
        for unit in range(blocks, 0, -1):
            gathers(unit - 1 if prefetches else unit)
            if arrivals:
                self.arrives(unit)
            self.computes(20.0 * unit)
            self.collective(self.reduce, unit, waits=waits)
        self.computes(2.0)
        self.collective(self.reduce, 0, waits=waits)

    def collective(self, transfer, unit, *, waits):
        if waits:
            self.wait()
        transfer(unit)

    def computed(self):
        """Seconds by name and unit, once the microbatch is over."""
        self.recorder.end_microbatch()
        self.recorder.end_minibatch()
        totals = Counter()
        for span in self.recorder.spans():
            if span.name in {"forward", "backward"}:
                assert (span.microbatch, span.tokens) == (0, 10)
                totals[span.name, span.unit] += span.duration_s
        return dict(totals)


def whole_microbatch(blocks):
    """What `Rank.forward` and `Rank.backward` compute."""
    return {
        ("forward", 0): 6.0,
        **{("forward", unit): 10.0 * unit for unit in range(1, blocks + 1)},
        ("backward", 0): 9.0,
        **{("backward", unit): 20.0 * unit for unit in range(1, blocks + 1)},
    }


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("arrivals", [False, True])
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_the_order_of_fsdp2(blocks, arrivals, waits):
    rank = Rank()
    rank.forward(blocks, waits=waits)
    rank.backward(blocks, arrivals=arrivals, waits=waits)
    assert rank.computed() == whole_microbatch(blocks)


def test_a_single_block_needs_the_arrival_of_its_gradient_to_be_told_from_the_head():
    rank = Rank()
    rank.forward(1)
    rank.backward(1)
    assert rank.computed() == whole_microbatch(1)
    rank = Rank()
    rank.forward(1)
    rank.backward(1, arrivals=False)
    # Nothing marks where the head ends: rule 2 gives all to the block.
    assert rank.computed() == {**whole_microbatch(1), ("backward", 0): 2.0, ("backward", 1): 27.0}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("arrivals", [False, True])
def test_gathers_that_were_not_prefetched(arrivals, waits):
    rank = Rank()
    rank.forward(3, waits=waits)
    rank.backward(3, prefetches=False, arrivals=arrivals, waits=waits)
    assert rank.computed() == whole_microbatch(3)


def test_a_model_without_blocks():
    rank = Rank()
    rank.forward(0)
    rank.backward(0)
    assert rank.computed() == whole_microbatch(0)


def test_parameters_kept_after_forward_are_not_gathered_in_backward():
    rank = Rank()
    rank.forward(2)
    rank.computes(7.0)
    for unit in (2, 1):
        rank.arrives(unit)
        rank.computes(20.0 * unit)
        rank.reduce(unit)
    rank.computes(2.0)
    rank.reduce(0)
    assert rank.computed() == whole_microbatch(2)


def test_copies_of_a_gathered_unit_are_part_of_its_backward():
    """Between a block's reduction and the next one's start, FSDP2 unpacks the parameters of the next."""
    rank = Rank()
    rank.forward(3)
    rank.gather(3)
    rank.computes(7.0)
    rank.gather(2)
    rank.arrives(3)
    rank.computes(60.0)
    rank.reduce(3)
    rank.computes(0.5)  # block 2 is unpacked
    rank.gather(1)
    rank.arrives(2)
    rank.computes(40.0)
    rank.reduce(2)
    rank.computes(0.25)
    rank.arrives(1)
    rank.computes(20.0)
    rank.reduce(1)
    rank.computes(2.0)
    rank.reduce(0)
    assert rank.computed() == {**whole_microbatch(3), ("backward", 2): 40.5, ("backward", 1): 20.25}


@pytest.mark.parametrize("arrivals", [False, True])
@pytest.mark.parametrize("stops", [False, True])
def test_recomputation_is_backward(arrivals, stops):
    """The block's forward runs again in its backward; modules inside of it may be units as well."""
    rank = Rank()
    rank.forward(2)
    rank.gather(2)
    rank.computes(7.0)
    for unit in (2, 1):
        if unit == 2:
            rank.gather(1)
        if arrivals:
            rank.arrives(unit)
        rank.computes(0.125)
        rank.enter(unit)
        rank.computes(10.0 * unit)
        rank.leave(unit)  # also where an exception stops it
        if not stops:
            rank.computes(0.5)
        rank.computes(20.0 * unit)
        rank.reduce(unit)
    rank.computes(2.0)
    rank.reduce(0)
    extra = 0.125 if stops else 0.625
    # Without arrivals, what precedes the recomputation of the first block cannot be told from the head.
    early = 0.0 if arrivals else 0.125
    assert rank.computed() == {
        **whole_microbatch(2),
        ("backward", 2): 60.0 + extra - early,
        ("backward", 1): 30.0 + extra,
        ("backward", 0): 9.0 + early,
    }


def test_a_unit_without_gradients_keeps_its_backward():
    """A frozen block is computed through and not reduced."""
    rank = Rank()
    rank.forward(3)
    rank.gather(3)
    rank.computes(7.0)
    rank.gather(2)
    rank.arrives(3)
    rank.computes(60.0)
    rank.reduce(3)
    rank.gather(1)
    rank.arrives(2)
    rank.computes(40.0)
    rank.arrives(1)
    rank.computes(20.0)
    rank.reduce(1)
    rank.computes(2.0)
    rank.reduce(0)
    assert rank.computed() == whole_microbatch(3)


def test_reductions_in_the_order_of_the_model_at_the_end_of_backward():
    """FSDP2 reduces units that autograd did not bring up at the very end, the root first."""
    rank = Rank()
    rank.forward(2)
    rank.gather(2)
    rank.computes(7.0)
    rank.gather(1)
    rank.arrives(2)
    rank.computes(40.0)
    rank.reduce(2)
    rank.arrives(1)
    rank.computes(20.0)
    rank.reduce(0)
    rank.computes(0.5)
    rank.reduce(1)
    assert rank.computed() == {**whole_microbatch(2), ("backward", 0): 7.0, ("backward", 1): 20.5}


def test_another_units_reduction_does_not_end_a_backward():
    rank = Rank()
    rank.forward(2)
    rank.arrives(1)
    rank.computes(20.0)
    rank.reduce(0)
    rank.computes(3.0)
    rank.arrives(2)
    rank.computes(40.0)
    rank.reduce(2)
    assert rank.computed() == {
        ("forward", 0): 6.0,
        ("forward", 1): 10.0,
        ("forward", 2): 20.0,
        ("backward", 1): 23.0,
        ("backward", 2): 40.0,
    }


def test_what_follows_the_last_reduction_belongs_to_its_unit():
    rank = Rank()
    rank.forward(1)
    rank.backward(1)
    rank.computes(0.5)  # the gradient is added to its parameter
    assert rank.computed() == {**whole_microbatch(1), ("backward", 0): 9.5}


def test_a_backward_without_reductions_is_kept_as_far_as_it_is_known():
    """Gradients that are kept unreduced, as under `set_requires_gradient_sync(False)`."""
    rank = Rank()
    rank.forward(2)
    rank.gather(2)
    rank.computes(7.0)
    rank.gather(1)
    rank.arrives(2)
    rank.computes(40.0)
    rank.arrives(1)
    rank.computes(20.0)
    rank.recorder.end_microbatch()
    rank.computes(50.0)
    rank.interval("settle", -1)
    assert rank.computed() == {**whole_microbatch(2), ("backward", 0): 7.0}


def test_a_forward_without_backward_leaves_forward_alone():
    rank = Rank()
    rank.forward(2)
    rank.computes(50.0)  # the loss is printed, say
    assert {name for name, _ in rank.computed()} == {"forward"}


def test_a_microbatch_begins_anew_though_nobody_said_that_the_last_one_was_over():
    rank = Rank()
    rank.forward(2)
    rank.recorder.begin_microbatch(0, tokens=10, squared_tokens=100)
    rank.computes(50.0)
    rank.gather(0)
    rank.computes(50.0)
    assert {name for name, _ in rank.computed()} == {"forward"}


def test_two_forwards_before_a_backward():
    """A reference model's forward, or the same model's without gradients, comes first."""
    rank = Rank()
    rank.forward(2)
    rank.computes(50.0)
    rank.forward(2)
    rank.backward(2)
    expected = whole_microbatch(2)
    assert rank.computed() == {key: (2 if key[0] == "forward" else 1) * time_s for key, time_s in expected.items()}


def test_time_between_microbatches_is_nobodys():
    rank = Rank(window=range(2))
    rank.forward(2)
    rank.backward(2)
    rank.recorder.end_microbatch()
    rank.computes(1000.0)
    rank.recorder.begin_microbatch(0, tokens=10, squared_tokens=100)
    rank.computes(1000.0)
    rank.forward(2)
    rank.backward(2)
    assert rank.computed() == {key: 2 * time_s for key, time_s in whole_microbatch(2).items()}


def test_a_loop_that_names_no_microbatches_is_tracked_too():
    rank = Rank()
    rank.recorder.end_microbatch()
    for _ in range(2):
        rank.forward(2)
        rank.backward(2)
        rank.computes(1000.0)
        rank.interval("optimizer", -1)
    totals = Counter()
    for span in rank.recorder.spans():
        if span.name in {"forward", "backward"}:
            totals[span.name, span.unit] += span.duration_s
    assert totals == {key: 2 * time_s for key, time_s in whole_microbatch(2).items()}


def test_a_forward_that_fails_inside_does_not_leave_the_tracker_astray():
    rank = Rank()
    rank.enter(0)
    rank.computes(1.0)
    rank.enter(1)
    rank.enter(2)
    rank.computes(4.0)
    rank.leave(0)  # nobody saw 2 and 1 end
    rank.leave(7)  # never entered
    rank.computes(8.0)
    rank.reduce(1)
    assert rank.computed() == {("forward", 0): 1.0, ("forward", 2): 4.0, ("backward", 1): 8.0}


def test_a_block_run_on_its_own_is_forward():
    rank = Rank()
    rank.enter(1)
    rank.computes(3.0)
    rank.leave(1)
    rank.computes(50.0)
    rank.gather(2)
    rank.computes(50.0)
    rank.arrives(1)  # its backward has nothing to tell it by
    assert rank.computed() == {("forward", 1): 3.0}


def test_marks_outside_of_the_window_do_not_even_read_the_clock():
    rank = Rank(window=range(5, 6))
    rank.forward(2)
    rank.backward(2)
    assert rank.reads == 0
    assert rank.computed() == {}


def test_a_stretch_is_one_span_however_many_marks_it_holds():
    rank = Rank()
    rank.forward(1)
    rank.gather(1)
    rank.computes(7.0)
    rank.arrives(1)
    rank.computes(1.0)
    rank.enter(1)
    rank.computes(1.0)
    rank.leave(1)
    rank.computes(1.0)
    rank.reduce(1)
    rank.recorder.end_microbatch()
    backward = [(span.unit, span.duration_s) for span in rank.recorder.spans() if span.name == "backward"]
    assert backward == [(0, 7.0), (1, 3.0)]


# Whatever the order, time is neither lost nor invented

MARKS = st.sampled_from(["enter", "leave", "arrives", "gather", "reduce", "wait"])


@given(marks=st.lists(st.tuples(MARKS, st.integers(1, 3)), max_size=30), in_backward=st.booleans())
def test_spans_never_overlap_and_cover_all_time_that_is_not_transfers(marks, in_backward):
    rank = Rank()
    rank.enter(0)
    rank.computes(1.0)
    if in_backward:
        rank.leave(0)
    for number, (mark, unit) in enumerate(marks):
        rank.computes(1.0 + number / 64)
        getattr(rank, mark)(*([] if mark == "wait" else [unit]))
    if in_backward:
        rank.computes(1.0)
        rank.reduce(1)
    else:
        rank.leave(0)
    end_s = rank.at_s
    rank.recorder.end_microbatch()
    spans = rank.recorder.spans()
    reached_s = 0.0
    for span in spans:
        assert span.start_s == reached_s
        assert span.name != ("forward" if in_backward and reached_s >= 1.0 else "backward")
        reached_s = span.end_s
    assert reached_s == end_s
