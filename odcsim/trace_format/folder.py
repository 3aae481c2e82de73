"""Run folders: a `run.json`, and one gzipped file of lines a rank. Writing them, and reading them back with checks.

A file appears under its name once it is whole. `run.json` is written last: a folder without one is no run. Equal spans
give equal bytes. Lines of a rank are ordered by start.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odcsim.errors import InputError
from odcsim.files import read_text, write_atomically
from odcsim.trace_format.info import TRACE_SCHEMA, RunInfo
from odcsim.trace_format.spans import COMPUTE_NAMES, TraceSpan, span_from_line
from odcsim.trace_format.whole_file import WholeFile
from odcsim.units import format_bytes

__all__ = [
    "RankTraceWriter",
    "RecordedRun",
    "TraceSizeWarning",
    "case_folder",
    "clear_run",
    "find_runs",
    "rank_file",
    "read_run",
    "read_run_info",
    "run_digest",
    "write_run",
    "write_run_info",
]

_INFO_NAME = "run.json"
_RANK_FILES = "rank-*.jsonl.gz"
_UNFINISHED_FILES = f".{_RANK_FILES}.*.tmp"
_WHAT = "the folder of a recorded run, which holds run.json"

# Beyond this, a folder takes minutes to read and viewers struggle with what it exports to.
_LARGE_BYTES = 100_000_000
# More than clocks and roundings differ by, less than anything that a trace is looked at for.
_TOLERANCE_S = 1e-6
_MOST_SHOWN_RANKS = 8


class TraceSizeWarning(UserWarning):
    """A recorded run is so large that it will be hard to open."""


def rank_file(folder: Path, rank: int) -> Path:
    """Where a run folder keeps the trace of a rank."""
    return folder / f"rank-{rank:05d}.jsonl.gz"


class RankTraceWriter(WholeFile):
    """Writes the trace of one rank, as it comes; the file appears under its name when it is closed.

    Args:
        folder: of the run; made if it is not there.
        rank: whose trace.

    Raises:
        InputError: (also when writing and closing) the file cannot be written.
    """

    def __init__(self, folder: Path, *, rank: int) -> None:
        super().__init__(rank_file(Path(folder), rank), compressed=True)

    def write_spans(self, spans: Iterable[TraceSpan]) -> None:
        """Append spans, which start in order."""
        for span in spans:
            self.write(span.to_line())


def write_run_info(folder: Path, info: RunInfo) -> None:
    """Write run.json; the last step of recording, once every rank has closed its trace.

    Raises:
        InputError: the folder cannot be written to.

    Warns:
        TraceSizeWarning: the folder is too large to be handy.
    """
    folder = Path(folder)
    # A key a line: as easy to read as an indented file, without a line for every length of a plan.
    entries = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for key, value in info.to_document().items()
    )
    write_atomically(folder / _INFO_NAME, "{\n" + ",\n".join(entries) + "\n}\n")
    size_bytes = sum(path.stat().st_size for path in folder.glob(_RANK_FILES))
    if size_bytes > _LARGE_BYTES:
        warnings.warn(
            f"{folder}: the traces of {len(info.window)} minibatches take {format_bytes(size_bytes)}, more than "
            f"viewers open with ease ({format_bytes(_LARGE_BYTES)}); record fewer minibatches",
            TraceSizeWarning,
            stacklevel=2,
        )


def write_run(folder: Path, info: RunInfo, spans_of_ranks: Sequence[Iterable[TraceSpan]]) -> None:
    """Write a whole run folder: what was there of an earlier run, the traces, and run.json.

    Args:
        folder: made if it is not there.
        info: what was run.
        spans_of_ranks: of each recorded rank; they start in order.
    """
    assert len(spans_of_ranks) == info.recorded_ranks, f"spans of {len(spans_of_ranks)} ranks"
    clear_run(folder)
    for rank, spans in enumerate(spans_of_ranks):
        with RankTraceWriter(folder, rank=rank) as writer:
            writer.write_spans(spans)
    write_run_info(folder, info)


def clear_run(folder: Path) -> None:
    """Remove the run that a folder holds, or what is left of one, and nothing else: traces of two runs must not mix.

    To be called before the ranks of a new run begin to record.

    Raises:
        InputError: a file cannot be removed.
    """
    folder = Path(folder)
    # run.json first: without it, whatever is left is no run.
    for path in [folder / _INFO_NAME, *sorted(folder.glob(_RANK_FILES)), *sorted(folder.glob(_UNFINISHED_FILES))]:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"an earlier run cannot be removed ({error.strerror})", file=path) from error


@dataclass(frozen=True)
class RecordedRun:
    """A run as it was read.

    Attributes:
        folder: where from.
        info: what was run.
        spans_of_ranks: of each recorded rank, ordered by start.
    """

    folder: Path
    info: RunInfo
    spans_of_ranks: tuple[tuple[TraceSpan, ...], ...]


def read_run_info(folder: Path) -> RunInfo:
    """What was run, without the traces.

    Raises:
        InputError: not a run folder, one of another version of the format, or a run.json that is damaged.
    """
    folder = Path(folder)
    if not folder.exists():
        raise InputError(f"no such folder; give {_WHAT}", file=folder)
    if not folder.is_dir():
        raise InputError(f"is a file; give {_WHAT}", file=folder)
    file = folder / _INFO_NAME
    if not file.exists():
        started = any(folder.glob(_RANK_FILES)) or any(folder.glob(_UNFINISHED_FILES))
        reason = "the run did not end in good order" if started else "this is no recorded run"
        raise InputError(f"holds no run.json: {reason}; give {_WHAT}", file=folder)
    text = read_text(file, what="description of a recorded run")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON ({error.msg})", file=file, key=f"line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON that can be read", file=file) from None
    if not isinstance(document, dict):
        raise InputError("must be a JSON object", file=file)
    schema = document.get("schema")
    if schema != TRACE_SCHEMA:
        raise InputError(
            f"this version reads {TRACE_SCHEMA!r} alone; read the run with the version that wrote it, or record again",
            file=file,
            key="schema",
            value=schema,
        )
    return RunInfo.from_document(document, file=file)


def case_folder(folder: Path, position: int, label: str) -> Path:
    """Where the run of a scenario's case goes, in a folder for the runs of all of them."""
    return Path(folder) / f"{position}-{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-') or 'case'}"


