"""What is kept of one file of PyTorch's profiler. Times are whole nanoseconds since 1970 by the clock of the file."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Annotation", "Kernel", "Operation", "RankFile", "Sizes"]


class Annotation(NamedTuple):
    """A span of the program with a name of its own."""

    start_ns: int
    end_ns: int
    name: str


class Sizes(NamedTuple):
    """What a collective says of itself; 0 where it does not.

    Attributes:
        moved_bytes: to or from this rank.
        group_size: ranks that take part.
    """

    moved_bytes: int = 0
    group_size: int = 0


class Operation(NamedTuple):
    """A call of torch's communication library, as the program made it.

    Attributes:
        start_ns: when.
        end_ns: when the call returned; the transfer may go on.
        name: without its prefix: "_allgather_base_".
        thread: that called.
        sizes: of the transfer.
    """

    start_ns: int
    end_ns: int
    name: str
    thread: object
    sizes: Sizes


class Kernel(NamedTuple):
    """Something that ran on the GPU.

    Attributes:
        start_ns: when.
        end_ns: until when.
        stream: where.
        correlation: number that it shares with its launch; -1: none.
        nccl_name: of NCCL's kernels; empty for all others.
        sizes: of the transfer, for NCCL's kernels.
    """

    start_ns: int
    end_ns: int
    stream: object
    correlation: int
    nccl_name: str = ""
    sizes: Sizes = Sizes()


@dataclass
class RankFile:
    """What one file holds.

    Attributes:
        path: of the file.
        rank: whose trace it is.
        world_size: ranks of the run.
        backend: of torch's process groups: "gloo", "nccl".
        host: name of the machine; empty where the file does not say.
        versions: of software, as far as the file says.
        annotations: of FSDP2, optimizers and profiler steps; by start.
        operations: calls of collectives; by start.
        waits: calls that return when a collective is over; by start.
        workers: what gloo's own threads did; by start.
        comms: sizes that NCCL's calls were given, beside the kernels; by start.
        op_starts_ns: of each thread, when each of its operations began; by start.
        kernels: of the GPU; by start.
        launches_ns: when the program asked for a kernel, by correlation.
    """

    path: Path
    rank: int = -1
    world_size: int = 0
    backend: str = ""
    host: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    waits: list[Operation] = field(default_factory=list)
    workers: list[Annotation] = field(default_factory=list)
    comms: list[tuple[int, Sizes]] = field(default_factory=list)
    op_starts_ns: dict[object, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    kernels: list[Kernel] = field(default_factory=list)
    launches_ns: dict[int, int] = field(default_factory=dict)
