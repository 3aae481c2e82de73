"""Microbatches pulled at run time: every position to one rank, gradients as ever, errors that name who is at fault."""

from __future__ import annotations

import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from meddling import Trap, Trapped  # noqa: E402
from ranks import Ranks, run  # noqa: E402
from toy_models import Toy, alone, compare_gradients, draw, gradients_alone, loss_of, mesh_of, seeded, shard, sharded  # noqa: E402

import odcrt  # noqa: E402
from odcrt.errors import OutsideMinibatch  # noqa: E402
from odcrt.transports.control import Control  # noqa: E402
from odcrt.transports.phases import Phase  # noqa: E402
from odcrt.transports.segments import Segment  # noqa: E402
from odcrt.transports.shm import ShmTransport  # noqa: E402
from odcsim.errors import InputError, RunError  # noqa: E402

pytestmark = pytest.mark.timeout(60)

RANKS = 3
DEADLINE_S = 10.0
HANG_S = 2.0
# Beyond the deadline, for processes to notice and to end.
SLACK_S = 5.0


# --- the counter ---


@pytest.fixture
def controls():
    """The table as all ranks see it; here they are one process, so nobody is ever kept waiting."""
    segment = Segment.create(Control.size_bytes(RANKS))
    yield [Control(segment, rank=rank, world_size=RANKS, deadline_s=0.1) for rank in range(RANKS)]
    segment.close()


def test_positions_count_up_over_all_ranks_and_end_with_the_queue(controls):
    assert [controls[rank].pull(1, 4) for rank in (2, 0, 0, 1)] == [0, 1, 2, 3]
    assert [control.pull(1, 4) for control in controls] == [4, 4, 4]


def test_a_new_minibatch_begins_anew_wherever_the_last_one_ended(controls):
    controls[0].pull(1, 9)
    assert [controls[rank].pull(2, 2) for rank in (1, 2, 0)] == [0, 1, 2]
    # Minibatches without a queue, or whose queue was empty, lie between.
    assert controls[0].pull(5, 0) == 0
    assert controls[1].pull(7, 3) == 0


def test_the_queue_leaves_what_ranks_tell_each_other_alone(controls):
    for rank, control in enumerate(controls):
        control.note(Phase.PULL, -1, 7, rank, 5)
        control.fail("x" * 2000 if rank == 2 else "")
    controls[0].pull(1 << 40, 1 << 40)
    assert [str(controls[0].last_seen(rank)) for rank in range(RANKS)] == [
        f"pull, minibatch 7, microbatch {rank}, 5 tokens" for rank in range(RANKS)
    ]


def test_ranks_with_queues_of_different_lengths_are_named(controls):
    controls[1].pull(1, 4)
    with pytest.raises(RunError) as caught:
        controls[2].pull(1, 5)
    assert str(caught.value) == (
        "rank 2 pulls from a queue of 5, and rank 1 from one of 4: all ranks must have the same queue"
    )
    assert controls[0].pull(1, 4) == 1, "the lock was let go of"


QUEUES = (300, 1, 0, 77, 2, 150)


def take_all():
    """Several queues, one after the other, with a meeting between, as minibatches have them."""
    transport = ShmTransport(deadline_s=20)
    transport.allocate([])
    taken = []
    for number, count in enumerate(QUEUES, start=1):
        transport.barrier(Phase.PUBLISH)
        mine = []
        while (position := transport.pull(sequence=number, count=count)) < count:
            mine.append(position)
            if position % 7 == transport.rank:
                os.sched_yield()
        taken.append(mine)
        transport.barrier(Phase.SETTLE)
    transport.close()
    return taken


def test_every_position_goes_to_one_rank():
    found = run(take_all, ranks=4)
    for number, count in enumerate(QUEUES):
        taken = [of_rank[number] for of_rank in found]
        assert sorted(position for mine in taken for position in mine) == list(range(count))
        assert all(mine == sorted(mine) for mine in taken)


# --- gradients ---


def numbered(number):
    """Tokens of a microbatch, the same on whichever rank."""
    return draw(torch.Generator().manual_seed(number), samples=1 + number % 3)


