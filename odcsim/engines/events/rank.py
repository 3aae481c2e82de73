"""A rank: its compute stream as a SimPy process, which issues the rank's transfers and stands still for them.

From its first microbatch to its end, a rank computes or stands still. While it stands still for a transfer, it waits
for other ranks until the transfer starts, and for the transfer from then on. Times in seconds of the environment.
"""

from __future__ import annotations

from collections.abc import Generator

from simpy import Environment, Event

from odcsim.arrays import FloatArray
from odcsim.engines.events.program import Program
from odcsim.engines.events.recording import RankRecorder
from odcsim.engines.events.transfers import NO_TRANSFER, Issue, Transfer

__all__ = ["Rank"]


class Rank:
    """One rank in one minibatch.

    Args:
        env: whose clock stands at the start of the first microbatch.
        gather: issues its gathers.
        reduce: issues its reduces.
        recorder: keeps its spans, if anybody does.

    Attributes:
        compute_s: time computing.
        waited_s: time standing still for other ranks.
        end_s: when its last compute and its last reduce were over; a rank without microbatches ends as it starts.
    """

    def __init__(self, env: Environment, *, gather: Issue, reduce: Issue, recorder: RankRecorder | None = None) -> None:
        self._env = env
        self._issue = (gather, reduce)  # as `GATHERS` and `REDUCES` count
        self._recorder = recorder
        self.compute_s = 0.0
        self.waited_s = 0.0
        self.end_s = env.now

    def run(
        self, factors_MF: FloatArray, coefficients_FV: FloatArray, *, program: Program
    ) -> Generator[Event, None, None]:
        """The process: M microbatches, each through the V visits of `program`."""
        # The engine spends its time in the inner loop: hence local names, and few looks at the clock.
        env, timeout, issue, recorder = self._env, self._env.timeout, self._issue, self._recorder
        latest: list[Transfer] = [NO_TRANSFER, NO_TRANSFER]
        last = len(factors_MF) - 1
        waited_s = 0.0
        now_s = env.now
        for microbatch, factors_F in enumerate(factors_MF):
            time_s_V: list[float] = (factors_F @ coefficients_FV).tolist()
            self.compute_s += sum(time_s_V)
            if recorder is not None:
                recorder.microbatch = microbatch
            steps = program.steps(first=microbatch == 0, last=microbatch == last)
            for stream, issues_before, issues_after, computes in steps:
                if issues_before is not None:
                    latest[stream] = issue[stream](issues_before)
                transfer = latest[stream]
                if transfer.end_s > now_s:
                    yield transfer.ended
                    if transfer.start_s > now_s:
                        waited_s += transfer.start_s - now_s
                        if recorder is not None:
                            recorder.waited(now_s, transfer.start_s)
                    now_s = transfer.end_s
                if issues_after is not None:
                    latest[stream] = issue[stream](issues_after)
                if computes is not None and (time_s := time_s_V[computes]):
                    yield timeout(time_s)
                    if recorder is not None:
                        recorder.computed(computes, now_s, env.now)
                    now_s = env.now
        self.waited_s = waited_s
        self.end_s = now_s
