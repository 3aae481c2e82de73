"""Many minibatches under ever new timings, and the same gradients to the last bit when that is asked for."""

from __future__ import annotations

import random
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from meddling import Dawdling  # noqa: E402
from ranks import run  # noqa: E402
from toy_models import (  # noqa: E402
    Toy,
    alone,
    compare_gradients,
    draw,
    gradients_alone,
    local,
    loss_of,
    mesh_of,
    seeded,
    shard,
)

import odcrt  # noqa: E402

pytestmark = pytest.mark.timeout(120)

RANKS = 3


def plan_of(minibatch):
    """Random counts of microbatches, none included, and random paths; the same on every rank."""
    chance = random.Random(minibatch)  # noqa: S311 - no secret
    return [
        [
            (
                draw(torch.Generator().manual_seed(chance.randrange(10**9)), samples=1, length=2),
                {"path": chance.choice([None, None, [0], [1, 1]]), "extra": chance.random() < 0.2},
            )
            for _ in range(chance.choice([0, 1, 1, 2, 3]))
        ]
        for _ in range(RANKS)
    ]


def train_under_stress(minibatches, reproducible):
    """Every minibatch's gradients against those that this very process computes alone, from the same weights."""
    rank = dist.get_rank()
    whole = seeded(Toy, width=3, hidden=4)
    model = shard(alone(whole), mesh=mesh_of(RANKS))
    transport = Dawdling(seed=rank, longest_s=0.001, often=0.15)
    odc = odcrt.on_demand(model, transport=transport, reproducible=reproducible)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.02) for each in (whole, model)]
    for minibatch in range(minibatches):
        plan = plan_of(minibatch)
        with odc.minibatch():
            for tokens, options in plan[rank]:
                loss_of(model, tokens, **options).backward()
        everything = [microbatch for part in plan for microbatch in part]
        expected = gradients_alone(whole, everything, divide_by=RANKS)
        compare_gradients(model, expected, rank=rank, ranks=RANKS, rtol=1e-4, atol=2e-5)
        for name, parameter in whole.named_parameters():
            parameter.grad = expected[name]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    barriers = odc.counters["barriers"]
    odc.close()
    return barriers


@pytest.mark.parametrize(("reproducible", "minibatches"), [(False, 200), (True, 50)])
def test_gradients_are_right_whatever_the_timing(reproducible, minibatches):
    found = run(train_under_stress, minibatches, reproducible=reproducible, ranks=RANKS, timeout_s=100)
    assert found == [2 * minibatches] * RANKS


def gradients_of(seed, reproducible):
    """The bytes of this rank's gradients of some minibatches, at timings drawn from the seed."""
    rank = dist.get_rank()
    model = shard(seeded(Toy), mesh=mesh_of(RANKS))
    transport = Dawdling(seed=100 * seed + rank, longest_s=0.003, often=0.5)
    odc = odcrt.on_demand(model, transport=transport, reproducible=reproducible)
    found = []
    for minibatch in range(8):
        with odc.minibatch():
            for tokens, options in plan_of(minibatch)[rank]:
                loss_of(model, tokens, **options).backward()
        found += [local(p.grad).clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
    odc.close()
    return [gradient.tolist() for gradient in found]


def test_reproducible_gradients_do_not_depend_on_timing():
    first, second = (run(gradients_of, seed, reproducible=True, ranks=RANKS) for seed in (1, 2))
    plain = run(gradients_of, 3, reproducible=False, ranks=RANKS)
    assert first == second
    for one, other in zip(first, plain, strict=True):
        for left, right in zip(one, other, strict=True):
            torch.testing.assert_close(torch.tensor(left), torch.tensor(right), rtol=1e-4, atol=1e-5)


def gradients_in_order(order, reproducible):
    """This rank's gradients when ranks run one after the other in an order."""
    warnings.filterwarnings("ignore", category=odcrt.errors.HiddenCollectiveWarning)
    rank = dist.get_rank()
    model = shard(seeded(Toy), mesh=mesh_of(RANKS))
    odc = odcrt.on_demand(model, reproducible=reproducible, deadline_s=20)
    with odc.minibatch():
        for turn in order:
            if turn == rank:
                for number in range(2):
                    loss_of(model, draw(torch.Generator().manual_seed(10 * rank + number), samples=3)).backward()
            dist.barrier()
    odc.close()
    return [local(p.grad).tolist() for p in model.parameters() if p.grad is not None]


def test_the_order_of_ranks_shows_in_the_last_bits_alone_and_not_when_reproducible():
    """Makes sure that the test above can fail: additions in another order do give other bits."""
    orders = ((0, 1, 2), (2, 1, 0))
    plain = [run(gradients_in_order, order, reproducible=False, ranks=RANKS) for order in orders]
    same = [run(gradients_in_order, order, reproducible=True, ranks=RANKS) for order in orders]
    assert plain[0] != plain[1]
    assert same[0] == same[1]
