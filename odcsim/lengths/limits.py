"""The largest length and the largest draw; beyond them lies a mistake, or more memory than a machine has."""

from __future__ import annotations

__all__ = ["LONGEST_TOKENS", "MOST_SAMPLES_PER_DRAW"]

LONGEST_TOKENS = 1_000_000_000
"""No sequence is longer: sums of a whole draw stay far below 2^63, and a number beyond is a mistyped one."""

MOST_SAMPLES_PER_DRAW = 100_000_000
"""A draw must hold fewer samples in all: it takes 8 bytes of memory a sample, and plans of it take many times that."""
