"""Makes files like those of PyTorch's profiler, of an FSDP2 run whose every moment is known.

A small model of FSDP2 runs on all ranks at once. On the CPU, a rank does one thing after another. On a GPU, compute,
all-gathers and reduce-scatters have a stream each; the program launches kernels far ahead of them. Times are whole
microseconds since the run's origin.

The program of a microbatch, for root 0 and blocks 1 to L (see `odcrt.tracing.compute_tracker`):

    gather 0, embedding, gather 1, block 1, ..., gather L, block L, head
    gather L, head backward, then for each block u from L: gather u - 1 ahead, block u backward, reduce u
    embedding backward, reduce 0
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

BASE_NS = 1_790_000_000_000_000_000
# When the run begins, in the microseconds of the files.
ORIGIN_US = 5_000_000
GATHER_US, REDUCE_US, OPTIMIZER_US = 50, 80, 30
COMPUTE_STREAM, GATHER_STREAM, REDUCE_STREAM, COPY_STREAM = 7, 20, 24, 16
ELEMENTS = 1000
ITEM_BYTES = 2

# Microseconds of a piece of compute: of a rank, minibatch, microbatch, unit; backward takes twice as long.
ForwardTime = Callable[[int, int, int, int], int]


class Known(NamedTuple):
    """A span that the ingested run must hold."""

    start_us: int
    end_us: int
    name: str
    unit: int
    minibatch: int
    microbatch: int


@dataclass
class RankDocument:
    """The file of one rank, and what is known of it."""

    rank: int
    ranks: int
    host: str = "alpha"
    backend: str = "gloo"
    offset_us: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)

    def add(self, cat: str, name: str, start_us: float, end_us: float, *, tid: object = 1, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 100 + self.rank,
                "tid": tid,
                "ts": ORIGIN_US + start_us + self.offset_us,
                "dur": end_us - start_us,
                "args": args,
            }
        )

    def annotate(self, what: str, unit: int, start_us: float, end_us: float) -> None:
        self.add("user_annotation", f"FSDP::{what}" + (f" ({path_of(unit)})" if unit else ""), start_us, end_us)

    def document(self) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "distributedInfo": {"backend": self.backend, "rank": self.rank, "world_size": self.ranks},
            "host_name": self.host,
            "torch_version": "2.13.0",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": [
                {"ph": "M", "name": "process_name", "pid": 100 + self.rank, "args": {"name": "python"}},
                *self.events,
                {"ph": "i", "name": "Record Window End", "ts": ORIGIN_US},
            ],
            "traceName": "somewhere",
        }


def path_of(unit: int) -> str:
    return f"layers.{unit - 1}"


def write(documents: Sequence[RankDocument], folder: Path, *, compressed: bool = False) -> list[Path]:
    """Write the files of all ranks."""
    return [write_document(one.document(), folder / f"rank{one.rank}.json", compressed=compressed) for one in documents]


def write_document(document: object, path: Path, *, compressed: bool = False) -> Path:
    text = json.dumps(document)
    if compressed:
        path = path.with_name(path.name + ".gz")
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def forward_us(rank: int, minibatch: int, microbatch: int, unit: int) -> int:
    """Different for everything, so that nothing can be taken for another."""
    return 100 + 37 * rank * (1 + microbatch) + 11 * unit + 7 * minibatch + 3 * microbatch


# On the CPU


def on_cpu(
    *,
    ranks: int = 2,
    blocks: int = 3,
    minibatches: int = 2,
    microbatches: int = 2,
    time_us: ForwardTime = forward_us,
    numbered_from: int | None = None,
    shapes: bool = True,
) -> list[RankDocument]:
    """A run under gloo. Between two microbatches and before the optimizer, 5 us pass that belong to nothing."""
    files = [RankDocument(rank, ranks) for rank in range(ranks)]
    run = _CpuRun(files, shapes=shapes)
    for minibatch in range(minibatches):
        began_us = list(run.now_us)
        for microbatch in range(microbatches):
            run.pause(5)
            run.microbatch(minibatch, microbatch, blocks, time_us)
        run.pause(5)
        for rank, file in enumerate(files):
            start_us = run.now_us[rank]
            run.now_us[rank] += OPTIMIZER_US
            file.add("user_annotation", "Optimizer.step#AdamW.step", start_us, run.now_us[rank])
            file.known.append(Known(start_us, run.now_us[rank], "optimizer", -1, minibatch, -1))
            if numbered_from is not None:
                name = f"ProfilerStep#{numbered_from + minibatch}"
                file.add("user_annotation", name, began_us[rank], run.now_us[rank])
    return files


class _CpuRun:
    def __init__(self, files: list[RankDocument], *, shapes: bool) -> None:
        self.files = files
        self.now_us = [0] * len(files)
        self._shapes = shapes

    def pause(self, time_us: int) -> None:
        self.now_us = [now_us + time_us for now_us in self.now_us]

    def microbatch(self, minibatch: int, microbatch: int, blocks: int, time_us: ForwardTime) -> None:
        place = (minibatch, microbatch)

        def forward(unit: int) -> None:
            self._compute("forward", unit, place, 1, time_us)

        def backward(unit: int) -> None:
            self._compute("backward", unit, place, 2, time_us)

        self._mark("root_pre_forward", 0)
        began_us = list(self.now_us)
        self._gather(0, place)
        self._mark("pre_forward", 0, began_us)
        forward(0)
        for unit in range(1, blocks + 1):
            began_us = list(self.now_us)
            self._gather(unit, place)
            self._mark("pre_forward", unit, began_us)
            forward(unit)
            self._mark("post_forward", unit)
        forward(0)
        self._mark("post_forward", 0)
        began_us = list(self.now_us)
        self._gather(blocks, place)
        self._mark("pre_backward", 0, began_us)
        backward(0)
        for unit in range(blocks, 0, -1):
            began_us = list(self.now_us)
            if unit > 1:
                self._gather(unit - 1, place)
            self._mark("pre_backward", unit, began_us)
            backward(unit)
            self._reduce(unit, place)
        backward(0)
        began_us = list(self.now_us)
        self._reduce(0, place)
        self._mark("root_post_backward_callback", 0, began_us)

    def _mark(self, what: str, unit: int, began_us: Sequence[int] | None = None) -> None:
        for rank, file in enumerate(self.files):
            file.annotate(what, unit, self.now_us[rank] if began_us is None else began_us[rank], self.now_us[rank])

    def _compute(self, name: str, unit: int, place: tuple[int, int], times: int, time_us: ForwardTime) -> None:
        for rank, file in enumerate(self.files):
            start_us = self.now_us[rank]
            self.now_us[rank] += times * time_us(rank, *place, unit)
            file.add("cpu_op", "aten::mm", start_us, self.now_us[rank])
            file.known.append(Known(start_us, self.now_us[rank], name, unit, *place))

    def _gather(self, unit: int, place: tuple[int, int]) -> None:
        self._collective("gather", "all_gather", "_allgather_base_", "gloo:all_gather", unit, place, GATHER_US)

    def _reduce(self, unit: int, place: tuple[int, int]) -> None:
        name, operation = "scatter_accumulate", "_reduce_scatter_base_"
        self._collective(name, "post_backward_reduce", operation, "gloo:all_reduce", unit, place, REDUCE_US)

    def _collective(
        self, name: str, what: str, operation: str, worker: str, unit: int, place: tuple[int, int], transfer_us: int
    ) -> None:
        last_us = max(self.now_us)
        ranks = len(self.files)
        whole, part = [ELEMENTS * ranks], [ELEMENTS]
        dims = [whole, part] if name == "gather" else [part, whole]
        args = {"Input Dims": [*dims, []], "Input type": ["c10::BFloat16"] * 2} if self._shapes else {}
        for rank, file in enumerate(self.files):
            start_us, end_us = self.now_us[rank], last_us + transfer_us
            file.annotate(what, unit, start_us, end_us)
            file.add("cpu_op", f"c10d::{operation}", start_us, start_us + 2, **args)
            file.add("user_annotation", worker, start_us + 1, end_us, tid=900)
            if last_us > start_us:
                file.known.append(Known(start_us, last_us, "wait", unit, *place))
            file.known.append(Known(last_us, end_us, name, unit, *place))
            self.now_us[rank] = end_us


# On a GPU


def on_gpu(
    *,
    ranks: int = 2,
    blocks: int = 3,
    minibatches: int = 2,
    microbatches: int = 2,
    time_us: ForwardTime = forward_us,
    told_beside: bool = False,
) -> list[RankDocument]:
    """A run under NCCL, with transfers beside compute.

    Args:
        told_beside: sizes of transfers stand in the library's calls alone, not in the kernels.
    """
    files = [RankDocument(rank, ranks, backend="nccl") for rank in range(ranks)]
    run = _GpuRun(files, told_beside=told_beside)
    for minibatch in range(minibatches):
        for microbatch in range(microbatches):
            run.microbatch(minibatch, microbatch, blocks, time_us)
        run.optimizer(minibatch)
    return files


@dataclass
class _Streams:
    """Until when a rank's streams are busy."""

    compute_us: int = 1000
    gather_us: int = 1000
    reduce_us: int = 1000
    has_computed: bool = False


