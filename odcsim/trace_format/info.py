"""What a run was: the content of run.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from odcsim.arrays import IntArray
from odcsim.plan import Plan
from odcsim.trace_format.section import Section

__all__ = [
    "TRACE_SCHEMA",
    "ClockInfo",
    "PlannedLengths",
    "PulledPositions",
    "RankMemory",
    "RunInfo",
    "planned_lengths",
    "positions_pulled",
]

TRACE_SCHEMA = "odcsim.trace/1"

# For each rank, its microbatches in the order of running, each the lengths of its samples in tokens.
PlannedLengths = tuple[tuple[tuple[int, ...], ...], ...]

# For each rank, the positions in the queue of the microbatches that it pulled, in the order of running.
PulledPositions = tuple[tuple[int, ...], ...]


def planned_lengths(plan: Plan, lengths_S: IntArray) -> PlannedLengths:
    """A plan with lengths in place of sample indices.

    Args:
        plan: of one minibatch.
        lengths_S: the minibatch's lengths in tokens, as the ranks run them.
    """
    lengths: list[int] = lengths_S.tolist()
    return tuple(
        tuple(tuple(lengths[sample] for sample in microbatch) for microbatch in microbatches)
        for microbatches in plan.ranks
    )


def positions_pulled(rank_of_pulled: Sequence[int], *, ranks: int) -> PulledPositions:
    """Who pulled what, by rank.

    Args:
        rank_of_pulled: for each microbatch of a queue, the rank that pulled it.
        ranks: D.
    """
    positions_D: list[list[int]] = [[] for _ in range(ranks)]
    for position, rank in enumerate(rank_of_pulled):
        positions_D[rank].append(position)
    return tuple(map(tuple, positions_D))


@dataclass(frozen=True)
class ClockInfo:
    """The clocks that a run was measured by. A trace's time = a rank's reading - its offset - the origin, in seconds.

    Attributes:
        name: of the clock: "perf_counter", "simulated", "kineto".
        alignment: how ranks came to one clock: "shared" (all read the same one), "barriers" (see
            `odcrt.tracing.clocks.align_clocks`) or "collectives" (see `odcsim.foreign.clocks`).
        offsets_s: for each rank, its reading minus rank 0's at the same moment.
        uncertainty_s: no offset is off by more.
        origin_s: rank 0's reading at the trace's zero.
    """

    name: str
    alignment: str
    offsets_s: tuple[float, ...]
    uncertainty_s: float = 0.0
    origin_s: float = 0.0

    @classmethod
    def shared(cls, world_size: int, *, name: str = "perf_counter", origin_s: float = 0.0) -> ClockInfo:
        """The clock of ranks that all read the same one."""
        return cls(name, "shared", (0.0,) * world_size, origin_s=origin_s)

    def zero_s(self, rank: int) -> float:
        """What the rank's own clock reads at the trace's zero."""
        return self.origin_s + self.offsets_s[rank]


@dataclass(frozen=True)
class RankMemory:
    """Memory of a rank as its operating system counted it, in bytes.

    Attributes:
        process_bytes: resident before any case began: interpreter and libraries, without shared memory.
        shared_memory_bytes: this rank's share of what all ranks share, at the end of the case.
        training_bytes: for each recorded minibatch, the running peak, read after it: what was resident at most since
            the case began, beyond `process_bytes` and without shared memory.
    """

    process_bytes: int
    shared_memory_bytes: int
    training_bytes: tuple[int, ...]

    def to_document(self) -> dict[str, Any]:
        """An entry of `memory` in run.json."""
        return {
            "process": self.process_bytes,
            "shared_memory": self.shared_memory_bytes,
            "training": list(self.training_bytes),
        }


@dataclass(frozen=True)
class RunInfo:
    """What was run, where, and what of it was recorded.

    Attributes:
        engine: what ran it: "measured", or the simulator's engine.
        scenario: the scenario as it was understood; empty for a script of the user's.
        case: the case that was run: `sync`, `policy`, and for a measured run `transport`, `compute` and the like.
        world_size: ranks, D.
        hosts: of each rank.
        clock: how times of ranks compare.
        versions: of what ran it: python, torch, odcsim.
        window: the minibatches that were recorded.
        plans: of recorded minibatches, as they were run; empty where they are not known.
        counters: for each rank, what it counted over the window (transfers, barriers); empty where nobody counted.
        recorded_ranks: only the first so many ranks have a trace; all, where not given.
        processors: for each rank, how many CPUs the ranks of its host share; empty where they are not known.
        memory: of each rank; empty where it is not known.
        pulled: of recorded minibatches whose microbatches ranks pulled, each once; their `plans` are what came of it.
    """

    engine: str
    scenario: Mapping[str, Any]
    case: Mapping[str, Any]
    world_size: int
    hosts: tuple[str, ...]
    clock: ClockInfo
    versions: Mapping[str, str]
    window: range
    plans: Mapping[int, PlannedLengths] = field(default_factory=dict)
    counters: tuple[Mapping[str, int], ...] = ()
    recorded_ranks: int = -1
    processors: tuple[int, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    pulled: Mapping[int, PulledPositions] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recorded_ranks == -1:
            object.__setattr__(self, "recorded_ranks", self.world_size)
        assert 1 <= self.recorded_ranks <= self.world_size, f"{self.recorded_ranks} of {self.world_size} ranks recorded"
        assert len(self.hosts) == self.world_size, f"hosts of {len(self.hosts)} of {self.world_size} ranks"
        assert len(self.clock.offsets_s) == self.world_size, "an offset for each rank"
        assert len(self.counters) in {0, self.world_size}, "counters of each rank, or none"
        assert len(self.processors) in {0, self.world_size}, "processors of each rank, or none"
        assert all(processors >= 1 for processors in self.processors), "a rank without a processor"
        assert len(self.memory) in {0, self.world_size}, "memory of each rank, or none"
        assert all(len(memory.training_bytes) == len(self.window) for memory in self.memory), "memory of the window"
        assert self.window.step == 1, "a window has no gaps"
        assert self.window.start >= 0, "minibatches count from 0"
        assert set(self.plans) <= set(self.window), "a plan of a minibatch outside of the window"
        assert all(len(plan) == self.world_size for plan in self.plans.values()), "a plan of other ranks"
        assert set(self.pulled) <= set(self.plans), "pulled in a minibatch whose plan is not known"
        for minibatch, pulled in self.pulled.items():
            assert _is_of_plan(pulled, self.plans[minibatch]), f"other microbatches pulled than run in {minibatch}"

    def to_document(self) -> dict[str, Any]:
        """The content of run.json."""
        return {
            "schema": TRACE_SCHEMA,
            "engine": self.engine,
            "case": dict(self.case),
            "world_size": self.world_size,
            "recorded_ranks": self.recorded_ranks,
            "hosts": list(self.hosts),
            "clock": {
                "name": self.clock.name,
                "alignment": self.clock.alignment,
                "offsets_s": list(self.clock.offsets_s),
                "uncertainty_s": self.clock.uncertainty_s,
                "origin_s": self.clock.origin_s,
            },
            "versions": dict(self.versions),
            "window": {"first": self.window.start, "count": len(self.window)},
            "plans": [
                {
                    "minibatch": minibatch,
                    "ranks": [[list(lengths) for lengths in microbatches] for microbatches in self.plans[minibatch]],
                }
                for minibatch in sorted(self.plans)
            ],
            "pulled": [
                {"minibatch": minibatch, "ranks": [list(positions) for positions in self.pulled[minibatch]]}
                for minibatch in sorted(self.pulled)
            ],
            "counters": [dict(counted) for counted in self.counters],
            "processors": list(self.processors),
            "memory": [memory.to_document() for memory in self.memory],
            "scenario": dict(self.scenario),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, file: object) -> RunInfo:
        """The run that the content of a run.json describes.

        Args:
            document: with a `schema` that has been checked; keys that this version does not know are passed over.
                `processors`, `memory` and `pulled` may be absent: folders of earlier versions lack them.
            file: for messages.

        Raises:
            InputError: a key is missing, or holds what is not allowed.
        """
        run = Section(document, file=file)
        world_size = run.whole("world_size", least=1)
        clock, window = run.section("clock"), run.section("window")
        first = window.whole("first", least=0)
        recorded = range(first, first + window.whole("count", least=1))
        case = run.section("case")
        for key in ("sync", "policy"):
            case.text(key)
        counters = [entry.whole_numbers() for entry in run.sections("counters")]
        processors = run.whole_items("processors", least=1) if "processors" in run.content else ()
        memory = (
            [_memory(entry, window=recorded) for entry in run.sections("memory")] if "memory" in run.content else []
        )
        plans = dict(_plan(entry, world_size=world_size, window=recorded) for entry in run.sections("plans"))
        pulled = run.sections("pulled") if "pulled" in run.content else []
        for key, found in (("counters", counters), ("processors", processors), ("memory", memory)):
            if found:
                run.check(len(found) == world_size, key, f"must hold an entry for each of the {world_size} ranks")
        return cls(
            engine=run.text("engine"),
            scenario=run.section("scenario").content,
            case=case.content,
            world_size=world_size,
            hosts=run.texts("hosts", count=world_size),
            clock=ClockInfo(
                name=clock.text("name"),
                alignment=clock.text("alignment"),
                offsets_s=clock.numbers("offsets_s", count=world_size),
                uncertainty_s=clock.number("uncertainty_s"),
                origin_s=clock.number("origin_s"),
            ),
            versions=run.section("versions").all_texts(),
            window=recorded,
            plans=plans,
            counters=tuple(counters),
            recorded_ranks=run.whole("recorded_ranks", least=1, most=world_size),
            processors=processors,
            memory=tuple(memory),
            pulled=dict(_pulled(entry, plans=plans) for entry in pulled),
        )


def _memory(entry: Section, *, window: range) -> RankMemory:
    training_bytes = entry.whole_items("training", least=0)
    entry.check(
        len(training_bytes) == len(window),
        "training",
        f"must hold an entry for each of the {len(window)} recorded minibatches",
    )
    return RankMemory(
        process_bytes=entry.whole("process", least=0),
        shared_memory_bytes=entry.whole("shared_memory", least=0),
        training_bytes=training_bytes,
    )


def _plan(entry: Section, *, world_size: int, window: range) -> tuple[int, PlannedLengths]:
    minibatch = entry.whole("minibatch", least=window.start, most=window.stop - 1)
    ranks = entry.items("ranks", count=world_size)
    allowed = "must hold, for each rank, lists of lengths (whole numbers of at least 1)"
    entry.check(
        all(type(microbatches) is list for microbatches in ranks)
        and all(type(lengths) is list for microbatches in ranks for lengths in microbatches)
        and all(type(s) is int and s >= 1 for microbatches in ranks for lengths in microbatches for s in lengths),
        "ranks",
        allowed,
    )
    return minibatch, tuple(tuple(map(tuple, microbatches)) for microbatches in ranks)


def _pulled(entry: Section, *, plans: Mapping[int, PlannedLengths]) -> tuple[int, PulledPositions]:
    minibatch = entry.whole("minibatch", least=0)
    entry.check(minibatch in plans, "minibatch", "must be a minibatch of `plans`")
    ranks = entry.items("ranks", count=len(plans[minibatch]))
    whole = all(type(positions) is list and all(type(found) is int for found in positions) for positions in ranks)
    entry.check(
        whole and _is_of_plan(ranks, plans[minibatch]),
        "ranks",
        "must hold as many positions in the queue for a rank as it has microbatches in `plans`, each position once",
    )
    return minibatch, tuple(map(tuple, ranks))


def _is_of_plan(pulled: Sequence[Sequence[int]], plan: PlannedLengths) -> bool:
    """Whether each position of a queue was pulled once, in order, and by ranks that ran as many microbatches."""
    in_order = all(list(positions) == sorted(positions) for positions in pulled)
    everything = sorted(position for positions in pulled for position in positions)
    is_whole = everything == list(range(len(everything)))
    return in_order and is_whole and list(map(len, pulled)) == list(map(len, plan))
