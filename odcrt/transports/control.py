"""What ranks tell each other beside data: arrivals at barriers, what they are doing, signs of life, failures.

A table in shared memory, one row a rank, which only that rank writes. Words are 64 bits, so a reader sees an old value
or a new one. A lock is taken and let go of around arrivals: the system call orders the writes before it.

A rank that lives holds the lock on its byte of the table's file. The kernel takes it back whatever ends the process, so
a rank is known to be lost as soon as somebody looks.

One more row belongs to all ranks: the queue that they pull from, written by whoever holds its lock. It says which
minibatch it is of, so that nobody takes a number that is left from an earlier one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch

from odcrt.errors import DeadlineExceeded, PeerFailed, RankLost
from odcrt.transports.locks import hold_for_life, is_held_by_other, locked
from odcrt.transports.phases import LastSeen, Phase
from odcrt.transports.segments import Segment
from odcsim.errors import RunError

__all__ = ["Control"]

_PHASE, _UNIT, _MINIBATCH, _MICROBATCH, _TOKENS, _ARRIVALS, _FAILED, _TEXT_BYTES, _LOCK = range(9)
_QUEUE_SEQUENCE, _QUEUE_COUNT, _QUEUE_NEXT, _QUEUE_OPENER = range(4)
_WORDS = 16  # of a row: two cache lines, so that ranks do not write to each other's
_TEXT = 1024  # bytes of a failure's text

_EAGER_S = 0.0002
_LONGEST_PAUSE_S = 0.001
_LIFE_CHECK_S = 0.2
# In `note_lock`, above the numbers of all accumulators.
_QUEUE_LOCK = 1 << 62


class Control:
    """The table, as one rank sees it."""

    def __init__(self, segment: Segment, *, rank: int, world_size: int, deadline_s: float) -> None:
        self._segment = segment
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s
        first = (world_size + 1) * _WORDS * 8
        words = segment.memory[:first].view(torch.int64)
        # NumPy reads and writes single words several times faster than torch does.
        rows = words.numpy().reshape(world_size + 1, _WORDS)
        self._rows, self._queue = rows[:world_size], rows[world_size]
        self._texts = segment.memory[first : first + world_size * _TEXT].view(world_size, _TEXT)
        self._row = self._rows[rank]
        self._arrivals = self._rows[:, _ARRIVALS]
        self._failures = self._rows[:, _FAILED]
        self.note(Phase.STARTING, -1, -1, -1, -1)
        hold_for_life(segment.file, self._life_byte(rank))

    @staticmethod
    def size_bytes(world_size: int) -> int:
        """Bytes of the table."""
        return (world_size + 1) * _WORDS * 8 + world_size * _TEXT

    def _life_byte(self, rank: int) -> int:
        return rank

    def _fence(self) -> None:
        """Order what this process wrote before it: a lock of its own, never contended."""
        with locked(self._segment.file, self.world_size + self.rank, deadline_s=1.0, late=lambda _: None):
            pass

    def note(self, phase: Phase, unit: int, minibatch: int, microbatch: int, tokens: int) -> None:
        """Write what this rank is about to do."""
        self._row[:5] = (phase, unit, minibatch, microbatch, tokens)

    def last_seen(self, rank: int) -> LastSeen:
        """What a rank was about to do when it last told."""
        phase, *rest = (int(word) for word in self._rows[rank, :5])
        return LastSeen(Phase(phase), *rest)

    def note_lock(self, lock: int) -> None:
        """Write which lock this rank holds, by a number above 0; 0: none any more."""
        self._row[_LOCK] = lock

    def late_for_lock(
        self, lock: int, *, wanted: str = "to add to gradients that another rank keeps locked"
    ) -> DeadlineExceeded:
        """The error of a rank that waited in vain for a lock: it names who holds it."""
        holders = [rank for rank in range(self.world_size) if rank != self.rank and self._rows[rank, _LOCK] == lock]
        told = "; ".join(f"rank {rank}: {self.last_seen(rank)}" for rank in holders) or "nobody who has told"
        return DeadlineExceeded(f"rank {self.rank} waited {self.deadline_s:g} s {wanted}. Held by {told}")

    def fail(self, text: str) -> None:
        """Tell the others that this rank ends with an error."""
        encoded = text.encode("utf-8", errors="replace")[:_TEXT]
        if encoded:
            self._texts[self.rank, : len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        self._row[_TEXT_BYTES] = len(encoded)
        self._fence()
        self._row[_FAILED] = 1

    def check_failures(self) -> None:
        """Raise if another rank has reported an error."""
        if self._failures.any():
            for rank in range(self.world_size):
                if rank != self.rank and self._failures[rank]:
                    size = int(self._rows[rank, _TEXT_BYTES])
                    text = bytes(self._texts[rank, :size].tolist()).decode("utf-8", errors="replace")
                    raise PeerFailed(f"rank {rank} failed ({self.last_seen(rank)}): {text}")

    def pull(self, sequence: int, count: int) -> int:
        """The next position of a queue of `count` that all ranks share, from 0; `count` once it is used up.

        Args:
            sequence: number of the minibatch, from 1; all ranks have met since any of an earlier one has pulled.
            count: the same on all ranks.
        """
        # Its own byte, after the signs of life and the fences.
        byte = 2 * self.world_size

        def late(waited_s: float) -> None:
            self.check_failures()
            if waited_s > _LIFE_CHECK_S:
                self.check_lives(range(self.world_size))
            if waited_s > self.deadline_s:
                raise self.late_for_lock(_QUEUE_LOCK, wanted="to pull from the queue, which another rank keeps locked")

        with locked(self._segment.file, byte, deadline_s=math.inf, late=late):
            self.note_lock(_QUEUE_LOCK)
            try:
                return self._take(sequence, count)
            finally:
                self.note_lock(0)

    def pulled(self, sequence: int) -> int:
        """How many positions of a queue have been pulled; 0 if nobody has begun it."""
        return int(self._queue[_QUEUE_NEXT]) if self._queue[_QUEUE_SEQUENCE] == sequence else 0

    def _take(self, sequence: int, count: int) -> int:
        """See `pull`; with the queue's lock held."""
        queue = self._queue
        assert queue[_QUEUE_SEQUENCE] <= sequence, "ranks meet between minibatches, so none can be one ahead"
        if queue[_QUEUE_SEQUENCE] < sequence:
            queue[_QUEUE_NEXT], queue[_QUEUE_COUNT], queue[_QUEUE_OPENER] = 0, count, self.rank
            # Last: a rank that dies before leaves the queue to be opened by the next.
            queue[_QUEUE_SEQUENCE] = sequence
        if queue[_QUEUE_COUNT] != count:
            raise RunError(
                f"rank {self.rank} pulls from a queue of {count}, and rank {queue[_QUEUE_OPENER]} from one of "
                f"{queue[_QUEUE_COUNT]}: all ranks must have the same queue"
            )
        position = int(queue[_QUEUE_NEXT])
        queue[_QUEUE_NEXT] = min(position + 1, count)
        return position

    def barrier(self, name: str) -> float:
        """Wait until all ranks have arrived as often as this one; seconds waited."""
        self._fence()
        arrivals = int(self._row[_ARRIVALS]) + 1
        self._row[_ARRIVALS] = arrivals
        waited_s = self._wait(name, arrivals)
        self._fence()
        return waited_s

    def _wait(self, name: str, arrivals: int) -> float:
        start_s = time.monotonic()
        checked_s, pause_s = start_s, 2e-5
        while True:
            if (self._arrivals >= arrivals).all():
                return time.monotonic() - start_s
            now_s = time.monotonic()
            self.check_failures()
            if now_s - checked_s > _LIFE_CHECK_S:
                checked_s = now_s
                self.check_lives(self._late(arrivals))
            if now_s - start_s > self.deadline_s:
                told = "; ".join(f"rank {rank}: {self.last_seen(rank)}" for rank in self._late(arrivals))
                raise DeadlineExceeded(
                    f"rank {self.rank} waited {self.deadline_s:g} s at {name} for ranks that did not come. Last seen: "
                    f"{told}. Each rank must run its microbatches without a collective of its own, such as an "
                    "all-reduce inside forward; a longer deadline_s allows for slower ranks"
                )
            if now_s - start_s < _EAGER_S:
                time.sleep(0)
            else:
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _late(self, arrivals: int) -> list[int]:
        return [rank for rank in range(self.world_size) if self._arrivals[rank] < arrivals]

    def check_lives(self, ranks: Iterable[int]) -> None:
        """Raise if one of the ranks is no more."""
        for rank in ranks:
            if rank != self.rank and not is_held_by_other(self._segment.file, self._life_byte(rank)):
                # A rank that ends in good order says so first, or reports why not.
                self.check_failures()
                if self.last_seen(rank).phase is Phase.CLOSED:
                    raise RankLost(
                        f"rank {rank} has closed its handle, and rank {self.rank} has not: all ranks must run as many "
                        "minibatches, those without samples included"
                    )
                raise RankLost(f"rank {rank} is gone: its process has ended. Last seen: {self.last_seen(rank)}")
