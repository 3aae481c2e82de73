"""The engines: `recurrence` (vectorized, for sweeps and scale) and `events` (SimPy, also models shared links).

Both take a `Work` and a `Schedule`, and mean the same by them.
"""

from __future__ import annotations

from typing import Protocol

from odcsim.engines.timeline import Outcome
from odcsim.schedule import Schedule, Work
from odcsim.suggest import unknown_name

__all__ = ["Engine", "engine_names", "find_engine"]

_NAMES = ("recurrence", "events")


class Engine(Protocol):
    """What every engine is."""

    def __call__(self, work: Work, schedule: Schedule, *, recorded_ranks: int = 0) -> Outcome:
        """Simulate N minibatches; spans of the first one are returned for the first `recorded_ranks` ranks."""
        ...


def engine_names() -> tuple[str, ...]:
    """Known engines."""
    return _NAMES


def find_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        UnknownNameError: there is none.
    """
    # Imported when asked for: SimPy is not needed by the other engine.
    if name == "recurrence":
        from odcsim.engines.recurrence import simulate

        return simulate
    if name == "events":
        from odcsim.engines.events import simulate as simulate_events

        return simulate_events
    raise unknown_name("engine", name, _NAMES)
