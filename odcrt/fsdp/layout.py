"""How the parameters of a unit lie in a rank's shard, as FSDP2 hands it to communication.

Each parameter is split over ranks along dimension 0 into chunks of ceil(rows / D) rows; the last ranks' may be short or
empty, and are padded with zeros. A shard is the chunks of the unit's parameters one after the other, flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

__all__ = ["ShardLayout", "local_part"]


def local_part(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's chunk of a sharded parameter, without padding, over its very memory."""
    assert isinstance(parameter, DTensor)
    detached = parameter.detach()
    assert isinstance(detached, DTensor)
    return detached.to_local()


@dataclass(frozen=True)
class ShardLayout:
    """Some parameters of a unit, one after the other in a shard.

    Attributes:
        parameters: in order.
        sizes: elements of each one's padded chunk.
        offsets: where each begins.
        numel: elements of the shard.
    """

    parameters: tuple[nn.Parameter, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    numel: int

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], *, world_size: int) -> ShardLayout:
        """The layout of `parameters` sharded over `world_size` ranks."""
        sizes, offsets, numel = [], [], 0
        for parameter in parameters:
            rows = -(-parameter.shape[0] // world_size)
            size = rows * math.prod(parameter.shape[1:])
            sizes.append(size)
            offsets.append(numel)
            numel += size
        return cls(tuple(parameters), tuple(sizes), tuple(offsets), numel)

    @torch.no_grad()
    def write(self, shard: torch.Tensor) -> None:
        """Copy this rank's chunks into `shard` (1-D, `numel` elements, any floating type); padding stays as it is."""
        for parameter, offset in zip(self.parameters, self.offsets, strict=True):
            local = local_part(parameter).reshape(-1)
            shard[offset : offset + local.numel()].copy_(local)
