"""`shm`: ranks of one host over shared memory. Reads are copies, accumulations additions, by the calling process alone.

One segment a rank holds its regions, one more the control table. Both are anonymous (`segments`), so nothing stays
behind even after a kill. Additions to one region are kept apart by locks of the owner's segment, which the kernel takes
back from a process that dies.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from odcrt.transports.base import Region, Transport
from odcrt.transports.control import Control
from odcrt.transports.locks import locked
from odcrt.transports.phases import Phase
from odcrt.transports.segments import Address, Segment
from odcsim.errors import RunError

__all__ = ["ShmTransport"]

# Regions start at multiples of a page: a transfer of one never touches another's cache lines.
_ALIGNMENT_BYTES = 4096

# A lock is held for the time of an addition; after this long a wait, somebody may have died.
_LIFE_CHECK_S = 1.0


@dataclass(frozen=True)
class _Place:
    """Where a region lies in every rank's segment, and its first lock."""

    region: Region
    first_byte: int
    first_lock: int


class ShmTransport(Transport):
    """Shared memory of the ranks of one host.

    Args:
        group: the ranks; used to exchange addresses while allocating, and for nothing else.
        deadline_s: longest wait for other ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, deadline_s: float = 60.0) -> None:
        super().__init__(rank=dist.get_rank(group), world_size=dist.get_world_size(group), deadline_s=deadline_s)
        self._group = group
        self._segments: list[Segment] = []
        self._places: dict[str, _Place] = {}
        self._views: dict[tuple[str, int], torch.Tensor] = {}
        self._control_segment: Segment | None = None
        self._control: Control | None = None

    def allocate(self, regions: Sequence[Region]) -> None:
        """See `Transport`.

        Raises:
            RunError: called twice, ranks ask for different regions, or ranks of several hosts.
        """
        if self._segments:
            raise RunError("a transport allocates once")
        size_bytes = self._lay_out(regions)
        control = Segment.create(Control.size_bytes(self.world_size)) if self.rank == 0 else None
        own = Segment.create(size_bytes)
        offers: list[tuple[str, Sequence[Region], Address, Address | None]] = [None] * self.world_size  # type: ignore[list-item]
        offer = (_host(), regions, own.address, control.address if control else None)
        dist.all_gather_object(offers, offer, group=self._group)
        hosts = sorted({host for host, *_ in offers})
        if len(hosts) > 1:
            raise RunError(f"transport shm serves the ranks of one host; these are on {', '.join(hosts)}")
        for rank, (_, theirs, _, _) in enumerate(offers):
            if list(theirs) != list(regions):
                raise RunError(f"rank {rank} allocates other regions than rank {self.rank}: is its model another one?")
        self._segments = [
            own if rank == self.rank else Segment.attach(address) for rank, (_, _, address, _) in enumerate(offers)
        ]
        table = offers[0][3]
        assert table is not None
        self._control_segment = control or Segment.attach(table)
        self._control = Control(
            self._control_segment, rank=self.rank, world_size=self.world_size, deadline_s=self.deadline_s
        )
        # Every rank has its sign of life, and all have attached, before anyone goes on.
        dist.barrier(self._group)
        for segment in (own, self._control_segment):
            segment.all_attached()

    def _lay_out(self, regions: Sequence[Region]) -> int:
        """Place regions one after the other; bytes of them all."""
        first_byte = first_lock = 0
        for region in regions:
            self._places[region.name] = _Place(region, first_byte, first_lock)
            used = region.numel * region.dtype.itemsize
            first_byte += -(-used // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            first_lock += region.locks
        return first_byte

    def view(self, region: str, *, owner: int | None = None) -> torch.Tensor:
        """See `Transport`."""
        owner = self.rank if owner is None else owner
        found = self._views.get((region, owner))
        if found is None:
            place = self._places[region]
            size_bytes = place.region.numel * place.region.dtype.itemsize
            memory = self._segments[owner].memory[place.first_byte : place.first_byte + size_bytes]
            found = self._views[region, owner] = memory.view(place.region.dtype)
        return found

    def read(self, out: torch.Tensor, region: str, *, owner: int, offset: int = 0) -> None:
        """See `Transport`."""
        out.copy_(self.view(region, owner=owner)[offset : offset + out.numel()])

    def accumulate(
        self, values: torch.Tensor, region: str, *, owner: int, offset: int = 0, scale: float = 1.0, lock: int = 0
    ) -> None:
        """See `Transport`."""
        target = self.view(region, owner=owner)[offset : offset + values.numel()]
        place = self._places[region]
        if place.region.locks == 0:
            target.add_(values, alpha=scale)
            return
        byte = place.first_lock + lock
        number = 1 + byte * self.world_size + owner

        def late(waited_s: float) -> None:
            self.control.check_failures()
            if waited_s > _LIFE_CHECK_S:
                self.control.check_lives(range(self.world_size))
            if waited_s > self.deadline_s:
                raise self.control.late_for_lock(number)

        with locked(self._segments[owner].file, byte, deadline_s=math.inf, late=late):
            self.control.note_lock(number)
            target.add_(values, alpha=scale)
            self.control.note_lock(0)

    @property
    def control(self) -> Control:
        """The control table; there once memory is allocated."""
        if self._control is None:
            raise RunError("the transport is closed, or has not allocated its memory yet")
        return self._control

    def barrier(self, phase: Phase) -> float:
        """See `Transport`."""
        return self.control.barrier(str(phase))

    def pull(self, *, sequence: int, count: int) -> int:
        """See `Transport`."""
        return self.control.pull(sequence, count)

    def pulled(self, *, sequence: int) -> int:
        """See `Transport`."""
        return self.control.pulled(sequence)

    def note(
        self, phase: Phase, *, unit: int = -1, minibatch: int = -1, microbatch: int = -1, tokens: int = -1
    ) -> None:
        """See `Transport`."""
        self.control.note(phase, unit, minibatch, microbatch, tokens)

    def check_peers(self) -> None:
        """See `Transport`."""
        self.control.check_failures()

    def check_lives(self) -> None:
        """See `Transport`."""
        self.control.check_failures()
        self.control.check_lives(range(self.world_size))

    def fail(self, text: str) -> None:
        """See `Transport`."""
        with suppress(RunError):  # nobody to tell before memory is allocated, or after it is closed
            self.control.fail(text)

    def close(self) -> None:
        """See `Transport`."""
        self._views.clear()
        for segment in [*self._segments, *([self._control_segment] if self._control_segment else [])]:
            segment.close()
        self._segments = []
        self._control = self._control_segment = None


def _host() -> str:
    """Names the host, and the boot: containers may share a name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:  # pragma: no cover - not Linux
        boot = ""
    return f"{socket.gethostname()} {boot}".strip()
