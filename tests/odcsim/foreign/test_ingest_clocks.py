"""Clocks of files: aligned where they differ, named where they jump."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import on_cpu, on_gpu, write

from odcsim.errors import InputError
from odcsim.foreign import ingest
from odcsim.foreign.clocks import align_files, find_jump

BOTH = pytest.mark.parametrize("make", [on_cpu, on_gpu])


def shifted(documents, **offsets_us):
    for document, offset_us in zip(documents, offsets_us["by"], strict=True):
        for event in document.events:
            event["ts"] += offset_us
    return documents


def without_offsets(run):
    return [
        [(span.name, span.unit, span.microbatch, round(span.start_s, 6), round(span.end_s, 6)) for span in spans]
        for spans in run.spans_of_ranks
    ]


@BOTH
@pytest.mark.parametrize("hosts", [("alpha", "beta", "beta"), ("", "", ""), ("alpha", "beta", "gamma")])
def test_clocks_that_differ_are_aligned(tmp_path, make, hosts):
    plain = ingest(write(make(ranks=3), tmp_path))
    documents = shifted(make(ranks=3), by=(0, 2_500_000, 2_500_000))
    for document, host in zip(documents, hosts, strict=True):
        document.host = host
    run = ingest(write(documents, tmp_path))
    assert run.info.clock.alignment == "collectives"
    assert run.info.clock.offsets_s == pytest.approx((0, 2.5, 2.5), abs=1e-6)
    assert 0 < run.info.clock.uncertainty_s <= 100e-6
    assert run.info.hosts == tuple(host or "unknown" for host in hosts)
    assert without_offsets(run) == without_offsets(plain)
    (note,) = run.notes
    assert note.startswith(
        "the clock of rank 1 is 2.500000 s off rank 0's, unless its file begins at another minibatch"
    )


def test_machines_of_one_name_may_have_clocks_that_differ_a_little(tmp_path):
    documents = shifted(on_cpu(ranks=3), by=(0, 300, 300))  # more than a transfer takes, less than half a minibatch
    run = ingest(write(documents, tmp_path))
    assert run.info.clock.alignment == "collectives"
    assert run.info.clock.offsets_s == pytest.approx((0, 300e-6, 300e-6), abs=1e-9)
    assert run.notes == ()
    assert without_offsets(run) == without_offsets(ingest(write(on_cpu(ranks=3), tmp_path)))


def test_numbers_of_steps_say_that_it_is_the_clock(tmp_path):
    documents = shifted(on_cpu(numbered_from=3), by=(0, 10_000_000))
    run = ingest(write(documents, tmp_path))
    assert run.info.clock.offsets_s == pytest.approx((0, 10))
    assert run.notes == ()


def test_ranks_of_one_machine_share_a_clock_if_they_can(tmp_path):
    documents = shifted(on_cpu(ranks=3), by=(0, 20, -20))  # less than any transfer takes
    clock = ingest(write(documents, tmp_path)).info.clock
    assert (clock.alignment, clock.offsets_s) == ("shared", (0.0, 0.0, 0.0))
    assert clock.uncertainty_s >= 20e-6


@BOTH
def test_a_clock_that_jumps_is_named(tmp_path, make):
    documents = make(ranks=3)
    where = "gloo:" if make is on_cpu else "nccl"
    transfers_us = [event["ts"] for event in documents[2].events if event["name"].startswith(where)]
    halfway_us = transfers_us[len(transfers_us) * 2 // 3]
    for event in documents[2].events:
        if event["ts"] >= halfway_us:
            event["ts"] += 500_000
    with pytest.raises(InputError) as caught:
        ingest(write(documents, tmp_path))
    message = str(caught.value)
    assert "rank2.json: the clock of rank 2 jumped" in message
    assert " of layers." in message or " of the root" in message
    assert "s before rank 2 arrived" in message
    assert "minibatch 1" in message


def test_files_that_begin_at_different_minibatches_do_not_pass_for_one_run(tmp_path):
    """Without numbers of steps, the clock they share tells: nobody's minibatch 1 is another's minibatch 0."""
    documents = on_cpu(minibatches=3)
    first_step_us = next(event["ts"] for event in documents[1].events if event["name"].startswith("Optimizer"))
    documents[1].events = [event for event in documents[1].events if event["ts"] > first_step_us + 30]
    last = [number for number, event in enumerate(documents[0].events) if event["name"].startswith("Optimizer")][-1]
    del documents[0].events[last:]
    with pytest.raises(InputError, match="do not begin at the same minibatch"):
        ingest(write(documents, tmp_path))


# --- the arithmetic ---


@st.composite
def meetings(draw):
    """True arrivals and ends of K collectives on D ranks, and clocks' offsets."""
    ranks, collectives = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    numbers = st.lists(st.integers(0, 1000), min_size=ranks, max_size=ranks)
    arrived, end, now = [], [], 0
    for _ in range(collectives):
        arrivals = [now + wait for wait in draw(numbers)]
        now = max(arrivals)
        ends = [now + transfer for transfer in draw(numbers)]
        arrived.append(arrivals)
        end.append(ends)
        now = max(ends)
    offsets = [0, *(draw(st.integers(-(10**12), 10**12)) for _ in range(ranks - 1))]
    return np.array(arrived).T + 10**18, np.array(end).T + 10**18, np.array(offsets)


@given(meetings(), st.booleans())
def test_offsets_are_within_the_uncertainty_and_nothing_seems_to_jump(met, share_hosts):
    arrived_DK, end_DK, offsets_D = met
    hosts = [f"host {offset}" if share_hosts else "" for offset in offsets_D]
    alignment = align_files(arrived_DK + offsets_D[:, None], end_DK + offsets_D[:, None], hosts)
    assert np.abs(alignment.offsets_ns_D - offsets_D).max() <= alignment.uncertainty_ns
    assert alignment.offsets_ns_D[0] == 0
    assert alignment.is_shared == (share_hosts and not offsets_D.any())
    aligned = offsets_D[:, None] - alignment.offsets_ns_D[:, None]
    assert find_jump(arrived_DK + aligned, end_DK + aligned) is None


@given(meetings(), st.integers(0, 5), st.integers(10**7, 10**9))
def test_a_jump_is_found_where_it_is(met, position, by):
    arrived_DK, end_DK, _ = met
    position %= arrived_DK.shape[1]
    arrived_DK[1, position] += by
    end_DK[1, position] += by
    jump = find_jump(arrived_DK, end_DK)
    assert jump is not None
    assert (jump.collective, jump.rank, jump.late) == (position, 1, 1)
    assert by - 2000 <= jump.by_ns <= by + 2000
