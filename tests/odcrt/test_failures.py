"""Ranks that die, fail or hang at any step: all others end with an error that names the rank and its last phase."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from meddling import Trap, Trapped  # noqa: E402
from ranks import Ranks  # noqa: E402
from toy_models import draw, loss_of, sharded  # noqa: E402

import odcrt  # noqa: E402
from odcrt.transports.phases import Phase  # noqa: E402

pytestmark = pytest.mark.timeout(60)

RANKS = 3
DEADLINE_S = 4.0
# The deadline where it must be waited for.
HANG_S = 2.0
# Beyond the deadline, for processes to notice and to end.
SLACK_S = 5.0
TOKENS = 6


def train(trap, deadline_s=DEADLINE_S):
    """Four minibatches, with rank + 1 microbatches on each rank."""
    rank = dist.get_rank()
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, transport=Trapped(trap, deadline_s=deadline_s))
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        with odc.minibatch():
            for _ in range(rank + 1):
                loss_of(model, draw(generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    odc.close()


def end_of(trap, **options):
    """What became of the others and of the rank itself; one that was stopped goes on once the others have ended."""
    with Ranks(train, trap, ranks=RANKS, timeout_s=30, **options) as started:
        if trap.deed == "stop":
            started.wait(20.0, but=trap.rank)
            started.signal(trap.rank, signal.SIGCONT)
        outcomes = started.wait(20.0)
    return [outcome for outcome in outcomes if outcome.rank != trap.rank], outcomes[trap.rank]


# Each phase on one of the ranks: the first, one in the middle, the last.
DEATHS = [
    Trap(rank, "kill", phase, minibatch, microbatch)
    for rank, phase, minibatch, microbatch in [
        (0, Phase.PUBLISH, 0, -1),
        (1, Phase.PUBLISH, 1, -1),
        (2, Phase.PUBLISH, 2, -1),
        (0, Phase.GATHER, 1, 0),
        (2, Phase.GATHER, 1, 2),
        (0, Phase.COMPUTE, 1, 0),
        (2, Phase.COMPUTE, 1, 1),
        (0, Phase.SCATTER_ACCUMULATE, 1, 0),
        (1, Phase.SCATTER_ACCUMULATE, 1, 1),
        (0, None, 1, 0),
        (1, None, 1, 1),
        (2, None, 0, 0),
        (0, Phase.SETTLE, 1, -1),
        (1, Phase.SETTLE, 1, -1),
        (2, Phase.SETTLE, 1, -1),
        (0, Phase.BETWEEN_MINIBATCHES, 1, -1),
        (2, Phase.BETWEEN_MINIBATCHES, 1, -1),
    ]
]


def name_of(trap):
    return f"rank {trap.rank} {trap.phase or 'with a lock'}"


@pytest.mark.parametrize("trap", DEATHS, ids=name_of)
def test_a_killed_rank_ends_all_others(trap):
    others, victim = end_of(trap)
    assert victim.exit_code == -signal.SIGKILL
    phase = Phase.SCATTER_ACCUMULATE if trap.phase is None else trap.phase
    for outcome in others:
        assert outcome.exit_code == 1, outcome
        assert outcome.ended_s < victim.ended_s + DEADLINE_S + SLACK_S
        assert outcome.error_type in {"RankLost", "PeerFailed"}, outcome.error
        assert f"rank {trap.rank} is gone" in outcome.error
        assert f"Last seen: {phase}{' of unit 0' if phase is Phase.GATHER else ''}" in outcome.error
        assert f"minibatch {trap.minibatch}" in outcome.error
        if trap.microbatch >= 0:
            assert f"microbatch {trap.microbatch}, {TOKENS} tokens" in outcome.error


@pytest.mark.parametrize(
    ("deed", "error_type", "text"),
    [
        ("raise", "ValueError", "something in the model"),
        ("out of memory", "RuntimeError", "can't allocate memory"),
        ("exit", "SystemExit", "3"),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_an_error_on_one_rank_reaches_all(rank, deed, error_type, text):
    """The failing rank keeps its own error; the others name rank, minibatch, microbatch and tokens."""
    trap = Trap(rank, deed, Phase.COMPUTE, minibatch=1, microbatch=rank)
    others, failed = end_of(trap)
    where = f"minibatch 1, microbatch {rank}, {TOKENS} tokens"
    assert failed.exit_code == 1
    assert failed.error_type == error_type
    assert text in failed.error
    assert f"on rank {rank}: compute" in failed.error
    assert where in failed.error
    for outcome in others:
        assert outcome.exit_code == 1
        assert outcome.error_type == "PeerFailed"
        assert f"rank {rank} failed (compute" in outcome.error
        assert where in outcome.error
        assert f"{error_type}: " in outcome.error
        assert text in outcome.error
        assert outcome.ended_s < failed.ended_s + SLACK_S


def test_who_failed_first_is_named_and_not_who_failed_of_it():
    """Ranks that end because of another do not pass for the cause, though their numbers come first."""
    others, _ = end_of(Trap(2, "raise", Phase.SETTLE))
    assert [outcome.error.count("failed (") for outcome in others] == [1, 1]
    assert all("rank 2 failed (settle" in outcome.error for outcome in others)


@pytest.mark.parametrize(
    "trap",
    [
        Trap(0, "stop", Phase.PUBLISH, 1),
        Trap(2, "stop", Phase.COMPUTE, 1, 1),
        Trap(1, "stop", Phase.SETTLE, 0),
        Trap(1, "stop", None, 1, 0),
    ],
    ids=name_of,
)
def test_a_hanging_rank_is_named_after_the_deadline(trap):
    """A stopped process is alive; only time tells. One with a lock keeps others from adding to its gradients."""
    started_s = time.monotonic()
    others, stopped = end_of(trap, deadline_s=HANG_S)
    assert time.monotonic() - started_s < HANG_S + SLACK_S + 5.0
    phase = Phase.SCATTER_ACCUMULATE if trap.phase is None else trap.phase
    assert any(outcome.error_type == "DeadlineExceeded" for outcome in others)
    for outcome in others:
        assert outcome.exit_code == 1
        assert outcome.error_type in {"DeadlineExceeded", "PeerFailed"}, outcome.output
        assert outcome.ended_s < stopped.ended_s
        assert f"waited {HANG_S:g} s" in outcome.error
        assert f"rank {trap.rank}: {phase}" in outcome.error
        assert f"minibatch {trap.minibatch}" in outcome.error


def test_a_rank_that_goes_on_too_late_ends_as_well():
    others, stopped = end_of(Trap(2, "stop", Phase.COMPUTE, 1, 1), deadline_s=HANG_S)
    assert [outcome.exit_code for outcome in others] == [1, 1]
    assert stopped.exit_code == 1
    assert stopped.error_type == "PeerFailed"
    assert f"waited {HANG_S:g} s at settle for ranks that did not come" in stopped.error


def leave_early():
    """Rank 0 closes after one minibatch, the others go on."""
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    for _ in range(1 if dist.get_rank() == 0 else 2):
        with odc.minibatch():
            loss_of(model, draw(None)).backward()
    odc.close()
    if dist.get_rank() == 0:
        time.sleep(2 * DEADLINE_S)


def test_a_rank_that_closes_early_is_named():
    with Ranks(leave_early, ranks=RANKS, timeout_s=30) as started:
        others = started.wait(20.0, but=0)
    for outcome in others:
        assert outcome.error_type in {"RankLost", "PeerFailed"}
        assert "rank 0 has closed its handle" in outcome.error
        assert "as many minibatches" in outcome.error


def fail_between_minibatches():
    """Rank 1 fails in what lies between minibatches, which the handle does not see."""
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    for minibatch in range(3):
        with odc.minibatch():
            loss_of(model, draw(None)).backward()
        if minibatch == 1 and dist.get_rank() == 1:
            raise OSError("the disk is full")


def test_an_error_between_minibatches_is_noticed_at_the_next_one():
    with Ranks(fail_between_minibatches, ranks=RANKS, timeout_s=30) as started:
        outcomes = started.wait(20.0)
    assert outcomes[1].error_type == "OSError"
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.exit_code == 1
        assert "rank 1 is gone: its process has ended. Last seen: between minibatches, minibatch 1" in outcome.error


SCRIPT = textwrap.dedent(
    """
    import os, signal, sys
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    import odcrt

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = fully_shard(nn.Linear(5, 5), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    odc = odcrt.on_demand(model, deadline_s=4)
    for minibatch in range(3):
        with odc.minibatch():
            model(torch.ones(2, 5)).sum().backward()
            if minibatch == 1 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    """
)


def test_scripts_of_their_own_end_as_well(tmp_path):
    """Interpreters that wind up with a process group still open, as a user's do."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        _, told = processes[0].communicate(timeout=40)
        processes[1].communicate(timeout=10)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert processes[1].returncode == -signal.SIGKILL
    assert processes[0].returncode == 1, told
    assert "odcrt.errors.RankLost: rank 1 is gone" in told
