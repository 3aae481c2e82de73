"""Transports for tests: one that dawdles at every step, one that does something terrible at a chosen one."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

import torch

from odcrt.transports.control import Control
from odcrt.transports.phases import Phase
from odcrt.transports.shm import ShmTransport

__all__ = ["Dawdling", "Trap", "Trapped"]


class Dawdling(ShmTransport):
    """Sleeps now and then, before and after every transfer and barrier, so that ranks meet in ever new orders."""

    def __init__(self, *, seed, longest_s, often=0.3, deadline_s=20.0):
        super().__init__(deadline_s=deadline_s)
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._longest_s = longest_s
        self._often = often

    def _dawdle(self):
        if self._random.random() < self._often:
            time.sleep(self._random.random() * self._longest_s)

    def read(self, out, region, *, owner, offset=0):
        self._dawdle()
        super().read(out, region, owner=owner, offset=offset)
        self._dawdle()

    def accumulate(self, values, region, *, owner, offset=0, scale=1.0, lock=0):
        self._dawdle()
        super().accumulate(values, region, owner=owner, offset=offset, scale=scale, lock=lock)
        self._dawdle()

    def barrier(self, phase):
        self._dawdle()
        waited_s = super().barrier(phase)
        self._dawdle()
        return waited_s


@dataclass(frozen=True)
class Trap:
    """What happens to a rank, and when.

    Attributes:
        rank: to which.
        deed: `kill`, `stop`, `raise`, `out of memory` or `exit`.
        phase: as soon as it has told this phase; None: while it holds a lock of an accumulator.
        minibatch: in this one, from 0.
        microbatch: in this one of its own; -1: whichever.
    """

    rank: int
    deed: str
    phase: Phase | None
    minibatch: int = 1
    microbatch: int = -1

    def spring(self):
        if self.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.deed == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.deed == "raise":
            raise ValueError("something in the model")
        if self.deed == "out of memory":
            torch.empty(1 << 60, dtype=torch.uint8)
        if self.deed == "exit":
            raise SystemExit(3)


class Trapped(ShmTransport):
    """Springs a trap where it is set; on other ranks it is a plain `ShmTransport`."""

    def __init__(self, trap, *, deadline_s):
        super().__init__(deadline_s=deadline_s)
        self._trap = trap if trap.rank == self.rank else None
        self._minibatch = self._microbatch = -1

    def note(self, phase, *, unit=-1, minibatch=-1, microbatch=-1, tokens=-1):
        super().note(phase, unit=unit, minibatch=minibatch, microbatch=microbatch, tokens=tokens)
        self._minibatch, self._microbatch = minibatch, microbatch
        if self._trap is not None and phase is self._trap.phase and self._is_time():
            self._spring()

    def accumulate(self, values, region, *, owner, offset=0, scale=1.0, lock=0):
        if self._trap is not None and self._trap.phase is None and self._is_time():
            locked_as_ever = Control.note_lock

            def note_lock(control, number):
                locked_as_ever(control, number)
                if number:
                    self._spring()

            Control.note_lock = note_lock
        super().accumulate(values, region, owner=owner, offset=offset, scale=scale, lock=lock)

    def _is_time(self):
        return self._minibatch == self._trap.minibatch and self._trap.microbatch in {-1, self._microbatch}

    def _spring(self):
        trap, self._trap = self._trap, None
        trap.spring()
