"""The order of compute and transfers under each overlap, as data that a rank's process reads off.

A rank's gathers follow each other, and so do its reduces; its compute stream can issue both, for these reasons.

- A gather that runs ahead (`prefetch`, `gather-only`) is ready when the gather before it has ended and the visit before
  its own has begun to compute. No visit begins before all gathers up to its own have ended, so the second condition
  implies the first: the gather is issued as the visit before begins.
- With `prefetch`, the compute stream waits after a backward for the reduce before its own, so at most one is under way,
  and the next is ready as soon as it is issued. With the other overlaps the compute stream waits for its own reduce.

- With `none`, gathers are issued in the order of `gathers_in_turn`, and waited for at once.

Transfers do not stop at the border of microbatches: the last visit of one issues the first gather of the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from odcsim.schedule import Overlap, Visit, gathers_in_turn

__all__ = ["GATHERS", "REDUCES", "Program", "Step"]

GATHERS: Final = 0
REDUCES: Final = 1


class Step(NamedTuple):
    """What the compute stream does in a row, around one transfer stream.

    Attributes:
        stream: `GATHERS` or `REDUCES`.
        issues_before: first, issue the stream's transfer of this visit, if any;
        issues_after: then, once the latest transfer of the stream has ended, issue that of this visit, if any;
        computes: then, compute this visit, if any.
    """

    stream: int
    issues_before: int | None
    issues_after: int | None
    computes: int | None


class Program:
    """The steps of a microbatch; they differ only in what lies at the ends of a rank's work."""

    def __init__(self, visits: tuple[Visit, ...], *, overlap: Overlap) -> None:
        self._steps = {
            (first, last): tuple(_steps(visits, overlap, first=first, last=last))
            for first in (False, True)
            for last in (False, True)
        }

    def steps(self, *, first: bool, last: bool) -> tuple[Step, ...]:
        """The steps of a rank's first, last, or any other microbatch, in order."""
        return self._steps[first, last]


def _steps(visits: tuple[Visit, ...], overlap: Overlap, *, first: bool, last: bool) -> Iterator[Step]:
    in_turn = gathers_in_turn(visits)
    for index, visit in enumerate(visits):
        following = (index + 1) % len(visits)
        is_first = first and index == 0
        is_last = last and following == 0
        if overlap == "none":
            for gathered in in_turn[index]:
                yield Step(GATHERS, issues_before=gathered, issues_after=None, computes=None)
            yield Step(GATHERS, issues_before=None, issues_after=None, computes=index)
        else:
            yield Step(
                GATHERS,
                issues_before=index if visit.gathers and is_first else None,
                issues_after=following if visits[following].gathers and not is_last else None,
                computes=index,
            )
        if visit.reduces:
            if overlap == "prefetch":
                yield Step(REDUCES, issues_before=None, issues_after=index, computes=None)
            else:
                yield Step(REDUCES, issues_before=index, issues_after=None, computes=None)
    if last:
        yield Step(REDUCES, issues_before=None, issues_after=None, computes=None)
