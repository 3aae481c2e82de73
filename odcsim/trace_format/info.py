"""What a run was: the content of run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.plan import Plan

__all__ = ["TRACE_SCHEMA", "ClockInfo", "PlannedLengths", "RunInfo", "planned_lengths"]

TRACE_SCHEMA = "odcsim.trace/1"

# For each rank, its microbatches in the order of running, each the lengths of its samples in tokens.
PlannedLengths = tuple[tuple[tuple[int, ...], ...], ...]


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


@dataclass(frozen=True)
class ClockInfo:
    """The clocks that a run was measured by. A trace's time = a rank's reading - its offset - the origin, in seconds.

    Attributes:
        name: of the clock: "perf_counter", "simulated".
        alignment: how ranks came to one clock: "shared" (all read the same one) or "barriers" (see
            `odcrt.tracing.clocks.align_clocks`).
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
        plans: of recorded minibatches; empty where they are not known.
        counters: for each rank, what it counted over the window (transfers, barriers); empty where nobody counted.
        recorded_ranks: only the first so many ranks have a trace; all, where not given.
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

    def __post_init__(self) -> None:
        if self.recorded_ranks == -1:
            object.__setattr__(self, "recorded_ranks", self.world_size)
        assert 1 <= self.recorded_ranks <= self.world_size, f"{self.recorded_ranks} of {self.world_size} ranks recorded"
        assert len(self.hosts) == self.world_size, f"hosts of {len(self.hosts)} of {self.world_size} ranks"
        assert len(self.clock.offsets_s) == self.world_size, "an offset for each rank"
        assert len(self.counters) in {0, self.world_size}, "counters of each rank, or none"
        assert self.window.step == 1, "a window has no gaps"
        assert self.window.start >= 0, "minibatches count from 0"
        assert set(self.plans) <= set(self.window), "a plan of a minibatch outside of the window"
        assert all(len(plan) == self.world_size for plan in self.plans.values()), "a plan of other ranks"

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
            "counters": [dict(counted) for counted in self.counters],
            "scenario": dict(self.scenario),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, file: object) -> RunInfo:
        """The run that the content of a run.json describes.

        Args:
            document: with a `schema` that has been checked; keys that this version does not know are passed over.
            file: for messages.

        Raises:
            InputError: a key is missing, or holds what is not allowed.
        """
        run = _Section(document, file=file)
        world_size = run.whole("world_size", least=1)
        clock, window = run.section("clock"), run.section("window")
        first = window.whole("first", least=0)
        recorded = range(first, first + window.whole("count", least=1))
        case = run.section("case")
        for key in ("sync", "policy"):
            case.text(key)
        counters = [entry.whole_numbers() for entry in run.sections("counters")]
        if counters:
            run.check(len(counters) == world_size, "counters", f"must hold an entry for each of the {world_size} ranks")
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
            plans=dict(_plan(entry, world_size=world_size, window=recorded) for entry in run.sections("plans")),
            counters=tuple(counters),
            recorded_ranks=run.whole("recorded_ranks", least=1, most=world_size),
        )


def _plan(entry: _Section, *, world_size: int, window: range) -> tuple[int, PlannedLengths]:
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


class _Section:
    """A JSON object whose values are checked as they are taken; whatever is wrong raises an `InputError`."""

    def __init__(self, content: Mapping[str, Any], *, file: object, path: str = "") -> None:
        self.content = dict(content)
        self._file = file
        self._path = path

    def _key(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _value(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
        if key not in self.content:
            raise InputError("required key is missing", file=self._file, key=self._key(key))
        return self.content[key]

    def check(self, holds: bool, key: str, allowed: str) -> None:  # noqa: FBT001 - reads like an assertion
        """Refuse the value of `key` unless a condition holds."""
        if not holds:
            raise InputError(allowed, file=self._file, key=self._key(key), value=self.content[key])

    def whole(self, key: str, *, least: int, most: int | None = None) -> int:
        value = self._value(key)
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        fits = type(value) is int and value >= least and (most is None or value <= most)
        self.check(fits, key, f"must be a whole number {bounds}")
        assert isinstance(value, int)
        return value

    def number(self, key: str) -> float:
        value = self._value(key)
        self.check(_is_number(value), key, "must be a finite number")
        return float(value)

    def text(self, key: str) -> str:
        value = self._value(key)
        self.check(isinstance(value, str), key, "must be a text")
        return str(value)

    def items(self, key: str, *, count: int | None = None) -> list[Any]:
        value = self._value(key)
        self.check(isinstance(value, list), key, "must be a list")
        if count is not None:
            self.check(len(value) == count, key, f"must hold an entry for each of the {count} ranks")
        return list(value)

    def numbers(self, key: str, *, count: int) -> tuple[float, ...]:
        values = self.items(key, count=count)
        self.check(all(map(_is_number, values)), key, "must hold finite numbers")
        return tuple(map(float, values))

    def texts(self, key: str, *, count: int) -> tuple[str, ...]:
        values = self.items(key, count=count)
        self.check(all(isinstance(value, str) for value in values), key, "must hold texts")
        return tuple(values)

    def whole_numbers(self) -> dict[str, int]:
        return {key: self.whole(key, least=0) for key in self.content}

    def all_texts(self) -> dict[str, str]:
        return {key: self.text(key) for key in self.content}

    def section(self, key: str) -> _Section:
        value = self._value(key)
        self.check(isinstance(value, dict), key, "must be a JSON object")
        return _Section(value, file=self._file, path=self._key(key))

    def sections(self, key: str) -> list[_Section]:
        values = self.items(key)
        self.check(all(isinstance(value, dict) for value in values), key, "must hold JSON objects")
        return [
            _Section(value, file=self._file, path=self._key(f"{key}.{position}"))
            for position, value in enumerate(values)
        ]


def _is_number(value: object) -> bool:
    return type(value) in {int, float} and isfinite(value)  # type: ignore[arg-type]
