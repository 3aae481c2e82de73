"""From the files of all ranks to what a run folder holds.

The k-th collective of every rank is one and the same. It begins when the last rank arrives: what a rank stands still
for it until then is a `wait`, what follows until its data are there is the transfer. A collective that is not FSDP2's
leaves a `wait` alone, which belongs to no unit and no microbatch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.foreign.activity import Collective
from odcsim.foreign.clocks import Alignment, align_files, find_jump
from odcsim.foreign.lengths import read_planned_lengths
from odcsim.foreign.program import ROOT_PATH
from odcsim.foreign.ranks import CommonMinibatches, RankRecord, common_minibatches, matched_collectives, read_ranks
from odcsim.foreign.spans import RankSpans
from odcsim.trace_format import ClockInfo, PlannedLengths, RunInfo, TraceSpan

__all__ = ["IngestedRun", "ingest"]

_NS = 1_000_000_000
_NUMBER_THEM = "record with a schedule, and call the profiler's step() after each optimizer's, so that it numbers them"


@dataclass(frozen=True)
class IngestedRun:
    """A run as its files tell it.

    Attributes:
        info: what run.json is to hold.
        spans_of_ranks: of each rank, by start.
        units: paths of the units' modules, by number; the root's is empty.
        microbatches_ND: of each minibatch, how many microbatches each rank ran.
        notes: what was left out or could not be told, for people.
    """

    info: RunInfo
    spans_of_ranks: tuple[tuple[TraceSpan, ...], ...]
    units: tuple[str, ...]
    microbatches_ND: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def ingest(
    files: Sequence[Path], *, lengths: Path | None = None, warn: Callable[[str], None] = lambda _text: None
) -> IngestedRun:
    """Read the profiler's files of an FSDP2 run; `odcsim.trace_format.write_run` writes what comes of it.

    Args:
        files: one of each rank, in any order.
        lengths: a file with the plan (see `odcsim.foreign.lengths`); without one, tokens are not known.
        warn: told of a file that takes long, before it is read.

    Raises:
        InputError: a file cannot be used, files do not belong together, or a clock jumped.
    """
    assert files, "at least one file"
    records = read_ranks(files, warn=warn)
    common = common_minibatches(records)
    transfers, others, all_matched = matched_collectives(records, common)
    alignment = _aligned(records, common, transfers)
    units = _units(records[0], common, transfers)
    microbatches_ND = tuple(
        tuple(
            record.program.minibatches[position].microbatches
            for record, position in zip(records, positions_D, strict=True)
        )
        for positions_D in zip(*common.positions_DN, strict=True)
    )
    plans = (
        {} if lengths is None else read_planned_lengths(lengths, window=common.window, microbatches_ND=microbatches_ND)
    )
    numbers = {path: number for number, path in enumerate(units)}
    ranks = [
        RankSpans(
            offset_ns=int(alignment.offsets_ns_D[rank]),
            units=numbers,
            minibatches=dict(zip(common.positions_DN[rank], common.window, strict=True)),
            lengths_NM={minibatch: plan[rank] for minibatch, plan in plans.items()},
            file=record.path,
        )
        for rank, record in enumerate(records)
    ]
    for parts_D in [*transfers, *others]:
        last_ns = max(spans.common_ns(part.arrived_ns) for spans, part in zip(ranks, parts_D, strict=True))
        for spans, part in zip(ranks, parts_D, strict=True):
            spans.add_collective(part, last_ns)
    for spans, record in zip(ranks, records, strict=True):
        spans.add_compute(record.activity.computed)
    zero_ns = min(spans.first_ns for spans in ranks)
    return IngestedRun(
        info=_info(records, common, alignment, transfers, plans, zero_ns=zero_ns),
        spans_of_ranks=tuple(spans.finished(zero_ns) for spans in ranks),
        units=units,
        microbatches_ND=microbatches_ND,
        notes=tuple(_notes(records, common, alignment, all_matched=all_matched)),
    )


def _aligned(
    records: Sequence[RankRecord], common: CommonMinibatches, transfers: Sequence[tuple[Collective, ...]]
) -> Alignment:
    arrived_ns_DK = np.array([[part.arrived_ns for part in parts] for parts in transfers], dtype=np.int64).T
    end_ns_DK = np.array([[part.end_ns for part in parts] for parts in transfers], dtype=np.int64).T
    alignment = align_files(arrived_ns_DK, end_ns_DK, [record.host for record in records])
    offsets_ns_D1 = alignment.offsets_ns_D[:, None]
    jump = find_jump(arrived_ns_DK - offsets_ns_D1, end_ns_DK - offsets_ns_D1)
    if jump is not None:
        part = transfers[jump.collective][0]
        minibatch = common.window[common.positions_DN[0].index(part.place.minibatch)]
        raise InputError(
            f"the clock of rank {jump.rank} jumped, or its file begins at another minibatch than the others: in "
            f"collective {jump.collective} ({part.name} of {part.path or 'the root'}, minibatch {minibatch}, "
            f"microbatch {part.place.microbatch}) the data of rank {jump.early} were there {jump.by_ns / _NS:.6f} s "
            f"before rank {jump.late} arrived; record again",
            file=records[jump.rank].path,
        )
    _check_beginnings(records, common, alignment)
    return alignment


def _check_beginnings(records: Sequence[RankRecord], common: CommonMinibatches, alignment: Alignment) -> None:
    """Refuse files of one machine whose clocks seem to be a minibatch apart: they begin at different minibatches.

    Raises:
        InputError: there are some.
    """
    offsets_ns = alignment.offsets_ns_D.tolist()
    for rank in _far_ranks(records, common, alignment):
        record = records[rank]
        first = next(other for other in records if other.host == record.host)
        if record.host and abs(offsets_ns[rank] - offsets_ns[first.rank]) > _shortest_ns(records[0], common) // 2:
            raise InputError(
                f"its clock seems to be {(offsets_ns[rank] - offsets_ns[first.rank]) / _NS:.6f} s off that of "
                f"{first.path}, of the same machine: the two do not begin at the same minibatch; {_NUMBER_THEM}",
                file=record.path,
            )


def _far_ranks(records: Sequence[RankRecord], common: CommonMinibatches, alignment: Alignment) -> list[int]:
    """Ranks whose clock is so far off that another minibatch would fit as well, where nothing says which it is."""
    if common.is_certain:
        return []
    half_ns = _shortest_ns(records[0], common) // 2
    return [rank for rank, offset_ns in enumerate(alignment.offsets_ns_D.tolist()) if abs(offset_ns) > half_ns]


def _shortest_ns(record: RankRecord, common: CommonMinibatches) -> int:
    minibatches = (record.program.minibatches[position] for position in common.positions_DN[0])
    return min(minibatch.end_ns - minibatch.start_ns for minibatch in minibatches)


def _units(
    record: RankRecord, common: CommonMinibatches, transfers: Sequence[tuple[Collective, ...]]
) -> tuple[str, ...]:
    """Paths of units, in the order in which forwards enter them; units that none enters come last."""
    entered = [
        mark.path
        for position in common.positions_DN[0]
        for one in record.program.minibatches[position].passes
        for mark in one.marks
        if mark.what == "pre_forward"
    ]
    return tuple(dict.fromkeys([ROOT_PATH, *entered, *(parts[0].path for parts in transfers)]))


def _info(
    records: Sequence[RankRecord],
    common: CommonMinibatches,
    alignment: Alignment,
    transfers: Sequence[tuple[Collective, ...]],
    plans: dict[int, PlannedLengths],
    *,
    zero_ns: int,
) -> RunInfo:
    activity = records[0].activity
    # FSDP2's collectives are meetings of all ranks.
    counted = {"transfers": len(transfers), "barriers": len(transfers)}
    return RunInfo(
        engine="measured",
        scenario={},
        case={
            "sync": "fsdp",
            "policy": "unknown",
            "transport": activity.transport,
            "compute": "real",
            "overlap": "prefetch" if activity.overlaps else "none",
        },
        world_size=len(records),
        hosts=tuple(record.host or "unknown" for record in records),
        clock=ClockInfo(
            name="kineto",
            alignment="shared" if alignment.is_shared else "collectives",
            offsets_s=tuple(offset_ns / _NS for offset_ns in alignment.offsets_ns_D.tolist()),
            uncertainty_s=alignment.uncertainty_ns / _NS,
            origin_s=zero_ns / _NS,
        ),
        versions=records[0].versions,
        window=common.window,
        plans=plans,
        counters=(counted,) * len(records),
    )


def _notes(
    records: Sequence[RankRecord], common: CommonMinibatches, alignment: Alignment, *, all_matched: bool
) -> Iterable[str]:
    told = Counter(note for record in records for note in record.program.notes)
    of_files = {
        note: "" if count == len(records) else f" ({count} of {len(records)} files)" for note, count in told.items()
    }
    yield from (f"{note}{of_files[note]}" for note in told)
    evaluations = sum(
        one.microbatch < 0
        for position in common.positions_DN[0]
        for one in records[0].program.minibatches[position].passes
    )
    if evaluations:
        yield f"{evaluations} forwards of rank 0 have no backward: their compute is left out"
    if any(len(record.program.minibatches) > len(common.window) for record in records):
        yield "minibatches that not all files hold are left out"
    if far := _far_ranks(records, common, alignment):
        yield (
            f"the clock of rank {far[0]} is {alignment.offsets_ns_D[far[0]] / _NS:.6f} s off rank 0's, unless its file "
            f"begins at another minibatch; {_NUMBER_THEM}"
        )
    if not all_matched:
        yield "collectives beside FSDP2's differ between ranks: what is waited for in them is not told"