def find_runs(folder: Path) -> tuple[Path, ...]:
    """The run folders that a folder stands for: itself, or those in it (`odcrt launch --record` makes such), by name.

    Raises:
        InputError: neither it nor a folder in it holds a run.
    """
    folder = Path(folder)
    if (folder / _INFO_NAME).exists() or not folder.is_dir():
        return (folder,)
    inside = tuple(sorted(path.parent for path in folder.glob(f"*/{_INFO_NAME}")))
    if not inside:
        read_run_info(folder)  # says what is missing
    return inside


def run_digest(folder: Path) -> str:
    """What tells a run from any other: a digest of its run.json, in hexadecimal."""
    return hashlib.sha256((Path(folder) / _INFO_NAME).read_bytes()).hexdigest()[:16]


def read_run(folder: Path) -> RecordedRun:
    """A recorded run with all its spans, checked.

    Raises:
        InputError: not a run folder, one of another version, traces missing, left over or cut off, or spans that
            cannot be: the text names the file and the line.
    """
    folder = Path(folder)
    info = read_run_info(folder)
    _check_files(folder, info)
    spans_of_ranks = tuple(_read_trace(rank_file(folder, rank), info) for rank in range(info.recorded_ranks))
    seen = {span.minibatch for spans in spans_of_ranks for span in spans}
    if not seen:
        raise InputError("no rank has a span: nothing ran in the recorded window", file=folder)
    if unseen := sorted(set(info.window) - seen):
        raise InputError(
            f"no rank has a span of minibatch {unseen[0]}, which was recorded: the run ended early",
            file=folder / _INFO_NAME,
            key="window.count",
            value=len(info.window),
        )
    return RecordedRun(folder, info, spans_of_ranks)


def _check_files(folder: Path, info: RunInfo) -> None:
    missing = [rank for rank in range(info.recorded_ranks) if not rank_file(folder, rank).is_file()]
    if missing:
        shown = ", ".join(map(str, missing[:_MOST_SHOWN_RANKS])) + (", ..." if len(missing) > _MOST_SHOWN_RANKS else "")
        raise InputError(
            f"no trace of rank {shown} ({rank_file(folder, missing[0]).name}), though {info.recorded_ranks} ranks were "
            "recorded: copy the traces of all hosts into one folder",
            file=folder,
        )
    expected = {rank_file(folder, rank) for rank in range(info.recorded_ranks)}
    if strangers := sorted(set(folder.glob(_RANK_FILES)) - expected):
        raise InputError(
            f"belongs to another run: this one recorded ranks 0 to {info.recorded_ranks - 1}; remove it",
            file=strangers[0],
        )


def _read_trace(file: Path, info: RunInfo) -> tuple[TraceSpan, ...]:
    """The spans of one rank, checked one by one and against those before them."""
    spans: list[TraceSpan] = []
    latest_s = computed_until_s = float("-inf")
    computed = ""
    for number, line in _lines(file):
        span = span_from_line(line, file=file, number=number)
        if span.minibatch not in info.window:
            allowed = f"{info.window.start} to {info.window.stop - 1}"
            raise InputError(
                f"is a minibatch that was not recorded; run.json says {allowed}",
                file=file,
                key=f"line {number}",
                value=span.minibatch,
            )
        if span.start_s < latest_s - _TOLERANCE_S:
            raise InputError(
                f"starts at {span.start_s:.9g} s, before the line above, at {latest_s:.9g} s: the rank's clock jumped, "
                "or lines were moved; lines are ordered by start_s",
                file=file,
                key=f"line {number}",
            )
        latest_s = max(latest_s, span.start_s)
        if span.name in COMPUTE_NAMES:
            if span.start_s < computed_until_s - _TOLERANCE_S:
                raise InputError(
                    f"{span.name} starts at {span.start_s:.9g} s, while the {computed} before it lasts until "
                    f"{computed_until_s:.9g} s: a rank computes one thing at a time, so its clock jumped or the trace "
                    "is not of one rank",
                    file=file,
                    key=f"line {number}",
                )
            computed, computed_until_s = span.name, span.end_s
        spans.append(span)
    return tuple(spans)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1."""
    number = 0
    try:
        if not file.stat().st_size:
            raise EOFError  # noqa: TRY301 - gzip takes a file of nothing for one of no lines
        with gzip.open(file, "rb") as stream:
            for line in stream:
                number += 1
                yield number, line
    except EOFError:
        raise InputError(
            "the trace is cut off here: the file ends in the middle of compressed data; copy it or record again",
            file=file,
            key=f"line {number + 1}",
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"is not whole gzip data ({error})", file=file, key=f"line {number + 1}") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=file) from None
