"""How parameters lie in a shard: as FSDP2 lays them out, which is compared before anything is published."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks import run  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from toy_models import Pipe, Toy, mesh_of, seeded, shard  # noqa: E402

import odcrt  # noqa: E402
from odcrt.errors import LayoutMismatch  # noqa: E402
from odcrt.fsdp.fsdp2 import list_units  # noqa: E402
from odcrt.fsdp.layout import ShardLayout  # noqa: E402
from odcrt.fsdp.shards import describe_shards  # noqa: E402

pytestmark = pytest.mark.timeout(30)

RANKS = 3

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(st.lists(shapes, max_size=6), st.integers(1, 9))
def test_parts_of_all_ranks_hold_every_parameter(all_shapes, world_size):
    parameters = [nn.Parameter(torch.empty(shape)) for shape in all_shapes]
    layout = ShardLayout.of(parameters, world_size=world_size)
    end = 0
    for parameter, size, offset in zip(parameters, layout.sizes, layout.offsets, strict=True):
        row = parameter[0].numel()
        assert offset == end
        assert size % row == 0
        rows = size // row
        assert rows * world_size >= parameter.shape[0] > (rows - 1) * world_size, "as few rows as hold it"
        end = offset + size
    assert layout.numel == end


def test_a_known_layout():
    """Seven rows over three ranks are chunks of three; one row over three ranks is a chunk of one."""
    parameters = [nn.Parameter(torch.empty(*shape)) for shape in [(7, 5), (1,), (4, 2, 3)]]
    layout = ShardLayout.of(parameters, world_size=3)
    assert layout.sizes == (15, 1, 12)
    assert layout.offsets == (0, 15, 16)
    assert layout.numel == 28


# --- units ---


def list_all(make, shard_it):
    model = shard_it(make())
    return [(unit.number, unit.name, len(unit.parameters)) for unit in list_units(model)]


def blocks_and_root(model):
    return shard(model, mesh=mesh_of(dist.get_world_size()))


def root_alone(model):
    return fully_shard(model, mesh=mesh_of(dist.get_world_size()))


def last_two_together(model):
    mesh = mesh_of(dist.get_world_size())
    fully_shard(model.blocks[0], mesh=mesh)
    fully_shard([model.blocks[1], model.head], mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize(
    ("make", "shard_it", "units"),
    [
        (Toy, blocks_and_root, [(0, "root", 2), (1, "blocks.0", 6), (2, "blocks.1", 6)]),
        (Toy, root_alone, [(0, "root", 14)]),
        (Toy, last_two_together, [(0, "root", 1), (1, "blocks.0", 6), (2, "blocks.1", 7)]),
        (Pipe, blocks_and_root, [(1, "blocks.0", 6), (2, "blocks.1", 6)]),
    ],
)
def test_units_are_the_root_and_then_blocks_in_order(make, shard_it, units):
    assert run(list_all, make, shard_it) == [units] * 2


# --- compared with FSDP2 ---


def describe(policy):
    model = shard(seeded(Toy), mesh=mesh_of(dist.get_world_size()), policy=policy)
    return [
        (found.published.numel, found.reduced.numel, str(found.param_dtype), str(found.reduce_dtype), found.first_flag)
        for found in describe_shards(list_units(model), world_size=dist.get_world_size())
    ]


@pytest.mark.parametrize(
    ("policy", "param_dtype", "reduce_dtype"),
    [
        (MixedPrecisionPolicy(), "torch.float32", "torch.float32"),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16), "torch.bfloat16", "torch.bfloat16"),
        (MixedPrecisionPolicy(torch.bfloat16, torch.float32), "torch.bfloat16", "torch.float32"),
    ],
)
def test_shards_are_described_as_fsdp2_hands_them_over(policy, param_dtype, reduce_dtype):
    # Of a block: rows 3, 3, 2, 2, 2, 1 of 1, 5, 1, 7, 5, 1 columns on each of three ranks.
    block = 1 + 3 * 5 + 3 + 2 * 7 + 2 * 5 + 2
    root = 2 * 4 * 5
    sizes = [(root, 0), (block, 2), (block, 8)]
    found = run(describe, policy, ranks=RANKS)
    assert found == [[(size, size, param_dtype, reduce_dtype, flag) for size, flag in sizes]] * RANKS


def mix_types():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5).to(torch.bfloat16))
    model[1].requires_grad_(requires_grad=False)
    fully_shard(model, mesh=mesh_of(dist.get_world_size()))
    with pytest.raises(LayoutMismatch) as caught:
        odcrt.on_demand(model)
    return str(caught.value)


def test_a_unit_of_several_types_is_refused():
    for text in run(mix_types):
        assert "unit root" in text
        assert "must share a type" in text


def exchange_two():
    """Parameters of one size in another order than FSDP2's."""
    model = blocks_and_root(seeded(Toy))
    units = list_units(model)
    first, *others = units[1].parameters
    object.__setattr__(units[1], "parameters", (*others, first))
    with pytest.raises(LayoutMismatch, match=r"unit blocks\.0: FSDP2 hands over"):
        describe_shards(units, world_size=dist.get_world_size())


def test_another_order_of_parameters_is_noticed():
    run(exchange_two)
