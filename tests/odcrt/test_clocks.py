"""Aligning clocks: offsets that are found, and how much of them is certain."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcrt.tracing.clocks import align_clocks


def align(offsets_s, entries_s, exits_s, *, hosts=None):
    """Align ranks that enter and leave barriers at these true times: lists of rounds for each rank."""
    hosts = hosts or [f"host{rank}" for rank in range(len(offsets_s))]
    sent = [
        (host, [time_s + offset_s for time_s in entered_s], [time_s + offset_s for time_s in left_s])
        for host, offset_s, entered_s, left_s in zip(hosts, offsets_s, entries_s, exits_s, strict=True)
    ]
    return align_clocks(lambda: None, lambda _own: sent)


def test_the_offset_is_the_median_of_the_exits():
    entries_s = [[0.0, 10.0, 20.0], [0.0, 10.0, 20.0]]
    exits_s = [[1.0, 11.0, 21.0], [1.25, 11.0, 21.125]]
    clock = align([0.0, 100.0], entries_s, exits_s)
    assert clock.alignment == "barriers"
    assert clock.offsets_s == (0.0, 100.125)
    # Rank 1 leaves at least when rank 0 enters, in the tightest round 1 s later by its own clock less 100 s.
    assert clock.uncertainty_s == 1.125
    assert clock.origin_s == 21.0


def test_a_barrier_that_one_side_leaves_late_does_not_mislead_the_bounds():
    """Rank 1 always leaves half a second late, but once enters late too, just before rank 0 leaves."""
    entries_s = [[0.0, 10.0, 20.0], [0.0, 10.0, 20.9375]]
    exits_s = [[1.0, 11.0, 21.0], [1.5, 11.5, 21.5]]
    clock = align([0.0, 0.0], entries_s, exits_s)
    assert clock.offsets_s == (0.0, 0.5)
    assert clock.uncertainty_s == pytest.approx(1.0)
    # The offset cannot be below 20.9375 - 21: the bound that counts is the upper one, 1.5.
    assert -0.0625 <= 0.0 <= clock.offsets_s[1] <= 1.5


def test_an_estimate_beyond_the_bounds_is_brought_back():
    # In two rounds of three rank 1 leaves late, by 0.5; the third shows that the offset is at most 0.125.
    entries_s = [[0.0, 10.0, 20.0], [0.0, 10.0, 20.0]]
    exits_s = [[0.25, 10.25, 20.0625], [0.75, 10.75, 20.125]]
    clock = align([0.0, 0.0], entries_s, exits_s)
    assert clock.offsets_s == (0.0, 0.125)
    assert clock.uncertainty_s == 0.125 + 0.0625


def test_ranks_of_one_host_read_one_clock():
    entries_s = [[0.0, 10.0]] * 3
    exits_s = [[1.0, 11.0], [1.5, 11.25], [1.5, 11.25]]
    clock = align([0.0, 0.0, 0.0], entries_s, exits_s, hosts=["alpha", "alpha", "beta"])
    assert clock.offsets_s == (0.0, 0.0, 0.375)
    assert clock.alignment == "barriers"
    assert clock.uncertainty_s == 1.375
    clock = align([0.0, 0.0, 0.0], entries_s, exits_s, hosts=["alpha"] * 3)
    assert clock.offsets_s == (0.0, 0.0, 0.0)
    assert clock.alignment == "shared"


def test_a_host_whose_processes_read_different_clocks_is_found_out():
    """Time namespaces shift the clocks of containers, whose host may have one name."""
    clock = align([0.0, -3600.0], [[0.0], [0.0]], [[1.0], [1.0]], hosts=["alpha", "alpha"])
    assert clock.offsets_s == (0.0, -3600.0)
    assert clock.alignment == "barriers"


def test_a_single_rank_is_certain():
    clock = align([0.0], [[0.0]], [[1.0]])
    assert (clock.offsets_s, clock.uncertainty_s, clock.alignment) == ((0.0,), 0.0, "shared")


ROUND = st.tuples(*[st.floats(0.0, 1.0)] * 4)


@given(rounds=st.lists(ROUND, min_size=1, max_size=6), offset_s=st.floats(-5.0, 5.0))
def test_the_true_offset_is_never_farther_than_the_uncertainty(rounds, offset_s):
    entries_s, exits_s = ([], []), ([], [])
    for position, (first_in, second_in, first_out, second_out) in enumerate(rounds):
        opens_s = 10.0 * position + max(first_in, second_in)
        entries_s[0].append(10.0 * position + first_in)
        entries_s[1].append(10.0 * position + second_in)
        exits_s[0].append(opens_s + first_out)
        exits_s[1].append(opens_s + second_out)
    clock = align([0.0, offset_s], entries_s, exits_s)
    assert abs(clock.offsets_s[1] - offset_s) <= clock.uncertainty_s + 1e-9


@pytest.mark.timeout(30)
def test_ranks_that_really_meet_find_their_offsets():
    offsets_s = [0.0, 1234.5, -0.75]
    barrier, sent, clocks = threading.Barrier(3, timeout=10), {}, {}

    def run(rank):
        def exchange(own):
            sent[rank] = own
            barrier.wait()
            return [sent[position] for position in range(3)]

        clocks[rank] = align_clocks(
            barrier.wait, exchange, timer=lambda: time.perf_counter() + offsets_s[rank], host=f"host{rank}"
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert clocks[0].offsets_s == clocks[1].offsets_s == clocks[2].offsets_s
    assert clocks[0].uncertainty_s < 0.2
    for found_s, true_s in zip(clocks[0].offsets_s, offsets_s, strict=True):
        assert abs(found_s - true_s) <= clocks[0].uncertainty_s
