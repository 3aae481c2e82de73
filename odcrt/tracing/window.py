"""Which minibatches are recorded, and the variables that tell a script's ranks so."""

from __future__ import annotations

from odcsim.errors import InputError

__all__ = ["DEFAULT_WINDOW", "RECORD_VARIABLE", "WINDOW_VARIABLE", "parse_window"]

RECORD_VARIABLE = "ODCRT_RECORD"
"""Folder of the trace."""

WINDOW_VARIABLE = "ODCRT_RECORD_WINDOW"
"""Minibatches to record, FIRST:COUNT."""

DEFAULT_WINDOW = range(20)
"""Enough to see a pattern, and little enough for every viewer."""

_MOST_DIGITS = 9


def parse_window(text: str, *, key: str) -> range:
    """The minibatches of "FIRST:COUNT".

    Raises:
        InputError: not of that form, or no minibatch at all.
    """
    first, colon, count = text.partition(":")
    numbers = [part for part in (first, count) if part.isascii() and part.isdecimal() and len(part) <= _MOST_DIGITS]
    if not colon or len(numbers) != 2 or int(count) < 1:
        raise InputError("allowed: FIRST:COUNT, minibatches from 0, at least one: 2:10, say", key=key, value=text)
    return range(int(first), int(first) + int(count))
