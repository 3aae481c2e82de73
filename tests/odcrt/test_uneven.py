"""Ranks with different numbers of microbatches, none included, and units that only some of them use.

FSDP2 itself cannot run these, so the right gradients come from one process that computes all microbatches of all ranks.
The mean over ranks is FSDP2's own: what a rank leaves is the sum over its microbatches, and the ranks' are averaged.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import Ranks, run  # noqa: E402
from toy_models import (  # noqa: E402
    Toy,
    alone,
    compare_gradients,
    draw,
    gradients_alone,
    loss_of,
    mesh_of,
    part_of,
    seeded,
    shard,
    sharded,
)

import odcrt  # noqa: E402

pytestmark = pytest.mark.timeout(60)

RANKS = 3


def numbered(number):
    """Tokens of a microbatch, the same on whichever rank."""
    return draw(torch.Generator().manual_seed(number), samples=1 + number % 3)


# --- what ranks run: for each rank its microbatches, each as (number of its data, options of the model) ---

ONCE, SKIP_LAST, EXTRA = {}, {"path": [0]}, {"extra": True}

PLANS = {
    "three against two": [[(0, ONCE), (1, ONCE), (2, ONCE)], [(3, ONCE), (4, ONCE)], [(5, ONCE)]],
    "a rank with none": [[(0, ONCE), (1, ONCE)], [], [(2, ONCE)]],
    "the first rank with none": [[], [(0, ONCE)], [(1, ONCE), (2, ONCE)]],
    "all work on one rank": [[], [], [(number, ONCE) for number in range(7)]],
    "nobody has any": [[], [], []],
    "a block that one rank uses": [[(0, SKIP_LAST)], [(1, SKIP_LAST), (2, SKIP_LAST)], [(3, ONCE)]],
    "a block that nobody uses": [[(0, SKIP_LAST)], [(1, SKIP_LAST), (2, SKIP_LAST)], [(3, SKIP_LAST)]],
    "no block at all": [[(0, {"path": []})], [(1, {"path": []})], []],
    "parts that one rank uses": [[(0, ONCE)], [(1, EXTRA), (2, ONCE)], [(3, ONCE), (4, ONCE)]],
    "parts used in turns": [[(0, EXTRA), (1, ONCE)], [(2, ONCE), (3, EXTRA)], [(4, {"path": [1], "extra": True})]],
    "a block used three times": [[(0, {"path": [0, 0, 1, 0]})], [(1, ONCE)], [(2, {"path": [1]}), (3, ONCE)]],
    "another order of blocks": [[(0, {"path": [1, 0]})], [(1, ONCE)], [(2, {"path": [1, 0, 1]})]],
}


def run_plan(name, reproducible):
    """Two minibatches of the plan, each followed by a step; after each, gradients are the right ones."""
    plan, rank = PLANS[name], dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=20, reproducible=reproducible)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, model)]
    for minibatch in range(2):
        with odc.minibatch():
            for number, options in plan[rank]:
                loss_of(model, numbered(100 * minibatch + number), **options).backward()
        everything = [(numbered(100 * minibatch + number), options) for part in plan for number, options in part]
        expected = gradients_alone(whole, everything, divide_by=RANKS)
        compare_gradients(model, expected, rank=rank, ranks=RANKS)
        for name_, parameter in whole.named_parameters():
            parameter.grad = expected[name_]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    odc.close()


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_gradients_are_those_of_all_ranks_together(name, reproducible):
    run(run_plan, name, reproducible=reproducible, ranks=RANKS)


# --- one minibatch, split in every way ---

SPLITS = (
    [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9, 10, 11]]],
    [[[0], [1], [2], [3]], [[4, 5], [6, 7]], [[8, 9, 10, 11]]],
    [[[0, 1, 2, 3, 4, 5, 6, 7, 8]], [[9]], [[10], [11]]],
    [[], [[number] for number in range(12)], []],
    [[[11, 3], [7]], [[0, 5, 9]], [[1], [2, 4], [6, 8, 10]]],
)


def run_splits():
    """Twelve samples, a loss that is a sum over samples divided by what does not depend on the split."""
    rank = dist.get_rank()
    samples = torch.randint(0, 11, (12, 4), generator=torch.Generator().manual_seed(0))
    whole = seeded(Toy)
    whole(samples).square().sum().div(12).backward()
    expected = {name: p.grad if p.grad is not None else None for name, p in whole.named_parameters()}
    model = sharded(RANKS)
    odc = odcrt.on_demand(model, deadline_s=20)
    for split in SPLITS:
        assert sorted(sample for part in split for microbatch in part for sample in microbatch) == list(range(12))
        with odc.minibatch():
            for microbatch in split[rank]:
                # The mean over ranks is undone by their number.
                model(samples[microbatch]).square().sum().mul(RANKS / 12).backward()
        compare_gradients(model, expected, rank=rank, ranks=RANKS)
        model.zero_grad()
    odc.close()


def test_every_split_into_microbatches_gives_the_same_gradient():
    run(run_splits, ranks=RANKS)


# --- before and after ---


def train_uneven(communication):
    """Three microbatches against two, as a user's loop would run them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(ranks)
    odc = odcrt.on_demand(model, deadline_s=20) if communication == "odc" else None
    optimizer = torch.optim.AdamW(model.parameters())

    def microbatches():
        for number in range(3 - rank):
            loss_of(model, numbered(number)).backward()

    with odc.minibatch() if odc else nullcontext():
        microbatches()
    optimizer.step()
    if odc:
        odc.close()


