"""The spans of a rank as a lane of a timeline: rectangles to draw, and what to say of each microbatch.

A lane has two layers. The *compute* layer follows the rank's compute stream: forward, backward, waiting, and, where the
stream stands still while a transfer is under way, exposed communication; it has no overlaps. The *transfer* layer shows
when any transfer of the rank is under way, exposed or not. Times in seconds since the start of the minibatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from odcsim.engines.timeline import Span

__all__ = ["Block", "Lane", "Piece", "lanes_of", "merged", "sampled"]

# What a span of the compute stream is drawn as.
_KIND_OF_SPAN = {
    "forward": "forward",
    "backward": "backward",
    "wait": "wait",
    "optimizer": "optimizer",
    "publish": "overhead",
    "settle": "overhead",
}


class Piece(NamedTuple):
    """A stretch of time of one kind, of one microbatch (-1: of none)."""

    kind: str
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Block:
    """One or several neighbouring microbatches of a rank, or a step outside of microbatches, and its time by kind."""

    first_microbatch: int
    last_microbatch: int
    start_s: float
    end_s: float
    seconds: dict[str, float]


@dataclass(frozen=True)
class Lane:
    """What one rank did; pieces ordered by start."""

    rank: int
    compute: tuple[Piece, ...]
    transfers: tuple[Piece, ...]

    def blocks(self, *, microbatches_each: int = 1) -> list[Block]:
        """The compute layer by groups of `microbatches_each` microbatches, for hovering."""

        def group_of(piece: Piece) -> int:
            return piece.microbatch // microbatches_each if piece.microbatch >= 0 else -1

        found = []
        for _, members in groupby(self.compute, key=group_of):
            pieces = list(members)
            seconds: dict[str, float] = {}
            for piece in pieces:
                seconds[piece.kind] = seconds.get(piece.kind, 0.0) + piece.end_s - piece.start_s
            numbers = [piece.microbatch for piece in pieces]
            found.append(Block(min(numbers), max(numbers), pieces[0].start_s, pieces[-1].end_s, seconds))
        return found


def lanes_of(spans: Iterable[Span], *, ranks: int) -> list[Lane]:
    """Lanes of the ranks below `ranks` that have spans, in the order of ranks."""
    by_rank: dict[int, list[Span]] = {}
    for span in spans:
        if span.rank < ranks:
            by_rank.setdefault(span.rank, []).append(span)
    return [_lane(rank, by_rank[rank]) for rank in sorted(by_rank)]


def _lane(rank: int, spans: list[Span]) -> Lane:
    transfers = _union(
        sorted((span.start_s, span.end_s) for span in spans if span.name in {"gather", "scatter_accumulate"})
    )
    compute = [
        Piece(_KIND_OF_SPAN[span.name], span.microbatch, span.start_s, span.end_s)
        for span in sorted(spans, key=lambda span: (span.start_s, span.end_s))
        if span.name in _KIND_OF_SPAN
    ]
    return Lane(
        rank,
        tuple(merged(_with_exposed(compute, transfers))),
        tuple(Piece("transfer", -1, start_s, end_s) for start_s, end_s in transfers),
    )


def _union(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Ordered intervals without overlaps that cover the same time as `intervals` (ordered by start)."""
    covered: list[tuple[float, float]] = []
    for start_s, end_s in intervals:
        if covered and start_s <= covered[-1][1]:
            covered[-1] = (covered[-1][0], max(covered[-1][1], end_s))
        else:
            covered.append((start_s, end_s))
    return covered


def _with_exposed(compute: list[Piece], transfers: list[tuple[float, float]]) -> list[Piece]:
    """The compute layer with its gaps filled where a transfer is under way: the microbatch waits for that transfer."""
    pieces: list[Piece] = []
    now_s = 0.0
    position = 0
    for piece in compute:
        if piece.start_s > now_s:
            while position < len(transfers) and transfers[position][1] <= now_s:
                position += 1
            after = position
            while after < len(transfers) and transfers[after][0] < piece.start_s:
                start_s, end_s = max(transfers[after][0], now_s), min(transfers[after][1], piece.start_s)
                # What precedes the end of the minibatch belongs to the microbatch whose gradients are on their way.
                owner = piece.microbatch if piece.microbatch >= 0 or not pieces else pieces[-1].microbatch
                pieces.append(Piece("exposed", owner, start_s, end_s))
                after += 1
        pieces.append(piece)
        now_s = max(now_s, piece.end_s)
    return pieces


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of the same kind and microbatch that touch become one piece; `pieces` must be ordered by start."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        touches = (
            last is not None
            and (last.kind, last.microbatch) == (piece.kind, piece.microbatch)
            # Sums of the same times in another order differ by rounding.
            and piece.start_s - last.end_s <= 1e-9 * max(piece.start_s, 1e-30)
        )
        if last is not None and touches:
            joined[-1] = last._replace(end_s=max(last.end_s, piece.end_s))
        else:
            joined.append(piece)
    return joined


def sampled(pieces: Sequence[Piece], *, columns: int, end_s: float) -> list[Piece]:
    """The pieces on a grid of `columns` over [0, end_s], every column of one kind, microbatches forgotten.

    Every column goes to the kind that is most in arrears, counting what it had in this column and those before. So a
    pattern finer than a column becomes a coarser pattern with the same shares, instead of the majority taking it all.
    Time that no piece covers counts as a kind of its own, which is not drawn.
    """
    width_s = end_s / columns
    owed: dict[str, float] = {"": 0.0}
    drawn: list[Piece] = []
    position = 0
    for column in range(columns):
        left_s, right_s = column * width_s, (column + 1) * width_s
        covered = 0.0
        while position < len(pieces) and pieces[position].end_s <= left_s:
            position += 1
        here = position
        while here < len(pieces) and pieces[here].start_s < right_s:
            piece = pieces[here]
            share = (min(piece.end_s, right_s) - max(piece.start_s, left_s)) / width_s
            owed[piece.kind] = owed.get(piece.kind, 0.0) + share
            covered += share
            here += 1
        owed[""] += 1.0 - covered
        kind = max(owed, key=owed.__getitem__)
        owed[kind] -= 1.0
        if kind:
            drawn.append(Piece(kind, -1, left_s, right_s))
    return merged(drawn)
