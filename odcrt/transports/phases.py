"""What a rank is doing, in words that go into error messages of the others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["LastSeen", "Phase"]


class Phase(IntEnum):
    """The steps of a minibatch, as a rank tells them to the others."""

    STARTING = 0
    PUBLISH = 1
    PULL = 2
    GATHER = 3
    SCATTER_ACCUMULATE = 4
    COMPUTE = 5
    SETTLE = 6
    BETWEEN_MINIBATCHES = 7
    CLOSED = 8

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class LastSeen:
    """The last that a rank told of itself."""

    phase: Phase
    unit: int
    minibatch: int
    microbatch: int
    tokens: int

    def __str__(self) -> str:
        parts = [str(self.phase)]
        if self.unit >= 0:
            parts[0] += f" of unit {self.unit}"
        if self.minibatch >= 0:
            parts.append(f"minibatch {self.minibatch}")
        if self.microbatch >= 0:
            parts.append(f"microbatch {self.microbatch}")
        if self.tokens >= 0:
            parts.append(f"{self.tokens} tokens")
        return ", ".join(parts)