# Seconds that a rank dawdles over each microbatch: all alike, one far slower, one that comes when all is done.
DAWDLING = [(0.0, 0.0, 0.0), (0.0, 0.2, 0.001), (0.3, 0.0, 0.0)]


def train_pulled(count):
    """Minibatches with different ranks slow; gradients are those of all microbatches together, whoever ran them."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, model)]
    pulled = []
    for minibatch, dawdles_s in enumerate(DAWDLING):
        mine = []
        with odc.minibatch():
            for position in odc.pull(count):
                loss_of(model, numbered(100 * minibatch + position)).backward()
                time.sleep(dawdles_s[rank])
                mine.append(position)
        everything = [(numbered(100 * minibatch + position), {}) for position in range(count)]
        expected = gradients_alone(whole, everything, divide_by=RANKS)
        compare_gradients(model, expected, rank=rank, ranks=RANKS)
        for name, parameter in whole.named_parameters():
            parameter.grad = expected[name]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        pulled.append(mine)
    counters = odc.counters
    odc.close()
    return pulled, counters


@pytest.mark.parametrize("count", [0, 2, 12])
def test_gradients_do_not_depend_on_who_pulls(count):
    found = run(train_pulled, count, ranks=RANKS)
    for minibatch in range(len(DAWDLING)):
        taken = [pulled[minibatch] for pulled, _ in found]
        assert sorted(position for mine in taken for position in mine) == list(range(count))
    for pulled, counters in found:
        # Pulling is no meeting: as without, ranks meet twice a minibatch; five gathers and three scatters a microbatch.
        assert counters == {"transfers": 8 * sum(map(len, pulled)), "barriers": 2 * len(DAWDLING)}
    if count == 12:
        first, second, third = found
        assert len(second[0][1]) < len(first[0][1]), "who is slow pulls less"
        assert len(first[0][2]) < len(third[0][2])


def pull_alone():
    model = sharded(1)
    odc = odcrt.on_demand(model)
    with odc.minibatch():
        found = list(odc.pull(3))
    odc.close()
    return found, raised_by(InputError, odc.pull, -1)


def test_one_rank_alone_pulls_everything():
    ((found, text),) = run(pull_alone, ranks=1)
    assert found == [0, 1, 2]
    assert text == "count: -1: the length of a queue; allowed: a whole number from 0"


# --- wrong use ---


def raised_by(error_type, action, *args):
    with pytest.raises(error_type) as caught:
        action(*args)
    return str(caught.value)


def misuse():
    """Wrong calls that leave the handle as it was: afterwards it works."""
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    found = {"outside": raised_by(OutsideMinibatch, odc.pull, 3)}
    with odc.minibatch():
        found["no number"] = raised_by(InputError, odc.pull, 2.0)
        left = odc.pull(4)
        found["twice"] = raised_by(RuntimeError, odc.pull, 4)
        for _ in range(1 if dist.get_rank() == 0 else 3):
            next(left)
    found["after its end"] = raised_by(OutsideMinibatch, next, left)
    with odc.minibatch():
        found["later"] = list(odc.pull(2))
    odc.close()
    found["closed"] = raised_by(OutsideMinibatch, odc.pull, 3)
    other = odcrt.on_demand(sharded(dist.get_world_size()), deadline_s=DEADLINE_S, reproducible=True)
    with other.minibatch():
        found["reproducible"] = raised_by(InputError, other.pull, 3)
    other.close()
    return found


def test_wrong_calls_are_refused_and_leave_everything_as_it_was():
    first, second = run(misuse)
    for found in (first, second):
        assert found["outside"] == "pull() outside of `with odc.minibatch():`; a queue is one minibatch's"
        assert found["closed"] == found["outside"]
        assert found["no number"] == "count: 2.0: the length of a queue; allowed: a whole number from 0"
        assert "pull() twice in one minibatch()" in found["twice"]
        assert found["reproducible"].startswith("reproducible: True: does not go with pull()")
        assert found["after its end"] == "the queue of minibatch 0 was pulled from after its end"
    assert sorted(first["later"] + second["later"]) == [0, 1]


def leave_early():
    """Every rank leaves its loop after one microbatch."""
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    with odc.minibatch():
        for position in odc.pull(5):
            loss_of(model, numbered(position)).backward()
            break


def test_a_queue_that_nobody_uses_up_is_an_error():
    with Ranks(leave_early, ranks=RANKS, timeout_s=30) as started:
        outcomes = started.wait(20.0)
    assert all(outcome.exit_code == 1 for outcome in outcomes)
    assert all("3 of 5 microbatches of the queue were pulled" in outcome.error for outcome in outcomes)


def disagree():
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    with odc.minibatch():
        for position in odc.pull(8 if dist.get_rank() == 1 else 6):
            loss_of(model, numbered(position)).backward()


def test_queues_of_different_lengths_end_all_ranks():
    with Ranks(disagree, ranks=RANKS, timeout_s=30) as started:
        outcomes = started.wait(20.0)
    assert all(outcome.exit_code == 1 for outcome in outcomes)
    first = min(outcomes, key=lambda outcome: outcome.raised_s)
    assert first.error_type == "RunError"
    assert "all ranks must have the same queue" in first.error


# --- ranks that die or hang ---


def pull_and_train(trap, deadline_s=DEADLINE_S):
    """Three minibatches whose microbatches are pulled."""
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, transport=Trapped(trap, deadline_s=deadline_s))
    if trap.rank == dist.get_rank() and trap.phase is None:
        take = Control._take

        def take_and_spring(control, sequence, count):
            position = take(control, sequence, count)
            if sequence == trap.minibatch + 1:
                trap.spring()
            return position

        Control._take = take_and_spring
    for minibatch in range(3):
        with odc.minibatch():
            for position in odc.pull(9):
                loss_of(model, numbered(100 * minibatch + position)).backward()
                time.sleep(0.01)  # so that each gets some
    odc.close()


@pytest.mark.parametrize(
    "trap",
    [
        Trap(1, "kill", Phase.PULL, 1),
        Trap(0, "kill", None, 1),  # with the queue's lock
        Trap(2, "kill", Phase.COMPUTE, 1, 1),
        Trap(1, "raise", Phase.PULL, 0),
    ],
    ids=["as it pulls", "with the queue's lock", "with a microbatch", "with an error"],
)
def test_a_rank_that_dies_ends_all_others_once_they_meet(trap):
    with Ranks(pull_and_train, trap, ranks=RANKS, timeout_s=30) as started:
        outcomes = started.wait(20.0)
    victim = outcomes[trap.rank]
    assert victim.exit_code == (-signal.SIGKILL if trap.deed == "kill" else 1)
    for outcome in outcomes:
        if outcome.rank != trap.rank:
            assert outcome.exit_code == 1
            assert outcome.error_type in {"RankLost", "PeerFailed"}, outcome.output
            assert f"rank {trap.rank} " in outcome.error
            assert f"{trap.phase or Phase.PULL}" in outcome.error
            assert f"minibatch {trap.minibatch}" in outcome.error
            assert outcome.ended_s < victim.ended_s + SLACK_S


def test_a_rank_that_keeps_the_queue_to_itself_is_named_after_the_deadline():
    trap = Trap(1, "stop", None, 1)
    with Ranks(pull_and_train, trap, deadline_s=HANG_S, ranks=RANKS, timeout_s=30) as started:
        started.wait(20.0, but=trap.rank)
        started.signal(trap.rank, signal.SIGCONT)
        outcomes = started.wait(20.0)
    others = [outcome for outcome in outcomes if outcome.rank != trap.rank]
    assert any(outcome.error_type == "DeadlineExceeded" for outcome in others)
    for outcome in others:
        assert outcome.exit_code == 1
        assert outcome.error_type in {"DeadlineExceeded", "PeerFailed"}, outcome.output
        assert f"waited {HANG_S:g} s to pull from the queue, which another rank keeps locked" in outcome.error
        assert "Held by rank 1: pull, minibatch 1" in outcome.error