def test_three_against_two_microbatches_run_on_demand():
    run(train_uneven, "odc", ranks=2)


def test_three_against_two_microbatches_fail_under_fsdp2_itself():
    """What on-demand communication is for: rank 0 waits in its third forward, for as long as gloo is patient."""
    with Ranks(train_uneven, "gloo", ranks=2, timeout_s=20, collective_timeout_s=3) as started:
        first, _ = started.wait()
    assert first.exit_code == 1
    assert first.error_type == "RuntimeError"
    assert "all_gather" in first.output


# --- evaluation ---


def evaluate_between_steps():
    """Evaluations with uneven batches between training steps, in a minibatch of their own or at the end of one."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=20)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (whole, model)]

    def evaluate(count):
        with torch.no_grad():
            for number in range(count):
                found, want = (loss_of(each, numbered(number)) for each in (model, whole))
                torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)

    for minibatch, where in enumerate(["none", "after", "none", "inside", "before step", "none"]):
        everything = [(numbered(10 * minibatch + number), {}) for number in range(RANKS)]
        with odc.minibatch():
            loss_of(model, everything[rank][0]).backward()
            if where == "inside":
                evaluate(2 * rank)
        expected = gradients_alone(whole, everything, divide_by=RANKS)
        compare_gradients(model, expected, rank=rank, ranks=RANKS)
        if where == "before step":
            with odc.minibatch():
                evaluate(2 - rank)
            compare_gradients(model, expected, rank=rank, ranks=RANKS)
        for name, parameter in whole.named_parameters():
            parameter.grad = expected[name]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if where == "after":
            with odc.minibatch():
                evaluate(3 if rank == 1 else 0)
            with odc.minibatch(), torch.inference_mode():
                loss_of(model, numbered(rank))
    for (name, found), want in zip(model.named_parameters(), whole.parameters(), strict=True):
        mine = part_of(want.detach(), rank=rank, ranks=RANKS)
        torch.testing.assert_close(
            found.to_local(), mine, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: name + text
        )
    odc.close()


def test_evaluation_with_uneven_batches_leaves_training_as_it_was():
    """A root stays gathered after a forward without backward; used again, it would be the one of an earlier step."""
    run(evaluate_between_steps, ranks=RANKS)


def prefetch_for_nothing():
    """An evaluation that leaves out a block which FSDP2 has gathered ahead already; a step; then the block is used."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    odc = odcrt.on_demand(model, deadline_s=20)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.5) for each in (whole, model)]
    for minibatch in range(3):
        everything = [(numbered(10 * minibatch + number), {}) for number in range(RANKS)]
        with odc.minibatch():
            loss_of(model, everything[rank][0]).backward()
            if minibatch == 1:
                with torch.no_grad():
                    loss_of(model, numbered(0), path=[0])
        expected = gradients_alone(whole, everything, divide_by=RANKS)
        compare_gradients(model, expected, rank=rank, ranks=RANKS)
        for name, parameter in whole.named_parameters():
            parameter.grad = expected[name]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    odc.close()


