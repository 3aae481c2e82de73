"""Chrome trace JSON (the Trace Event Format), which Perfetto and chrome://tracing open.

A process a rank, and in it three threads: compute (with waits, publish, settle and optimizer), gather, reduce. Times
are in microseconds there. The trace of a single rank carries `distributedInfo.rank`, as PyTorch's profiler writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from odcsim.engines.timeline import Stream
from odcsim.errors import InputError
from odcsim.trace_format.folder import RecordedRun
from odcsim.trace_format.spans import TraceSpan
from odcsim.trace_format.whole_file import WholeFile

__all__ = ["to_chrome_trace"]

_THREADS: tuple[Stream, ...] = ("compute", "gather", "reduce")


def to_chrome_trace(run: RecordedRun, path: Path, *, rank: int | None = None) -> None:
    """Export a run.

    Args:
        run: measured or simulated.
        path: written whole; compressed if it ends in .gz.
        rank: export this rank alone; all of them by default.

    Raises:
        InputError: the rank was not recorded, or the file cannot be written.
    """
    path = Path(path)
    recorded = range(run.info.recorded_ranks)
    if rank is not None and rank not in recorded:
        raise InputError(f"was not recorded; allowed: 0 to {recorded[-1]}", file=run.folder, key="rank", value=rank)
    ranks = recorded if rank is None else range(rank, rank + 1)
    with WholeFile(path, compressed=path.suffix == ".gz") as file:
        # All but the events first, an event a line: traces are larger than anybody wants to hold twice.
        head = json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", "distributedInfo": _distributed(run, ranks)})
        separator = head[:-1] + ', "traceEvents": [\n'
        for event in _events(run, ranks):
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def _distributed(run: RecordedRun, ranks: range) -> dict[str, Any]:
    shared = {"backend": str(run.info.case.get("transport", run.info.engine)), "world_size": run.info.world_size}
    # The key "rank" says that all events are of that rank; with several it would mislead readers who go by it.
    return {**shared, "rank": ranks[0]} if len(ranks) == 1 else {**shared, "ranks": list(ranks)}


def _events(run: RecordedRun, ranks: range) -> Iterator[dict[str, Any]]:
    for rank in ranks:
        yield _named("process", rank, 0, f"rank {rank} ({run.info.hosts[rank]})")
        yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_sort_index", "args": {"sort_index": rank}}
        for thread, stream in enumerate(_THREADS):
            yield _named("thread", rank, thread, stream)
        for span in run.spans_of_ranks[rank]:
            yield _event(span, rank)


def _named(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": rank, "tid": thread, "name": f"{kind}_name", "args": {"name": name}}


def _event(span: TraceSpan, rank: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": rank,
        "tid": _THREADS.index(span.stream),
        "name": span.name,
        "cat": span.stream,
        # To the nanosecond: more digits are noise.
        "ts": round(span.start_s * 1e6, 3),
        "dur": round(span.duration_s * 1e6, 3),
        "args": {
            "unit": span.unit,
            "minibatch": span.minibatch,
            "microbatch": span.microbatch,
            "tokens": span.tokens,
            "squared_tokens": span.squared_tokens,
            "bytes": span.size_bytes,
        },
    }
