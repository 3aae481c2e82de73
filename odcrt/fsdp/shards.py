"""How each unit's shard looks: found out by letting FSDP2 hand it over once, before anything is published."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from odcrt.errors import LayoutMismatch
from odcrt.fsdp.collectives import Probe, UnitShard, same_bytes
from odcrt.fsdp.fsdp2 import Unit, reduce_dtype_of, restore_default_communication
from odcrt.fsdp.layout import ShardLayout

__all__ = ["describe_shards"]


@torch.no_grad()
def describe_shards(units: Sequence[Unit], *, world_size: int) -> list[UnitShard]:
    """The shards of all units.

    Raises:
        LayoutMismatch: FSDP2 lays a unit's parameters out in another way than `ShardLayout` does.
    """
    shards, first_flag = [], 0
    for index, unit in enumerate(units):
        published = ShardLayout.of(unit.parameters, world_size=world_size)
        handed_over = _handed_over(unit)
        expected = torch.zeros_like(handed_over)
        if expected.numel() == published.numel:
            published.write(expected)
        if expected.numel() != published.numel or not same_bytes(handed_over, expected):
            raise LayoutMismatch(
                f"unit {unit.name}: FSDP2 hands over {handed_over.numel()} elements of {handed_over.dtype} in another "
                f"order than the {published.numel} expected of its {len(unit.parameters)} parameters; parameters of "
                "one unit must share a type, and be plain tensors"
            )
        trainable = [parameter for parameter in unit.parameters if parameter.requires_grad]
        reduced = ShardLayout.of(trainable, world_size=world_size)
        shards.append(
            UnitShard(
                unit=unit,
                index=index,
                published=published,
                reduced=reduced,
                param_dtype=handed_over.dtype,
                reduce_dtype=reduce_dtype_of(unit, gathered=handed_over.dtype),
                first_flag=first_flag,
            )
        )
        first_flag += len(trainable)
    return shards


def _handed_over(unit: Unit) -> torch.Tensor:
    """This rank's shard of a unit, as FSDP2 gives it to an all-gather."""
    probe = Probe()
    unit.module.set_custom_all_gather(probe)
    try:
        unit.module.unshard()
        unit.module.reshard()
    finally:
        restore_default_communication(unit)
    assert probe.shard is not None, f"FSDP2 has not gathered unit {unit.name}"
    return probe.shard
