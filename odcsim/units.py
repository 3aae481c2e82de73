"""Quantities with units: "80 GB" in a scenario becomes bytes, and back for people to read.

Everywhere inside the programs numbers are bytes, seconds, FLOP/s and bytes/s. Prefixes are decimal (GB = 10^9 bytes) or
binary (GiB = 2^30); a small b is a bit, a capital B a byte.
"""

from __future__ import annotations

import math
import re
from typing import Literal

__all__ = ["Dimension", "format_bytes", "format_count", "format_seconds", "parse_quantity"]

Dimension = Literal["bytes", "bytes/s", "FLOP/s", "seconds"]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SIZES = {f"{prefix}B": factor for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
_BIT_SIZES = {f"{prefix}b": factor / 8 for prefix, factor in _DECIMAL.items()}

_UNITS: dict[Dimension, dict[str, float]] = {
    "bytes": _SIZES,
    "bytes/s": {
        **{f"{unit}/s": factor for unit, factor in {**_SIZES, **_BIT_SIZES}.items()},
        **{f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()},
        **{f"{prefix}bps": factor / 8 for prefix, factor in _DECIMAL.items()},
    },
    "FLOP/s": {
        **{f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
        **{f"{prefix}FLOPS": factor for prefix, factor in _DECIMAL.items()},
    },
    "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
}
_EXAMPLES: dict[Dimension, str] = {
    "bytes": '"80 GB", "80 GiB" or a number of bytes',
    "bytes/s": '"400 Gb/s", "300 GB/s" or a number of bytes a second',
    "FLOP/s": '"312 TFLOP/s" or a number of FLOP a second',
    "seconds": '"5 us", "0.15 s" or a number of seconds',
}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def parse_quantity(value: object, dimension: Dimension) -> float:
    """The number that `value` stands for, in the base unit of `dimension`.

    Args:
        value: a number (already in the base unit) or a text such as "80 GB".
        dimension: what the quantity measures; it decides which units are allowed.

    Raises:
        ValueError: not a quantity of this dimension, negative, or not finite; the text says what is allowed.
    """
    allowed = f"allowed: {_EXAMPLES[dimension]}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"not a quantity in {dimension}; {allowed}")  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise ValueError(f"not a quantity in {dimension}; {allowed}")
        number, unit = float(match[1]), match[2]
        factor = 1.0 if unit == "" else _UNITS[dimension].get(unit)
        if factor is None:
            raise ValueError(f"unknown unit {unit!r} for {dimension}; {allowed}")
        number *= factor
    else:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"must be finite; {allowed}")
    if number < 0:
        raise ValueError(f"must not be negative; {allowed}")
    return number


def _rounded(number: float) -> float:
    """The size of a number to three digits, as it will be shown."""
    return float(f"{abs(number):.3g}")


def _scaled(number: float, units: list[tuple[float, str]]) -> str:
    """`number` to three digits, in the largest unit in which it is at least 1; the units descend."""
    factor, unit = next(((factor, unit) for factor, unit in units if _rounded(number / factor) >= 1), units[-1])
    shown = f"{number / factor:,.0f}" if _rounded(number / factor) >= 1000 else f"{number / factor:.3g}"
    return f"{shown} {unit}"


def format_bytes(number: float) -> str:
    """`number` of bytes for people, in decimal units: "17.2 GB"."""
    return _scaled(number, [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])


def format_seconds(number: float) -> str:
    """A duration for people: "2.41 s", "15.2 ms"."""
    return _scaled(number, [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])


def format_count(number: float) -> str:
    """A large number for people: "16.3K", "1.78B"."""
    return _scaled(number, [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"), (1.0, "")]).replace(" ", "")
