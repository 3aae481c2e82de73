"""Checks of what callers pass in: lists, arrays or tensors. Each raises one clear `InputError`.

Nothing is imported for the sake of a type: what has a `tolist` (arrays of NumPy, tensors of torch on any device) is
asked for its numbers.

Legend: S samples, D ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.lengths.limits import LONGEST_TOKENS

__all__ = ["as_whole_number", "costs_of", "lengths_S_of", "one_by_one", "speeds_D_of", "whole_number"]


def one_by_one(values: object, *, key: str) -> list[Any]:
    """The values of a list, an array or a tensor of one dimension.

    Raises:
        InputError: it is none of them.
    """
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(listed, Iterable) or isinstance(listed, str | bytes):
        raise InputError("must be values in one row", key=key, value=values)
    return list(listed)


def as_whole_number(value: object) -> int | None:
    """A whole number of any type, NumPy's and torch's included, as an int; None for anything else, flags too."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def whole_number(key: str, value: object, *, least: int, most: int | None = None) -> int:
    """The value as an int; flags are none.

    Raises:
        InputError: it is no whole number, or out of range.
    """
    number = as_whole_number(value)
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise InputError(f"must be a whole number {bounds}", key=key, value=value if number is None else number)
    return number


def lengths_S_of(lengths: object, *, key: str = "lengths") -> IntArray:
    """Samples' lengths in tokens; there may be none.

    Raises:
        InputError: one is no whole number, or out of range; it is named by its place.
    """
    numbers = [
        whole_number(f"{key}[{sample}]", tokens, least=1, most=LONGEST_TOKENS)
        for sample, tokens in enumerate(one_by_one(lengths, key=key))
    ]
    return np.array(numbers, dtype=np.int64)


def costs_of(costs: object, *, key: str) -> list[float]:
    """Numbers that are finite and not negative.

    Raises:
        InputError: one is not; it is named by its place.
    """
    checked = []
    for place, cost in enumerate(one_by_one(costs, key=key)):
        try:
            number = float(cost)
        except (OverflowError, TypeError, ValueError):
            number = -1.0
        if not 0.0 <= number < float("inf"):
            raise InputError("must be a finite number of 0 or more", key=f"{key}[{place}]", value=cost)
        checked.append(number)
    return checked


def speeds_D_of(speeds: object, *, ranks: int, key: str = "speeds") -> list[float]:
    """A speed for each rank, finite and above 0.

    Raises:
        InputError: one is not, or there are more or fewer of them.
    """
    speeds_D = costs_of(speeds, key=key)
    if len(speeds_D) != ranks:
        raise InputError(f"must be one for each of the {ranks} ranks", key=f"number of {key}", value=len(speeds_D))
    for rank, speed in enumerate(speeds_D):
        if speed == 0.0:
            raise InputError("must be above 0", key=f"{key}[{rank}]", value=speed)
    return speeds_D
