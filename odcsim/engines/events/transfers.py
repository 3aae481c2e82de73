"""Transfers as a rank's compute stream sees them: issued when the rank is ready, and over at some time.

Invariant: a rank issues a transfer on a stream only when its previous one there is over, so one object can stand for
all transfers of a stream, and describe the latest. Times in seconds of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from math import inf
from typing import Protocol

from simpy import Environment, Event

__all__ = ["NO_TRANSFER", "Collective", "CollectiveStream", "Issue", "LaggingStream", "OwnStream", "Transfer"]


class Transfer(Protocol):
    """A gather or a reduce that a rank has issued."""

    @property
    def start_s(self) -> float:
        """When it began to move; infinite until then."""
        ...

    @property
    def end_s(self) -> float:
        """When it was, or will be, over; infinite while that is unknown."""
        ...

    @property
    def ended(self) -> Event:
        """An event at its end, for whoever needs one: ask for it only while the end lies ahead, and wait at once."""
        ...


Issue = Callable[[int], Transfer]
"""Issues, now, a stream's transfer of the visit with this index."""


class _NoTransfer:
    start_s = end_s = -inf

    @property
    def ended(self) -> Event:
        raise AssertionError("nobody waits for what never began")


NO_TRANSFER: Transfer = _NoTransfer()
"""Stands for the latest transfer of a stream that has had none: over since ever."""


class OwnStream:
    """Transfers of one rank that start at once and that nobody disturbs."""

    __slots__ = ("_duration_s_V", "_env", "end_s", "start_s")

    def __init__(self, env: Environment, *, duration_s_V: Sequence[float]) -> None:
        self._env = env
        self._duration_s_V = duration_s_V
        self.start_s = self.end_s = inf

    def issue(self, visit: int) -> OwnStream:
        """See `Issue`."""
        self.start_s = now_s = self._env.now
        self.end_s = now_s + self._duration_s_V[visit]
        return self

    @property
    def ended(self) -> Event:
        """See `Transfer`."""
        return self._env.timeout(self.end_s - self._env.now)


class _CollectiveEnd(Event):
    def succeed_in(self, delay_s: float) -> None:
        # What simpy.Timeout does to itself, for an event that ranks may be waiting for already.
        self._ok = True
        self._value = None
        self.env.schedule(self, delay=delay_s)


class Collective:
    """A transfer of all ranks: it starts when the last of them is ready, and is over for all at once.

    Attributes:
        missing_ranks: that are not ready yet.
        start_s: when the last one was; infinite until then.
        end_s: when it is over; infinite until it starts.
        ended: an event at its end.
    """

    __slots__ = ("_duration_s", "_env", "_started", "end_s", "ended", "missing_ranks", "start_s")

    def __init__(self, env: Environment, *, ranks: int, duration_s: float) -> None:
        self._env = env
        self._duration_s = duration_s
        self.missing_ranks = ranks
        self.ended = _CollectiveEnd(env)
        self.start_s = self.end_s = inf
        self._started: Event | None = None

    @property
    def started(self) -> Event:
        """An event at its start, for whoever needs one: ask for it only before."""
        if self._started is None:
            self._started = self._env.event()
        return self._started

    def start(self) -> None:
        """All ranks are ready."""
        self.start_s = now_s = self._env.now
        if self._started is not None:
            self._started.succeed()
        self.end_s = now_s + self._duration_s
        self.ended.succeed_in(self._duration_s)


class CollectiveStream:
    """Transfers of one rank of which the k-th is its part in the k-th collective."""

    __slots__ = ("_upcoming",)

    def __init__(self, collectives: Iterable[Collective]) -> None:
        self._upcoming = iter(collectives)

    def issue(self, visit: int) -> Collective:  # noqa: ARG002 - as `Issue` has it
        """See `Issue`."""
        collective = next(self._upcoming)
        # Here, as it happens for every rank, and not in a method of the collective.
        collective.missing_ranks = missing_ranks = collective.missing_ranks - 1
        if not missing_ranks:
            collective.start()
        return collective


class LaggingStream:
    """Transfers of one rank of which the k-th is its part in the k-th collective, which it leaves early or late."""

    def __init__(self, env: Environment, collectives: Iterable[Collective], *, later_s_K: Iterable[float]) -> None:
        self._env = env
        self._stream = CollectiveStream(collectives)
        self._later_s = iter(later_s_K)

    def issue(self, visit: int) -> _LaggingTransfer:
        """See `Issue`."""
        return _LaggingTransfer(self._env, self._stream.issue(visit), later_s=next(self._later_s))


class _LaggingTransfer:
    def __init__(self, env: Environment, collective: Collective, *, later_s: float) -> None:
        self._env = env
        self._collective = collective
        self._later_s = later_s

    @property
    def start_s(self) -> float:
        return self._collective.start_s

    @property
    def end_s(self) -> float:
        return self._collective.end_s + self._later_s

    @property
    def ended(self) -> Event:
        return self._env.process(self._leave())

    def _leave(self) -> Generator[Event, None, None]:
        if self._collective.missing_ranks:
            yield self._collective.started
        yield self._env.timeout(max(self.end_s - self._env.now, 0.0))
