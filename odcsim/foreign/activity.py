"""What one rank did, as found in one file: its collectives and its compute. Nanoseconds by the clock of the file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from odcsim.errors import InputError
from odcsim.foreign.program import Place, Program
from odcsim.foreign.rank_file import RankFile, Sizes

__all__ = ["Collective", "CollectiveName", "Computed", "RankActivity", "Request", "Requests", "check_group"]

CollectiveName = Literal["gather", "scatter_accumulate", "other"]

_NAMES: dict[str, CollectiveName] = {"all_gather": "gather", "post_backward_reduce": "scatter_accumulate"}


class Request(NamedTuple):
    """FSDP2 asking for a transfer.

    Attributes:
        start_ns: when it began to.
        end_ns: when it was done with it.
        name: of the transfer.
        path: of the unit.
        place: where it belongs.
    """

    start_ns: int
    end_ns: int
    name: CollectiveName
    path: str
    place: Place


class Requests:
    """All requests of a program; they do not overlap."""

    def __init__(self, program: Program) -> None:
        self._requests = sorted(
            Request(mark.start_ns, mark.end_ns, _NAMES[mark.what], mark.path, Place(position, one.microbatch))
            for position, minibatch in enumerate(program.minibatches)
            for one in minibatch.passes
            for mark in one.marks
            if mark.what in _NAMES
        )

    def at(self, moment_ns: int) -> Request | None:
        """The request that was being made at a moment."""
        position = bisect_right(self._requests, moment_ns, key=lambda request: request.start_ns) - 1
        if position < 0 or moment_ns >= self._requests[position].end_ns:
            return None
        return self._requests[position]


class Collective(NamedTuple):
    """One rank's part in a collective.

    Attributes:
        asked_ns: when the program asked for it, which orders a rank's collectives.
        name: `other` for one that is not FSDP2's.
        path: of the unit; for another one, what the library calls it.
        place: where it belongs.
        arrived_ns: when the rank was ready for it.
        end_ns: when its data were there.
        free_ns: when the rank went on.
        stall_ns: since when and until when the rank's compute stood still for it; None where it did not.
        moved_bytes: to or from the rank; 0 where the file does not say.
    """

    asked_ns: int
    name: CollectiveName
    path: str
    place: Place
    arrived_ns: int
    end_ns: int
    free_ns: int
    stall_ns: tuple[int, int] | None
    moved_bytes: int


class Computed(NamedTuple):
    """A stretch of compute.

    Attributes:
        start_ns: since when.
        end_ns: until when.
        name: what was computed.
        path: of the unit; empty for the optimizer.
        place: where it belongs.
    """

    start_ns: int
    end_ns: int
    name: Literal["forward", "backward", "optimizer"]
    path: str
    place: Place


@dataclass(frozen=True)
class RankActivity:
    """What one rank did.

    Attributes:
        transport: what moved the data: "gloo", "nccl".
        overlaps: whether transfers run beside compute.
        collectives: in the order of asking.
        computed: by start; they do not overlap.
    """

    transport: str
    overlaps: bool
    collectives: Sequence[Collective]
    computed: Sequence[Computed]


def check_group(trace: RankFile, sizes: Sizes) -> None:
    """Refuse a transfer of FSDP2 that only some ranks take part in.

    Raises:
        InputError: they are fewer than the ranks of the run.
    """
    if sizes.group_size not in {0, trace.world_size}:
        raise InputError(
            f"its collectives unite {sizes.group_size} of {trace.world_size} ranks; hybrid sharding and other "
            "parallelism beside FSDP are not understood: allowed is one group of all ranks",
            file=trace.path,
        )
