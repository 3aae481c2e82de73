"""The table in which ranks tell each other what they do: notes, failures, barriers, signs of life."""

from __future__ import annotations

import signal
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import Ranks, run, tell  # noqa: E402

from odcrt.errors import DeadlineExceeded, PeerFailed, RankLost  # noqa: E402
from odcrt.transports import Region  # noqa: E402
from odcrt.transports.control import Control  # noqa: E402
from odcrt.transports.phases import LastSeen, Phase  # noqa: E402
from odcrt.transports.segments import Segment  # noqa: E402
from odcrt.transports.shm import ShmTransport  # noqa: E402

pytestmark = pytest.mark.timeout(30)

RANKS = 3


@pytest.fixture
def controls():
    """The table as all ranks see it; here they are one process, which holds all signs of life itself."""
    segment = Segment.create(Control.size_bytes(RANKS))
    yield [Control(segment, rank=rank, world_size=RANKS, deadline_s=0.1) for rank in range(RANKS)]
    segment.close()


def test_notes_reach_the_others(controls):
    controls[1].note(Phase.GATHER, 4, 17, 2, 123_456_789_012)
    assert controls[0].last_seen(1) == LastSeen(Phase.GATHER, 4, 17, 2, 123_456_789_012)
    assert controls[0].last_seen(2).phase is Phase.STARTING


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (
            LastSeen(Phase.SCATTER_ACCUMULATE, 0, 3, 1, 4096),
            "scatter accumulate of unit 0, minibatch 3, microbatch 1, 4096 tokens",
        ),
        (LastSeen(Phase.SETTLE, -1, 0, -1, -1), "settle, minibatch 0"),
        (LastSeen(Phase.BETWEEN_MINIBATCHES, -1, 12, -1, 0), "between minibatches, minibatch 12, 0 tokens"),
        (LastSeen(Phase.STARTING, -1, -1, -1, -1), "starting"),
    ],
)
def test_what_was_seen_last_in_words(seen, text):
    assert str(seen) == text


# --- failures ---


def test_a_failure_is_reported_to_the_others_and_not_to_oneself(controls):
    for control in controls:
        control.check_failures()
    controls[2].note(Phase.COMPUTE, 1, 5, 0, 64)
    controls[2].fail("ValueError: no")
    for control in controls[:2]:
        with pytest.raises(PeerFailed) as caught:
            control.check_failures()
        assert (
            str(caught.value)
            == "rank 2 failed (compute of unit 1, minibatch 5, microbatch 0, 64 tokens): ValueError: no"
        )
    controls[2].check_failures()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("x" * 1024, "x" * 1024),
        ("x" * 5000, "x" * 1024),
        ("ü" * 512 + "x", "ü" * 512),
        ("x" + "ü" * 600, "x" + "ü" * 511 + "\N{REPLACEMENT CHARACTER}"),
        ("two\nlines", "two\nlines"),
        ("half a pair \ud800", "half a pair ?"),
    ],
)
def test_texts_of_failures_have_a_limit(controls, text, told):
    controls[1].fail(text)
    controls[2].note(Phase.SETTLE, -1, 0, 0, 0)
    with pytest.raises(PeerFailed) as caught:
        controls[0].check_failures()
    assert str(caught.value) == f"rank 1 failed (starting): {told}"
    assert controls[0].last_seen(2).phase is Phase.SETTLE, "a long text must not run into the next row"


def test_a_barrier_ends_with_the_failure_of_a_rank_that_is_not_there(controls):
    controls[1].fail("ValueError: no")
    start_s = time.monotonic()
    with pytest.raises(PeerFailed, match="rank 1 failed"):
        controls[0].barrier("settle")
    assert time.monotonic() - start_s < 2.0


# --- barriers ---


def test_a_barrier_names_who_is_late_and_what_they_did_last(controls):
    controls[0].note(Phase.COMPUTE, 3, 1, 2, 99)
    controls[2].note(Phase.GATHER, 0, 1, 0, 8)
    with pytest.raises(DeadlineExceeded) as caught:
        controls[1].barrier("settle")
    told = str(caught.value)
    assert told.startswith("rank 1 waited 0.1 s at settle for ranks that did not come. Last seen: ")
    assert "rank 0: compute of unit 3, minibatch 1, microbatch 2, 99 tokens; rank 2: gather of unit 0" in told
    assert "all-reduce inside forward" in told


def test_who_has_arrived_is_not_named(controls):
    for rank in (0, 1):
        with pytest.raises(DeadlineExceeded) as caught:
            controls[rank].barrier("settle")
    assert "Last seen: rank 2: starting." in str(caught.value)
    assert controls[2].barrier("settle") < 0.1


def test_who_holds_a_lock_is_named(controls):
    controls[1].note(Phase.SCATTER_ACCUMULATE, 2, 0, 0, 5)
    controls[1].note_lock(7)
    controls[2].note_lock(8)
    told = str(controls[0].late_for_lock(7))
    assert told.endswith("Held by rank 1: scatter accumulate of unit 2, minibatch 0, microbatch 0, 5 tokens")
    controls[1].note_lock(0)
    assert str(controls[0].late_for_lock(7)).endswith("nobody who has told")


def meet_often(times):
    """Nobody is ever more than one barrier ahead of anybody; and what was written before one is seen after it."""
    transport = ShmTransport(deadline_s=20)
    transport.allocate([Region("count", 1, torch.int64)])
    for number in range(1, times + 1):
        transport.view("count")[0] = number
        transport.barrier(Phase.SETTLE)
        seen = [int(transport.view("count", owner=rank)[0]) for rank in range(transport.world_size)]
        assert set(seen) <= {number, number + 1}, (number, seen)
    transport.barrier(Phase.SETTLE)
    transport.close()


def test_barriers_hold_everybody():
    run(meet_often, 500, ranks=RANKS)


def wait_for_the_lost(deadline_s):
    transport = ShmTransport(deadline_s=deadline_s)
    transport.allocate([])
    if dist.get_rank() == 1:
        transport.note(Phase.COMPUTE, unit=2, minibatch=6)
        tell("ready")
        time.sleep(30)
    start_s = time.monotonic()
    with pytest.raises(RankLost) as caught:
        transport.barrier(Phase.SETTLE)
    seen = "compute of unit 2, minibatch 6"
    assert str(caught.value) == f"rank 1 is gone: its process has ended. Last seen: {seen}"
    return time.monotonic() - start_s


def test_a_lost_rank_is_noticed_long_before_the_deadline():
    with Ranks(wait_for_the_lost, 25.0, ranks=2) as started:
        started.reached("ready")
        started.signal(1, signal.SIGKILL)
        # The other one ends with an error at last, since gloo misses its partner.
        first, _ = started.wait(20.0)
    assert first.value < 5.0, first.output
