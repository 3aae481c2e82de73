"""One file of PyTorch's profiler (Kineto), cut down to what tells of FSDP2's compute and transfers.

Times are whole nanoseconds since 1970 by the clock of the file: `baseTimeNanoseconds` + `ts`, which is in microseconds.
Kept of an event is what later steps ask for; everything else of the file is passed over as it is read.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from math import isfinite, prod
from pathlib import Path
from typing import Any, TypeVar

from odcsim.errors import InputError
from odcsim.foreign.json_stream import EVENTS_KEY, stream_trace
from odcsim.foreign.rank_file import Annotation, Kernel, Operation, RankFile, Sizes
from odcsim.units import format_bytes

__all__ = ["read_rank_file"]

_KEPT_ANNOTATIONS = ("FSDP::", "Optimizer.step#", "ProfilerStep#")
_WORKER_PREFIX = "gloo:"
_OPERATION_PREFIX = "c10d::"
_WAIT_SUFFIX = "c10d_functional::wait_tensor"
_GPU_COPIES = {"gpu_memcpy", "gpu_memset"}
_RUNTIME_SUFFIXES = ("_runtime", "_driver")
# By the file's keys, and what run.json calls them; torch's is there if the user added it.
_VERSIONS = {
    "torch_version": "torch",
    "cuda_runtime_version": "cuda_runtime",
    "cuda_driver_version": "cuda_driver",
    "hip_runtime_version": "hip_runtime",
    "cupti_version": "cupti",
    "nccl_version": "nccl",
}

# A file of that size takes minutes to read, and memory in proportion to its kernels.
_LARGE_BYTES = 1_000_000_000
_LARGE_COMPRESSED_BYTES = 100_000_000

# Bytes of an element, by torch's names of types (in `dtype`) and C++'s (in `Input type`).
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "long int"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("half", "bfloat16", "c10::half", "c10::bfloat16", "short"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool"), 1),
}


_Timed = TypeVar("_Timed", Annotation, Operation, Kernel)


def _large(path: Path) -> str | None:
    """What to warn of before a file is read; None where it is of a size that is read in a moment."""
    size_bytes = path.stat().st_size if path.is_file() else 0
    if size_bytes <= (_LARGE_COMPRESSED_BYTES if path.suffix == ".gz" else _LARGE_BYTES):
        return None
    return (
        f"{path}: takes {format_bytes(size_bytes)}; it is read, but slowly. Record fewer minibatches (schedule=...), "
        "and neither stacks nor memory"
    )


def read_rank_file(path: Path, *, warn: Callable[[str], None] = lambda _text: None) -> RankFile:
    """Read one file.

    Args:
        path: JSON, plain or gzip.
        warn: told of a file that is very large, before it is read.

    Raises:
        InputError: the file cannot be read, is cut off, is no file of PyTorch's profiler, or does not say of which rank
            it is.
    """
    if (large := _large(path)) is not None:
        warn(large)
    events = _Events(RankFile(path))
    header: dict[str, Any] = {}
    number = -1
    for key, value in stream_trace(path):
        if key == EVENTS_KEY:
            number += 1
            events.take(value, number)
        else:
            header[key] = value
    if number < 0:
        raise InputError("holds no event: it is no trace of PyTorch's profiler, or an empty one", file=path)
    return _with_header(events.finished(base_ns=_base_ns(header, path)), header)


def _with_header(trace: RankFile, header: Mapping[str, Any]) -> RankFile:
    shared = header.get("distributedInfo")
    if not isinstance(shared, dict) or "rank" not in shared:
        raise InputError(
            "the file does not say of which rank it is, so ranks cannot be told apart; record it after "
            "torch.distributed.init_process_group, and pass on the file as the profiler writes it",
            file=trace.path,
            key="distributedInfo.rank",
        )
    trace.world_size = _whole(shared, "world_size", least=1, file=trace.path)
    trace.rank = _whole(shared, "rank", least=0, file=trace.path)
    if trace.rank >= trace.world_size:
        raise InputError(
            f"must be below the world size, {trace.world_size}",
            file=trace.path,
            key="distributedInfo.rank",
            value=trace.rank,
        )
    trace.backend = str(shared.get("backend", ""))
    trace.host = str(header.get("host_name", ""))
    told = {**header, **shared}
    trace.versions = {name: str(told[key]) for key, name in _VERSIONS.items() if key in told}
    return trace


def _whole(shared: Mapping[str, Any], key: str, *, least: int, file: Path) -> int:
    value = shared.get(key)
    if type(value) is not int or value < least:
        raise InputError(
            f"must be a whole number of at least {least}", file=file, key=f"distributedInfo.{key}", value=value
        )
    return value


def _base_ns(header: Mapping[str, Any], path: Path) -> int:
    # Files of older versions have whole times in their events.
    base = header.get("baseTimeNanoseconds", 0)
    if type(base) is not int:
        raise InputError("must be a whole number", file=path, key="baseTimeNanoseconds", value=base)
    return base


class _Events:
    """Sorts events as they come."""

    def __init__(self, trace: RankFile) -> None:
        self._trace = trace

    def take(self, event: object, number: int) -> None:
        """Keep what is needed of an event."""
        if type(event) is not dict:
            raise InputError("must be a JSON object", file=self._trace.path, key=f"traceEvents.{number}")
        if event.get("ph") != "X":
            return
        category, name = event.get("cat"), event.get("name")
        if type(category) is not str or type(name) is not str:
            return
        if category == "cpu_op":
            self._take_operation(event, name, number)
        elif category == "user_annotation":
            if name.startswith(_KEPT_ANNOTATIONS):
                self._trace.annotations.append(Annotation(*self._times(event, number), name))
            elif name.startswith(_WORKER_PREFIX):
                self._trace.workers.append(Annotation(*self._times(event, number), name))
        elif category == "kernel" or category in _GPU_COPIES:
            self._take_kernel(event, name, number)
        elif category.endswith(_RUNTIME_SUFFIXES):
            correlation = _arguments(event).get("correlation")
            if type(correlation) is int:
                self._trace.launches_ns[correlation] = self._times(event, number)[0]

    def _times(self, event: Mapping[str, Any], number: int) -> tuple[int, int]:
        start_us, duration_us = self._time_us(event, "ts", number), self._time_us(event, "dur", number)
        start_ns = round(start_us * 1000)
        return start_ns, start_ns + round(max(duration_us, 0) * 1000)

    def _time_us(self, event: Mapping[str, Any], key: str, number: int) -> float:
        value = event.get(key)
        if (type(value) is int or type(value) is float) and isfinite(value):
            return value
        place = f"traceEvents.{number}.{key}"
        raise InputError("must be a number of microseconds", file=self._trace.path, key=place, value=value)

    def _take_operation(self, event: Mapping[str, Any], name: str, number: int) -> None:
        start_ns, end_ns = self._times(event, number)
        thread = event.get("tid")
        if name == "record_param_comms":
            self._trace.comms.append((start_ns, _told_sizes(_arguments(event))))
            return
        self._trace.op_starts_ns[thread].append(start_ns)
        if name.startswith(_OPERATION_PREFIX):
            sizes = Sizes(_bytes_of_shapes(_arguments(event)))
            name = name.removeprefix(_OPERATION_PREFIX)
            self._trace.operations.append(Operation(start_ns, end_ns, name, thread, sizes))
        elif name.endswith(_WAIT_SUFFIX):
            self._trace.waits.append(Operation(start_ns, end_ns, name, thread, Sizes()))

    def _take_kernel(self, event: Mapping[str, Any], name: str, number: int) -> None:
        arguments = _arguments(event)
        correlation = arguments.get("correlation")
        is_nccl = event["cat"] == "kernel" and "nccl" in name.lower()
        self._trace.kernels.append(
            Kernel(
                *self._times(event, number),
                arguments.get("stream", event.get("tid")),
                correlation if type(correlation) is int else -1,
                name if is_nccl else "",
                _told_sizes(arguments) if is_nccl else Sizes(),
            )
        )

    def finished(self, *, base_ns: int) -> RankFile:
        """Everything in order, and by the clock since 1970."""
        trace = self._trace
        trace.annotations = _moved(trace.annotations, base_ns)
        trace.workers = _moved(trace.workers, base_ns)
        trace.operations = _moved(trace.operations, base_ns)
        trace.waits = _moved(trace.waits, base_ns)
        trace.kernels = _moved(trace.kernels, base_ns)
        trace.comms = sorted((start_ns + base_ns, sizes) for start_ns, sizes in trace.comms)
        trace.op_starts_ns = {
            thread: array("q", sorted(start_ns + base_ns for start_ns in starts_ns))
            for thread, starts_ns in trace.op_starts_ns.items()
        }
        trace.launches_ns = {number: start_ns + base_ns for number, start_ns in trace.launches_ns.items()}
        return trace


def _moved(timed: Iterable[_Timed], by_ns: int) -> list[_Timed]:
    moved = [one._replace(start_ns=one.start_ns + by_ns, end_ns=one.end_ns + by_ns) for one in timed]
    # What encloses something comes before it.
    return sorted(moved, key=lambda one: (one.start_ns, -one.end_ns))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _told_sizes(arguments: Mapping[str, Any]) -> Sizes:
    """From the metadata that torch gives to NCCL's calls and kernels."""
    given, taken, group = (arguments.get(key) for key in ("In msg nelems", "Out msg nelems", "Group size"))
    item_bytes = _ITEM_BYTES.get(str(arguments.get("dtype", "")).lower(), 0)
    moved = abs(given - taken) * item_bytes if type(given) is int and type(taken) is int else 0
    return Sizes(moved, group if type(group) is int else 0)


def _bytes_of_shapes(arguments: Mapping[str, Any]) -> int:
    """Of an all-gather or reduce-scatter, whose first two tensors are the whole and a part, or the other way round."""
    shapes, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not (isinstance(shapes, list) and isinstance(types, list) and len(shapes) >= 2 and types):
        return 0
    if not all(isinstance(shape, list) and all(type(size) is int for size in shape) for shape in shapes[:2]):
        return 0
    return abs(prod(shapes[0]) - prod(shapes[1])) * _ITEM_BYTES.get(str(types[0]).lower(), 0)
