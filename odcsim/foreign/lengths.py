"""The lengths that the microbatches of a foreign trace held: a file of the user's, since profilers do not know them.

Either a JSON document: a list of entries, or an object with the key `plans` (a run.json); or JSON lines, an entry each.
An entry is one of run.json's `plans`: {"minibatch": 3, "ranks": [[[900, 100], [800]], [[1000], [700]]]}: for each rank
its microbatches, each a list of lengths in tokens. Minibatches that the traces do not hold are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.files import read_text
from odcsim.trace_format import PlannedLengths
from odcsim.trace_format.section import Section

__all__ = ["read_planned_lengths"]

_WHAT = "list of the lengths of every microbatch"


def read_planned_lengths(
    path: Path, *, window: range, microbatches_ND: Sequence[Sequence[int]]
) -> dict[int, PlannedLengths]:
    """Plans of the minibatches of a window.

    Args:
        path: the file.
        window: numbers of the N minibatches.
        microbatches_ND: how many microbatches each of D ranks ran in each of them.

    Raises:
        InputError: the file cannot be read, holds something else, lacks a minibatch, or plans other microbatches than
            were run.
    """
    world_size = len(microbatches_ND[0])
    entries = [Section(entry, file=path, path=place) for place, entry in _entries(path)]
    plans: dict[int, PlannedLengths] = {}
    for entry in entries:
        minibatch = entry.whole("minibatch", least=0)
        ranks = entry.items("ranks", count=world_size)
        if minibatch not in window:
            continue
        entry.check(minibatch not in plans, "minibatch", "is there twice")
        entry.check(
            all(map(_is_list_of_lengths, ranks)),
            "ranks",
            "must hold, for each rank, lists of lengths (whole numbers of at least 1)",
        )
        counts = [len(microbatches) for microbatches in ranks]
        run = list(microbatches_ND[minibatch - window.start])
        entry.check(
            counts == run, "ranks", f"plans {counts} microbatches, by rank, but {run} were run: it is another run's"
        )
        plans[minibatch] = tuple(tuple(map(tuple, microbatches)) for microbatches in ranks)
    if missing := sorted(set(window) - set(plans)):
        raise InputError(
            f"no entry of minibatch {missing[0]}; the traces hold {window.start} to {window.stop - 1}", file=path
        )
    return plans


def _is_list_of_lengths(microbatches: object) -> bool:
    return isinstance(microbatches, list) and all(
        isinstance(lengths, list) and all(type(length) is int and length >= 1 for length in lengths)
        for lengths in microbatches
    )


def _entries(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Entries, each with its place in the file."""
    text = read_text(path, what=_WHAT)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        found: list[tuple[str, Any]] = list(_lines(text, path))
    else:
        if isinstance(document, dict):
            document = document.get("plans", [document])
        listed = document if isinstance(document, list) else []
        found = [(f"entry {position}", entry) for position, entry in enumerate(listed)]
    for place, entry in found:
        if not isinstance(entry, dict):
            raise InputError("must be a JSON object with minibatch and ranks", file=path, key=place)
    if not found:
        raise InputError("holds no entry with minibatch and ranks", file=path)
    return found


def _lines(text: str, path: Path) -> Iterable[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError):
                raise InputError(
                    f"is not JSON; give a {_WHAT}, as JSON or JSON lines", file=path, key=f"line {number}"
                ) from None
