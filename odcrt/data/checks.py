"""Checks of what users pass in; each raises one clear `InputError`."""

from __future__ import annotations

from odcsim.drop_in.inputs import as_whole_number
from odcsim.errors import InputError

__all__ = ["whole_number"]


def whole_number(key: str, value: object, *, least: int, most: int | None = None) -> int:
    """The value as an int.

    Args:
        key: what the user calls it.
        value: a whole number of any type, NumPy's included; no flag.
        least: smallest allowed.
        most: largest allowed; None: no bound.

    Raises:
        InputError: it is none, or out of range.
    """
    number = as_whole_number(value)
    if number is None:
        raise InputError("must be a whole number", key=key, value=value)
    if number < least or (most is not None and number > most):
        allowed = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"must be {allowed}", key=key, value=number)
    return number
