"""`collective`: FSDP's own synchronization, ranks meeting for every unit, over the shared memory of `shm`.

A comparison with on-demand communication over the same memory tells what the meetings cost, and not what another
library's transfers do. Each collective is one meeting: a rank puts its part into a staging area, all meet, each reads
the others'. There are two staging areas, used in turns: who meets for the next collective has done reading the one
before.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from odcrt.transports.base import Region
from odcrt.transports.phases import Phase
from odcrt.transports.shm import ShmTransport
from odcsim.errors import RunError

__all__ = ["CollectiveTransport"]


class CollectiveTransport(ShmTransport):
    """Meetings of all ranks over shared memory.

    Args:
        group: the ranks.
        staging_bytes: of the largest collective's part of one rank.
        deadline_s: longest wait for other ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, staging_bytes: int, deadline_s: float = 60.0) -> None:
        super().__init__(group, deadline_s=deadline_s)
        self._meetings = 0
        self._staging_bytes = staging_bytes

    def open(self) -> None:
        """Allocate the staging areas. Collective; once."""
        staging = [Region(f"staging/{turn}", self._staging_bytes, torch.uint8) for turn in range(2)]
        self.allocate([*staging, Region("kind", 2, torch.int64), Region("microbatches", 1, torch.int64)])

    def stage(self, numel: int, *, dtype: torch.dtype) -> torch.Tensor:
        """This rank's part of the next collective, to be filled before `meet`."""
        return self._staging(self._meetings, numel, dtype, self.rank)

    def staged(self, numel: int, *, dtype: torch.dtype, owner: int) -> torch.Tensor:
        """Another rank's part of the collective that has just been met for."""
        return self._staging(self._meetings - 1, numel, dtype, owner)

    def _staging(self, meeting: int, numel: int, dtype: torch.dtype, owner: int) -> torch.Tensor:
        return self.view(f"staging/{meeting % 2}", owner=owner)[: numel * dtype.itemsize].view(dtype)

    def meet(self, phase: Phase, unit: int) -> float:
        """Meet all ranks for one collective; seconds waited.

        Raises:
            RunError: ranks have met for different collectives.
        """
        turn = self._meetings % 2
        kind = int(phase) * 1_000_000 + unit
        self.view("kind")[turn] = kind
        waited_s = self.barrier(phase)
        self._meetings += 1
        kinds = [int(self.view("kind", owner=rank)[turn]) for rank in range(self.world_size)]
        if len(set(kinds)) > 1:
            told = ", ".join(
                f"rank {rank}: {Phase(found // 1_000_000)} of unit {found % 1_000_000}"
                for rank, found in enumerate(kinds)
            )
            raise RunError(
                f"ranks meet for different collectives ({told}): under fsdp every rank must run as many microbatches, "
                "through the same units"
            )
        return waited_s
