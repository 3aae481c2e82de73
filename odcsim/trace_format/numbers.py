"""Numbers as JSON has them: whole ones of any size, which no float holds."""

from __future__ import annotations

from math import isfinite

__all__ = ["LARGEST", "is_finite_number"]

LARGEST = 2**63 - 1
"""Beyond this a whole number is no count of anything."""


def is_finite_number(value: object) -> bool:
    """Whether a value of JSON is a number that a float holds; true and false are none."""
    if type(value) is int:
        return abs(value) <= LARGEST
    return type(value) is float and isfinite(value)
