"""The interface of a transport: memory that all ranks can reach, read and added to one-sidedly, and a barrier.

A transport knows nothing of models. Memory is allocated once, collectively, as named regions; every rank owns one of
each. `read` and `accumulate` involve the caller alone: the owner need not take part. Transfers carry no order among
themselves; a barrier orders everything before it before everything after it, on all ranks.

Every wait has a deadline, and ends early where a rank is lost or has failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from odcrt.transports.phases import Phase

__all__ = ["Region", "Transport"]


@dataclass(frozen=True)
class Region:
    """A piece of memory that every rank owns one of.

    Attributes:
        name: unique in its transport.
        numel: elements; 0 is allowed.
        dtype: of an element.
        locks: how many locks guard it against concurrent `accumulate`; 0 for a region that has one writer at a time.
    """

    name: str
    numel: int
    dtype: torch.dtype
    locks: int = 0


class Transport(ABC):
    """Memory of all ranks, as one of them sees it."""

    def __init__(self, *, rank: int, world_size: int, deadline_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s

    @abstractmethod
    def allocate(self, regions: Sequence[Region]) -> None:
        """Allocate this rank's regions, zeroed, and reach those of the others. Collective; once."""

    @abstractmethod
    def view(self, region: str, *, owner: int | None = None) -> torch.Tensor:
        """The region of a rank (one's own by default) as a 1-D tensor over the very memory.

        Reading or writing it is a one-sided access; `read` and `accumulate` are the ways to do so with checks.
        """

    @abstractmethod
    def read(self, out: torch.Tensor, region: str, *, owner: int, offset: int = 0) -> None:
        """Fill `out` (1-D) from the region of `owner`, from element `offset` on."""

    @abstractmethod
    def accumulate(
        self, values: torch.Tensor, region: str, *, owner: int, offset: int = 0, scale: float = 1.0, lock: int = 0
    ) -> None:
        """Add `scale` x `values` (1-D) to the region of `owner`, from element `offset` on, under one of its locks."""

    @abstractmethod
    def barrier(self, phase: Phase) -> float:
        """Wait until all ranks are here.

        Args:
            phase: what this rank is in, for the others' messages.

        Returns:
            Seconds waited.

        Raises:
            RankLost: the process of a rank that is not here has ended.
            PeerFailed: a rank has reported an error.
            DeadlineExceeded: ranks are late; the text names them and their last phases.
        """

    @abstractmethod
    def pull(self, *, sequence: int, count: int) -> int:
        """The next position of a queue of `count` that all ranks share, from 0; `count` once it is used up.

        No two ranks get the same position.

        Args:
            sequence: number of the queue. A higher one begins anew; ranks have met since any pull from a lower one.
            count: the same on all ranks.

        Raises:
            RankLost: the process of a rank has ended, found out while waiting.
            PeerFailed: a rank has reported an error.
            DeadlineExceeded: a rank keeps the queue to itself; the text names it and its last phase.
            RunError: ranks have queues of different lengths.
        """

    @abstractmethod
    def pulled(self, *, sequence: int) -> int:
        """How many positions of a queue have been pulled; final once all ranks have met. 0 if nobody has begun it."""

    @abstractmethod
    def note(
        self, phase: Phase, *, unit: int = -1, minibatch: int = -1, microbatch: int = -1, tokens: int = -1
    ) -> None:
        """Tell the others what this rank is about to do; cheap enough for every transfer."""

    @abstractmethod
    def check_peers(self) -> None:
        """Raise what `barrier` would if a rank has reported an error; cheap enough for every transfer."""

    @abstractmethod
    def check_lives(self) -> None:
        """Raise what `barrier` would if a rank has reported an error, or its process has ended."""

    @abstractmethod
    def fail(self, text: str) -> None:
        """Tell the others that this rank ends with an error."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the memory; nothing of it stays behind. Safe to call twice."""