class _Collective(NamedTuple):
    unit: int
    place: tuple[int, int]
    ready_us_D: Sequence[int]
    there_us: int


class _GpuRun:
    def __init__(self, files: list[RankDocument], *, told_beside: bool) -> None:
        self.files = files
        self._told_beside = told_beside
        self._streams = [_Streams() for _ in files]
        self._program_us = 0  # of all ranks alike: far ahead of the kernels
        self._correlation = 0
        self._gathered_us: dict[int, int] = {}
        self._collectives: list[_Collective] = []

    def _step(self) -> int:
        self._program_us += 1
        return self._program_us

    def microbatch(self, minibatch: int, microbatch: int, blocks: int, time_us: ForwardTime) -> None:
        place = (minibatch, microbatch)
        self._mark("root_pre_forward", 0)
        self._pre(("pre_forward", 0), 0, place)
        self._compute("forward", 0, place, 1, time_us, needs=0)
        for unit in range(1, blocks + 1):
            self._pre(("pre_forward", unit), unit, place)
            self._compute("forward", unit, place, 1, time_us, needs=unit)
            self._mark("post_forward", unit)
        self._compute("forward", 0, place, 1, time_us)
        self._mark("post_forward", 0)
        self._pre(("pre_backward", 0), blocks, place)
        self._compute("backward", 0, place, 2, time_us)
        for unit in range(blocks, 0, -1):
            self._pre(("pre_backward", unit), unit - 1 if unit > 1 else None, place)
            self._compute("backward", unit, place, 2, time_us, needs=unit)
            self._reduce(unit, place)
        self._compute("backward", 0, place, 2, time_us)
        began_us = self._step()
        self._reduce(0, place)
        self._annotate("root_post_backward_callback", 0, began_us)

    def optimizer(self, minibatch: int) -> None:
        began_us = self._step()
        launched_us = self._step()
        for rank, file in enumerate(self.files):
            streams = self._streams[rank]
            start_us = max(streams.compute_us, streams.reduce_us)
            self._know_waits(rank, streams.compute_us, start_us)
            streams.compute_us = start_us + OPTIMIZER_US
            self._kernel(file, "adamw", COMPUTE_STREAM, launched_us, start_us, streams.compute_us)
            file.known.append(Known(start_us, streams.compute_us, "optimizer", -1, minibatch, -1))
            file.add("user_annotation", "Optimizer.step#AdamW.step", began_us, launched_us + 1)
        self._program_us += 2

    def _mark(self, what: str, unit: int) -> None:
        self._annotate(what, unit, self._step())

    def _annotate(self, what: str, unit: int, began_us: int) -> None:
        ended_us = self._step()
        for file in self.files:
            file.annotate(what, unit, began_us, ended_us)

    def _pre(self, mark: tuple[str, int], gathered: int | None, place: tuple[int, int]) -> None:
        """A hook before a unit's forward or backward, which gathers a unit."""
        began_us = self._step()
        if gathered is not None:
            self._gather(gathered, place)
        self._annotate(*mark, began_us)

    def _kernel(
        self, file: RankDocument, name: str, stream: int, launched_us: int, start_us: int, end_us: int, **args: Any
    ) -> None:
        self._correlation += 1
        number = self._correlation
        file.add("cuda_runtime", "cudaLaunchKernel", launched_us, launched_us + 0.5, correlation=number)
        file.add("kernel", name, start_us, end_us, tid=stream, stream=stream, correlation=number, **args)

    def _compute(
        self,
        name: str,
        unit: int,
        place: tuple[int, int],
        times: int,
        time_us: ForwardTime,
        *,
        needs: int | None = None,
    ) -> None:
        """Two kernels, with a microsecond between them that belongs to the unit too."""
        first_us, second_us = self._step(), self._step()
        for rank, file in enumerate(self.files):
            streams = self._streams[rank]
            start_us = streams.compute_us
            if needs is not None and self._gathered_us[needs] > start_us:
                start_us = self._gathered_us[needs]
                if streams.has_computed:
                    self._know_waits(rank, streams.compute_us, start_us)
            streams.has_computed = True
            end_us = start_us + times * time_us(rank, *place, unit)
            middle_us = (start_us + end_us) // 2
            self._kernel(file, "gemm", COMPUTE_STREAM, first_us, start_us, middle_us)
            self._kernel(file, "gemm", COMPUTE_STREAM, second_us, middle_us + 1, end_us)
            file.known.append(Known(start_us, end_us, name, unit, *place))
            streams.compute_us = end_us

    def _know_waits(self, rank: int, since_us: int, until_us: int) -> None:
        """Compute pauses: for the collectives that end meanwhile, one after the other."""
        ended = [one for one in self._collectives if since_us < one.there_us <= until_us]
        for one in sorted(ended, key=lambda one: one.there_us):
            start_us, last_us = max(since_us, one.ready_us_D[rank]), max(one.ready_us_D)
            if last_us > start_us:
                self.files[rank].known.append(Known(start_us, last_us, "wait", one.unit, *one.place))
            since_us = one.there_us

    def _gather(self, unit: int, place: tuple[int, int]) -> None:
        """Begins on a rank once it computes what comes before: FSDP2 is one unit ahead."""
        began_us = self._step()
        # A root's gather waits for the reduction before it, since backward ends with it.
        ready_us_D = [
            max(streams.gather_us, streams.compute_us - 60, streams.reduce_us if unit == 0 else 0)
            for streams in self._streams
        ]
        name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        copied_us = self._step()
        there_us = self._nccl("gather", name, GATHER_STREAM, unit, place, ready_us_D, GATHER_US, "_allgather_base")
        for rank, file in enumerate(self.files):
            # A copy on a stream of its own, which is nobody's compute.
            self._kernel(file, "copy_in", COPY_STREAM, copied_us, ready_us_D[rank] - 9, ready_us_D[rank] - 1)
            self._streams[rank].gather_us = there_us
        self._annotate("all_gather", unit, began_us)
        self._gathered_us[unit] = there_us

    def _reduce(self, unit: int, place: tuple[int, int]) -> None:
        began_us = self._step()
        ready_us_D = [max(streams.compute_us, streams.reduce_us) for streams in self._streams]
        name = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        there_us = self._nccl(
            "scatter_accumulate", name, REDUCE_STREAM, unit, place, ready_us_D, REDUCE_US, "_reduce_scatter_base"
        )
        summed_us = self._step()
        for rank, file in enumerate(self.files):
            self._kernel(file, "add", REDUCE_STREAM, summed_us, there_us, there_us + 4)
            self._streams[rank].reduce_us = there_us + 4
        self._annotate("post_backward_reduce", unit, began_us)

    def _nccl(
        self,
        span: str,
        name: str,
        stream: int,
        unit: int,
        place: tuple[int, int],
        ready_us_D: Sequence[int],
        transfer_us: int,
        told: str,
    ) -> int:
        launched_us = self._step()
        last_us = max(ready_us_D)
        whole, part = ELEMENTS * len(self.files), ELEMENTS
        given, taken = (part, whole) if span == "gather" else (whole, part)
        args = {
            "Collective name": told,
            "In msg nelems": given,
            "Out msg nelems": taken,
            "dtype": "BFloat16",
            "Group size": len(self.files),
        }
        for rank, file in enumerate(self.files):
            file.add("cpu_op", "record_param_comms", launched_us - 0.25, launched_us + 0.75, **args)
            shown = {} if self._told_beside else args
            self._kernel(file, name, stream, launched_us, ready_us_D[rank], last_us + transfer_us, **shown)
            file.known.append(Known(last_us, last_us + transfer_us, span, unit, *place))
        self._collectives.append(_Collective(unit, place, tuple(ready_us_D), last_us + transfer_us))
        return last_us + transfer_us
