"""What on-demand communication takes beside FSDP2's own memory: a published copy, accumulators, a few buffers.

Exactly by what a handle tells, and once by what the kernel counts: the proportional set size, in which memory that
ranks share counts once over all of them.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: E402
from toy_models import draw, loss_of, mesh_of, seeded, shard, sharded  # noqa: E402

import odcrt  # noqa: E402

pytestmark = pytest.mark.timeout(60)

RANKS = 3
# Elements of a rank's shard of a block and of the root of `Toy`, see `test_layout`.
BLOCK, ROOT = 45, 40
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def hold(blocks, reproducible, policy):
    """Bytes held after one minibatch of one microbatch, and after another of twenty on rank 0."""
    model = sharded(RANKS, blocks=blocks, policy=policy)
    odc = odcrt.on_demand(model, reproducible=reproducible, deadline_s=10)
    found = []
    for count in (1, 20 if dist.get_rank() == 0 else 2):
        with odc.minibatch():
            for number in range(count):
                loss_of(model, draw(torch.Generator().manual_seed(number)), extra=True).backward()
        found.append(odc.memory_bytes)
    odc.close()
    return found


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize(("policy", "published_bytes"), [(MixedPrecisionPolicy(), 4), (BF16, 2)])
@pytest.mark.parametrize("blocks", [2, 7])
def test_one_published_shard_one_accumulator_and_buffers_of_a_few_units(blocks, policy, published_bytes, reproducible):
    elements = blocks * BLOCK + ROOT
    largest_unit_bytes = RANKS * BLOCK * 4
    for first, second in run(hold, blocks, reproducible=reproducible, policy=policy, ranks=RANKS):
        assert first["published"] == published_bytes * elements
        assert first["accumulators"] == 4 * elements * (RANKS if reproducible else 1)
        assert 0 < first["buffers"] <= 4 * largest_unit_bytes, "however many units there are"
        assert second == first, "however many microbatches are accumulated"


class Wide(nn.Module):
    """Eight blocks of 12 MiB of fp32 each: 96 MiB."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(1024, 3 * 1024, bias=False) for _ in range(8)])

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x)).reshape(len(x), 3, 1024).mean(1)
        return x


def own_bytes():
    """The proportional set size of this process, without what its allocator only keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def grow(communication):
    """Growth of this process from before sharding until after two steps, and what the handle tells."""
    ranks = dist.get_world_size()
    before = own_bytes()
    model = shard(seeded(Wide), mesh=mesh_of(ranks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    odc = odcrt.on_demand(model, deadline_s=30) if communication == "odc" else None
    for _ in range(2):
        if odc:
            with odc.minibatch():
                model(torch.ones(2, 1024)).sum().backward()
        else:
            model(torch.ones(2, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    grown = own_bytes() - before
    dist.barrier()
    told = odc.memory_bytes if odc else {}
    if odc:
        odc.close()
    return grown, told


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="not Linux")
def test_the_kernel_counts_what_the_handle_tells():
    """Within 24 MiB: pages of Python and torch are shared by however many processes there are just then."""
    plain = [grown for grown, _ in run(grow, "fsdp2")]
    on_demand = run(grow, "odc")
    for before, (grown, told) in zip(plain, on_demand, strict=True):
        model_bytes = 8 * 3 * 1024 * 1024 * 4
        assert told["published"] == told["accumulators"] == model_bytes // 2
        assert told["buffers"] <= 4 * model_bytes // 8
        assert told["published"] + told["accumulators"] - (24 << 20) < grown - before < sum(told.values()) + (24 << 20)
