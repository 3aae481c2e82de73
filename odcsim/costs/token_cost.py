"""The time of one microbatch as a polynomial: what policies balance by, and what every compute model comes down to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcsim.arrays import FloatArray, IntArray

__all__ = ["TokenCost"]


@dataclass(frozen=True)
class TokenCost:
    """Seconds of a microbatch = quadratic x sum(s^2) + linear x sum(s) + constant, over its samples' lengths s.

    Attributes:
        quadratic: seconds per squared token (attention).
        linear: seconds per token.
        constant: seconds per microbatch, whatever it holds.
    """

    quadratic: float
    linear: float
    constant: float = 0.0

    def sample_costs_S(self, lengths_S: IntArray) -> FloatArray:
        """Seconds that each sample adds to the microbatch it is in (without the constant)."""
        tokens_S = lengths_S.astype(np.float64)
        return self.quadratic * tokens_S**2 + self.linear * tokens_S
