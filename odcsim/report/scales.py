"""Units of an axis."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Scale", "byte_scale", "time_scale"]


@dataclass(frozen=True)
class Scale:
    """What a figure's axis counts in.

    Attributes:
        factor: of the unit, in seconds, bytes or tokens.
        unit: its name on the axis.
    """

    factor: float
    unit: str


def time_scale(longest_s: float) -> Scale:
    """The unit in which times up to `longest_s` are read with ease."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if longest_s >= factor:
            return Scale(factor, unit)
    return Scale(1e-9, "ns")


def byte_scale(most_bytes: float) -> Scale:
    """The unit in which sizes up to `most_bytes` are read with ease."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if most_bytes >= factor:
            return Scale(factor, unit)
    return Scale(1.0, "B")
