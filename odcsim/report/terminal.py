"""What tables on the terminal share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

__all__ = ["GAP", "paragraph", "plain_table", "print_wide"]

GAP = 2
"""Cells between columns."""

_PIPE_WIDTH = 100


def paragraph(text: str, width: int, *, indent: int = GAP, style: str = "") -> Text:
    """A paragraph whose lines after the first are indented; wrapped here, as rich would pad lines with spaces."""
    lines = textwrap.wrap(text, max(width, indent + 10), subsequent_indent=" " * indent, break_on_hyphens=False)
    return Text("\n".join(lines), style=style)


def plain_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    spare: Sequence[str] = (),
    styles: Sequence[str] = (),
) -> Table:
    """A table without lines whose first column names its rows.

    Args:
        header: a heading for each column.
        rows: texts, taken letter by letter.
        width: cells at hand.
        spare: headings of columns to leave out one by one, in this order, until the rest fits.
        styles: of the rows, where they have any.
    """
    columns, fit = _fitting(header, rows, width=width, spare=spare)
    header, rows = [header[column] for column in columns], [[row[column] for column in columns] for row in rows]
    if not fit:
        # Values above their intervals.
        rows = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
    table = Table(
        Column(header[0], overflow="fold"),
        *(Column(heading, justify="right") for heading in header[1:]),
        box=None,
        padding=(0, GAP, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    for position, row in enumerate(rows):
        table.add_row(*map(Text, row), style=styles[position] if styles else "")
    return table


def _fitting(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, spare: Sequence[str]
) -> tuple[list[int], bool]:
    """Columns that fit, or that must be there, and whether they do fit."""
    taken = [GAP + max(cell_len(text) for text in texts) for texts in zip(header, *rows, strict=True)]
    columns = list(range(len(header)))
    for heading in spare:
        if sum(taken[column] for column in columns) <= width + GAP:
            break
        columns = [column for column in columns if header[column] != heading]
    return columns, sum(taken[column] for column in columns) <= width + GAP


def print_wide(content: RenderableType, console: Console, *, least: int = _PIPE_WIDTH) -> None:
    """Print, in a pipe at least so many columns wide: it has no width of its own, and rich assumes 80."""
    width = console.width
    if not console.is_terminal:
        console.width = max(width, least)
    try:
        console.print(content, highlight=False)
    finally:
        console.width = width
