"""Links that transfers of several ranks share: exact processor sharing. Times in seconds of the environment.

While n transfers are under way, each progresses at the rate min(1, full-rate transfers / n). All progress alike, so one
number measures them all: the *service*, the progress that a transfer would have made had it been there from the start.
A transfer that needs t seconds at full rate and begins at service v is over at service v + t, whatever comes and goes
meanwhile. Arrivals and departures only change how fast service grows, and cost O(log n). (The virtual time of fair
queueing: Parekh and Gallager, IEEE/ACM Transactions on Networking 1(3), 1993.)
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from simpy import Environment, Event

__all__ = ["LinkStream", "SharedLink"]


class SharedLink:
    """One direction of one link, which at most `ranks` transfers take at once."""

    def __init__(self, env: Environment, *, ranks: int, full_rate_transfers: float) -> None:
        assert full_rate_transfers > 0, f"a link must carry something, not {full_rate_transfers} transfers"
        self._env = env
        # Seconds that a second of service takes, by the number of transfers under way.
        self._slowdowns = [max(1.0, under_way / full_rate_transfers) for under_way in range(ranks + 1)]
        self._slowdown = 1.0
        # A heap by the service at which a transfer is over; equal ones are over in the order of arrival.
        self._streams: list[tuple[float, int, LinkStream]] = []
        self._arrivals = 0
        self._service_s = 0.0  # as of _updated_s
        self._updated_s = 0.0
        self._due_s = inf  # when the first of the heap is over, if nothing arrives before
        self._timer: Event | None = None
        self._timer_s = inf

    def enter(self, stream: LinkStream, *, duration_s: float) -> None:
        """Start a transfer that takes `duration_s` > 0 at full rate; the link calls `stream.finish` at its end."""
        now_s = self._env.now
        streams = self._streams
        if streams:
            self._service_s += (now_s - self._updated_s) / self._slowdown
        else:
            self._service_s = 0.0  # keeps rounding errors from growing with the length of the run
        self._updated_s = now_s
        self._arrivals += 1
        heappush(streams, (self._service_s + duration_s, self._arrivals, stream))
        self._slowdown = self._slowdowns[len(streams)]
        delay_s = (streams[0][0] - self._service_s) * self._slowdown
        self._due_s = now_s + delay_s
        # An arrival mostly delays the next end. The timer is then left alone: it fires early, sees that, and goes on.
        if self._due_s < self._timer_s:
            self._set_timer(now_s, max(delay_s, 0.0))  # rounding may bring it below 0

    def _set_timer(self, now_s: float, delay_s: float) -> None:
        self._timer = timer = self._env.timeout(delay_s)
        timer.callbacks.append(self._on_timer)
        self._timer_s = self._due_s = now_s + delay_s

    def _on_timer(self, timer: Event) -> None:
        if timer is not self._timer:
            return  # an earlier end came up after this timer was set, and another timer with it
        now_s = self._timer_s
        if now_s < self._due_s:
            self._set_timer(now_s, self._due_s - now_s)
            return
        streams = self._streams
        over_s = streams[0][0]
        while streams and streams[0][0] <= over_s:
            heappop(streams)[2].finish(now_s)
        self._service_s = over_s  # by definition; adding up would round
        self._updated_s = now_s
        if streams:
            self._slowdown = self._slowdowns[len(streams)]
            self._set_timer(now_s, (streams[0][0] - over_s) * self._slowdown)
        else:
            self._due_s = self._timer_s = inf
            self._timer = None


class LinkStream:
    """Transfers of one rank, in one direction, over a shared link."""

    __slots__ = ("_awaited", "_duration_s_V", "_env", "_link", "end_s", "start_s")

    def __init__(self, env: Environment, *, link: SharedLink, duration_s_V: Sequence[float]) -> None:
        self._env = env
        self._link = link
        self._duration_s_V = duration_s_V
        self._awaited: Event | None = None
        self.start_s = self.end_s = inf

    def issue(self, visit: int) -> LinkStream:
        """See `transfers.Issue`."""
        self.start_s = now_s = self._env.now
        duration_s = self._duration_s_V[visit]
        if duration_s:
            self.end_s = inf
            self._link.enter(self, duration_s=duration_s)
        else:
            self.end_s = now_s
        return self

    @property
    def ended(self) -> Event:
        """See `transfers.Transfer`."""
        self._awaited = event = self._env.event()
        return event

    def finish(self, now_s: float) -> None:
        """The transfer under way is over."""
        self.end_s = now_s
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None