def test_what_was_gathered_ahead_is_not_used_in_a_later_minibatch():
    run(prefetch_for_nothing, ranks=RANKS)


# --- gradients that are kept ---


def add_over_minibatches():
    """Three minibatches without zero_grad add up, units that one of them leaves out included."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=20)
    options = [{"path": [0]}, {"path": [1], "extra": True}, {}]
    everything = []
    for minibatch in range(3):
        counts = [minibatch, 1, 2 - minibatch]
        part = [[(numbered(10 * minibatch + r), options[minibatch])] * counts[r] for r in range(RANKS)]
        with odc.minibatch():
            for tokens, chosen in part[rank]:
                loss_of(model, tokens, **chosen).backward()
        everything += [microbatch for microbatches in part for microbatch in microbatches]
        compare_gradients(model, gradients_alone(whole, everything, divide_by=RANKS), rank=rank, ranks=RANKS)
    model.zero_grad(set_to_none=False)
    with odc.minibatch():
        pass
    assert all(p.grad is None or not p.grad.to_local().any() for p in model.parameters()), "zeros stay zeros"
    odc.close()


def test_gradients_add_up_over_minibatches():
    run(add_over_minibatches, ranks=RANKS)


def synchronize_last_alone():
    """`set_requires_gradient_sync(False)`: unsharded gradients are kept, and the last microbatch moves their sum."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=20)
    with odc.minibatch():
        for number in range(rank + 1):
            model.set_requires_gradient_sync(number == rank)
            loss_of(model, numbered(10 * rank + number)).backward()
    everything = [(numbered(10 * r + number), {}) for r in range(RANKS) for number in range(r + 1)]
    compare_gradients(model, gradients_alone(whole, everything, divide_by=RANKS), rank=rank, ranks=RANKS)
    scattered = odc.counters["transfers"]
    odc.close()
    return scattered


def test_gradients_may_be_kept_unsharded_until_the_last_microbatch():
    found = run(synchronize_last_alone, ranks=RANKS)
    # Three units: five gathers a microbatch, and three scatter-accumulates in all.
    assert found == [5 * (rank + 1) + 3 for rank in range(RANKS)]


def go_back_twice():
    """Two losses of one forward, each with a backward of its own."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=20)
    with odc.minibatch():
        for number in range(rank):
            logits = model(numbered(10 * rank + number), extra=True)
            logits.square().mean().backward(retain_graph=True)
            logits.abs().mean().backward()
    whole.zero_grad()
    for r in range(RANKS):
        for number in range(r):
            logits = whole(numbered(10 * r + number), extra=True)
            ((logits.square().mean() + logits.abs().mean()) / RANKS).backward()
    compare_gradients(model, {name: p.grad for name, p in whole.named_parameters()}, rank=rank, ranks=RANKS)
    odc.close()


def test_a_forward_may_have_two_backwards():
    run(go_back_twice, ranks=RANKS)


# --- a partial last minibatch ---


def run_an_epoch():
    """Ten samples in minibatches of four over three ranks: the last has two, and a rank none."""
    rank = dist.get_rank()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, deadline_s=20)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, model)]
    for first in range(0, 10, 4):
        minibatch = list(range(first, min(first + 4, 10)))
        with odc.minibatch():
            for number in minibatch[rank::RANKS]:
                (loss_of(model, numbered(number)) * RANKS / len(minibatch)).backward()
        expected = gradients_alone(whole, [(numbered(number), {}) for number in minibatch], divide_by=len(minibatch))
        compare_gradients(model, expected, rank=rank, ranks=RANKS)
        for name, parameter in whole.named_parameters():
            parameter.grad = expected[name]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    odc.close()


def test_a_partial_last_minibatch_is_exact():
    run(run_an_epoch, ranks=RANKS)
