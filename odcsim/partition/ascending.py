"""Distinct whole numbers in ascending order, for quick look-ups of the next one, additions and removals.

They lie in short rows. In one list of half a million, every addition would move some megabytes.

Invariants: rows are neither empty nor long; all numbers of a row are above those of the row before.
"""

from __future__ import annotations

from bisect import bisect_left, insort

__all__ = ["AscendingNumbers"]

_LONGEST_ROW = 1024


class AscendingNumbers:
    """A set of whole numbers, empty at first."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._lasts: list[int] = []  # of each row

    def next_from(self, number: int) -> int | None:
        """The smallest that is no smaller than a number; None where there is none."""
        place = bisect_left(self._lasts, number)
        if place == len(self._lasts):
            return None
        row = self._rows[place]
        return row[bisect_left(row, number)]

    def add(self, number: int) -> None:
        """One more, which is not among them."""
        place = bisect_left(self._lasts, number)
        if place < len(self._lasts):
            insort(self._rows[place], number)
        elif place:
            place -= 1
            self._rows[place].append(number)
            self._lasts[place] = number
        else:
            self._rows.append([number])
            self._lasts.append(number)
        row = self._rows[place]
        if len(row) > _LONGEST_ROW:
            self._rows[place : place + 1] = row[: _LONGEST_ROW // 2], row[_LONGEST_ROW // 2 :]
            self._lasts.insert(place, row[_LONGEST_ROW // 2 - 1])

    def remove(self, number: int) -> None:
        """One less, which is among them."""
        place = bisect_left(self._lasts, number)
        row = self._rows[place]
        del row[bisect_left(row, number)]
        if not row:
            del self._rows[place], self._lasts[place]
        elif number == self._lasts[place]:
            self._lasts[place] = row[-1]
