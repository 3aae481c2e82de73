"""The files of all ranks, put beside each other: one a rank, the same minibatches, the same collectives in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from odcsim.errors import InputError
from odcsim.foreign.activity import Collective, RankActivity
from odcsim.foreign.kineto import read_rank_file
from odcsim.foreign.on_cpu import activity_on_cpu
from odcsim.foreign.on_gpu import activity_on_gpu
from odcsim.foreign.program import Program, read_program
from odcsim.foreign.rank_file import RankFile

__all__ = ["CommonMinibatches", "RankRecord", "common_minibatches", "matched_collectives", "read_ranks"]

_MOST_SHOWN_RANKS = 8
# Nobody's part in these is over before everybody has arrived; a broadcast's may be.
_SYNCHRONIZING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")


@dataclass(frozen=True)
class RankRecord:
    """What one file tells of its rank.

    Attributes:
        path: the file.
        rank: whose.
        world_size: ranks of the run.
        host: name of the machine; empty where it is not known.
        versions: of software.
        program: its minibatches.
        activity: what was done in them.
    """

    path: Path
    rank: int
    world_size: int
    host: str
    versions: dict[str, str]
    program: Program
    activity: RankActivity


def read_ranks(files: Sequence[Path], *, warn: Callable[[str], None]) -> list[RankRecord]:
    """Read one file after the other.

    Returns:
        In the order of ranks.

    Raises:
        InputError: a file cannot be used, two are of one rank, one is missing, or they are of different runs.
    """
    records: dict[int, RankRecord] = {}
    for path in files:
        record = _record(read_rank_file(path, warn=warn))
        first = next(iter(records.values()), record)
        if record.world_size != first.world_size:
            raise InputError(
                f"is of a run of other size than {first.path}, which has {first.world_size} ranks; give the files of "
                "one run",
                file=path,
                key="distributedInfo.world_size",
                value=record.world_size,
            )
        if record.rank in records:
            raise InputError(
                f"is of the same rank as {records[record.rank].path}; give one file a rank",
                file=path,
                key="distributedInfo.rank",
                value=record.rank,
            )
        records[record.rank] = record
    world_size = next(iter(records.values())).world_size
    if missing := [rank for rank in range(world_size) if rank not in records]:
        shown = ", ".join(map(str, missing[:_MOST_SHOWN_RANKS])) + (", ..." if len(missing) > _MOST_SHOWN_RANKS else "")
        raise InputError(
            f"no file of rank {shown}: waits for others are found by comparing all {world_size} ranks; give one file "
            "of each",
            key="FILE...",
        )
    return [records[rank] for rank in range(world_size)]


def _record(trace: RankFile) -> RankRecord:
    program = read_program(trace)
    if any(kernel.nccl_name for kernel in trace.kernels):
        activity = activity_on_gpu(trace, program)
    elif "nccl" in trace.backend and not trace.workers and trace.operations:
        raise InputError(
            "holds no kernel of NCCL's, though its backend is nccl: record with ProfilerActivity.CUDA too",
            file=trace.path,
        )
    else:
        activity = activity_on_cpu(trace, program)
    if not any(one.name != "other" for one in activity.collectives):
        raise InputError(
            "holds no collective of FSDP2's (within FSDP::all_gather and FSDP::post_backward_reduce): a run of one "
            "rank, or with communication of its own, says nothing of waiting for others",
            file=trace.path,
        )
    return RankRecord(trace.path, trace.rank, trace.world_size, trace.host, trace.versions, program, activity)


@dataclass(frozen=True)
class CommonMinibatches:
    """The minibatches that all files hold whole.

    Attributes:
        window: their numbers in the run, as far as they are known: N of them.
        positions_DN: of each rank, their positions in its program.
        is_certain: whether the files say which are the same; otherwise all are taken to begin with the same one.
    """

    window: range
    positions_DN: tuple[tuple[int, ...], ...]
    is_certain: bool


def common_minibatches(records: Sequence[RankRecord]) -> CommonMinibatches:
    """Find which minibatches of the files are the same: by the profiler's steps, and else by their order.

    Raises:
        InputError: there is none, or no telling.
    """
    numbers_D = [[minibatch.number for minibatch in record.program.minibatches] for record in records]
    if all(number >= 0 for numbers in numbers_D for number in numbers) and all(
        len(set(numbers)) == len(numbers) for numbers in numbers_D
    ):
        common = sorted(set(numbers_D[0]).intersection(*numbers_D[1:]))
        if not common:
            raise InputError(
                f"ends in the profiler's steps {numbers_D[0]}, and no minibatch of all other files does: they were "
                "recorded at different times",
                file=records[0].path,
            )
        positions_DN = tuple(tuple(numbers.index(number) for number in common) for numbers in numbers_D)
        in_a_row = common[-1] - common[0] + 1 == len(common)
        window = range(common[0], common[-1] + 1) if in_a_row else range(len(common))
        return CommonMinibatches(window, positions_DN, is_certain=True)
    for record, numbers in zip(records, numbers_D, strict=True):
        if len(numbers) != len(numbers_D[0]):
            raise InputError(
                f"holds {len(numbers)} whole minibatches, but {records[0].path} holds {len(numbers_D[0])}, and nothing "
                "says which are the same; call the profiler's step() after each optimizer's, with a schedule",
                file=record.path,
            )
    count = len(numbers_D[0])
    return CommonMinibatches(range(count), (tuple(range(count)),) * len(records), is_certain=False)


def matched_collectives(
    records: Sequence[RankRecord], common: CommonMinibatches
) -> tuple[list[tuple[Collective, ...]], list[tuple[Collective, ...]], bool]:
    """The collectives of all ranks, each with every rank's part in it.

    Returns:
        FSDP2's and others', each in the order of the program; and whether all others could be matched.

    Raises:
        InputError: FSDP2 had different collectives on two ranks.
    """
    transfers: list[tuple[Collective, ...]] = []
    others: list[tuple[Collective, ...]] = []
    all_matched = True
    for number, positions_D in zip(common.window, zip(*common.positions_DN, strict=True), strict=True):
        parts_D = [
            [one for one in record.activity.collectives if one.place.minibatch == position]
            for record, position in zip(records, positions_D, strict=True)
        ]
        mine_D = [[one for one in parts if one.name != "other"] for parts in parts_D]
        for record, mine in zip(records, mine_D, strict=True):
            _check_alike(records[0], mine_D[0], record, mine, number=number)
        transfers += zip(*mine_D, strict=True)
        theirs_D = [[one for one in parts if one.name == "other" and _synchronizes(one)] for parts in parts_D]
        names_D = [[one.path for one in theirs] for theirs in theirs_D]
        if all(names == names_D[0] for names in names_D):
            others += zip(*theirs_D, strict=True)
        else:
            all_matched = False
    return transfers, others, all_matched


def _synchronizes(other: Collective) -> bool:
    return any(name in other.path.lower().replace("_", "") for name in _SYNCHRONIZING)


def _check_alike(
    first: RankRecord, expected: Sequence[Collective], record: RankRecord, found: Sequence[Collective], *, number: int
) -> None:
    for position, (one, two) in enumerate(zip(expected, found, strict=False)):
        if (one.name, one.path, one.place.microbatch) != (two.name, two.path, two.place.microbatch):
            raise InputError(
                f"minibatch {number}: collective {position} is a {_shown(two)}, but in {first.path} a {_shown(one)}: "
                "the files are of different runs, or events are missing",
                file=record.path,
            )
    if len(expected) != len(found):
        raise InputError(
            f"minibatch {number}: has {len(found)} collectives, but {first.path} has {len(expected)}: the files are of "
            "different runs, or events are missing",
            file=record.path,
        )


def _shown(one: Collective) -> str:
    return f"{one.name} of {one.path or 'the root'} in microbatch {one.place.microbatch}"
