"""How much faster one way of training is than another, and whether that is worth a change.

Both are timed on the same samples, so their rates of samples are compared by their times. Legend: N minibatches, B
blocks of minibatches.
"""

from __future__ import annotations

from dataclasses import dataclass

from odcsim.arrays import FloatArray
from odcsim.metrics import paired_speedup

__all__ = ["NEGLIGIBLE", "Gain", "blocks_s", "gain_over"]

NEGLIGIBLE = 0.01
"""A smaller gain, as a share, is not worth a change: models of time are not as good as that."""


@dataclass(frozen=True)
class Gain:
    """One way of training against another, on the same samples.

    Attributes:
        speedup: samples a second over the other's.
        ci95: its 95% interval, a paired bootstrap over what the same samples took in both; None where there is one
            pair only.
        pairs: minibatches, or blocks of them, that the interval is drawn from.
    """

    speedup: float
    ci95: tuple[float, float] | None
    pairs: int

    @property
    def share(self) -> float:
        """The gain as a share: 0.32 for 1.32 times as many samples a second."""
        return self.speedup - 1

    @property
    def may_be_chance(self) -> bool:
        """Whether another draw of samples may show no gain."""
        return self.ci95 is not None and self.ci95[0] <= 1

    @property
    def matters(self) -> bool:
        """Whether it is large enough to act on, and not by chance."""
        return self.share >= NEGLIGIBLE and not self.may_be_chance


def gain_over(seconds_N: FloatArray, other_s_N: FloatArray, *, seed: int) -> Gain:
    """The gain of one way of training over another.

    Args:
        seconds_N: of its first minibatches.
        other_s_N: the other's for the same minibatches, from the first on; the longer of both is cut.
        seed: of the resampling.
    """
    pairs = min(len(seconds_N), len(other_s_N))
    speedup, ci95 = paired_speedup(other_s_N[:pairs], seconds_N[:pairs], seed=seed)
    return Gain(speedup, ci95, pairs)


def blocks_s(seconds_N: FloatArray, *, size: int) -> FloatArray:
    """Seconds of B blocks of `size` consecutive minibatches; minibatches that fill no block are left out."""
    blocks = len(seconds_N) // size
    summed_B: FloatArray = seconds_N[: blocks * size].reshape(blocks, size).sum(axis=1)
    return summed_B
