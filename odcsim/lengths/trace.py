"""Length traces: the lengths of the sequences of a real (or synthetic) data set, in source order.

File: UTF-8 text, one whole number of tokens a line (1 to `LONGEST_TOKENS`), no header. Blank lines and lines that start
with `#` are skipped. Line ends may be LF or CRLF, a byte order mark is allowed. Beside `NAME.csv`, `NAME.json` may say
where the lengths come from; see `odcsim.lengths.sidecar`.

Unit: tokens. Legend: S samples (the rows of a trace).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.files import read_text
from odcsim.lengths.limits import LONGEST_TOKENS
from odcsim.lengths.sidecar import JsonObject, read_json_object, synthetic_flag

__all__ = ["LengthTrace", "read_trace"]

_WHAT = "length trace"
_ALLOWED = f"must be a whole number of tokens from 1 to {LONGEST_TOKENS:,}, alone on its line (no header)"
_COMMENT = re.compile(r"^#.*$", flags=re.MULTILINE)
_LONGEST_TEXT = 20  # More digits than any allowed length has, leading zeros included.


@dataclass(frozen=True, eq=False)
class LengthTrace:
    """The lengths of a data set.

    Attributes:
        name: the file's name without its folder and suffix.
        lengths_S: tokens of each row, int64, read-only.
        group_size: rows that share a prompt, in consecutive groups from the first row on; the last group may be
            smaller. 1 where rows are independent.
        provenance: the sidecar's content; empty without one.
        synthetic: whether the sidecar declares the lengths to be made up.
    """

    name: str
    lengths_S: IntArray
    group_size: int = 1
    provenance: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False

    def __post_init__(self) -> None:
        lengths_S = np.asarray(self.lengths_S, dtype=np.int64).view()
        assert lengths_S.ndim == 1, f"lengths_S has {lengths_S.ndim} dimensions, not 1"
        assert 1 <= self.group_size <= lengths_S.size, f"groups of {self.group_size} in {lengths_S.size} rows"
        assert int(lengths_S.min()) >= 1, "a length below 1"
        lengths_S.setflags(write=False)
        object.__setattr__(self, "lengths_S", lengths_S)


def read_trace(path: Path, *, key: str | None = None) -> LengthTrace:
    """Read a length trace and, if there is one, the sidecar beside it.

    Args:
        path: the trace; the sidecar has the same name and the suffix `.json`.
        key: the key that named the file, if any; it appears in the error when the file cannot be opened.

    Raises:
        InputError: the trace cannot be read, holds no length, or holds a line that is none (named by its number);
            the sidecar cannot be read, or contradicts the trace.
    """
    path = Path(path)
    if path.suffix == ".json":
        raise InputError(
            "is a JSON file by its name; a trace is text with one length a line, and a histogram is named under the "
            "key 'histogram'",
            file=path,
            key=key,
        )
    lengths_S = _parse(read_text(path, what=_WHAT, key=key).removeprefix("\ufeff"), path=path)
    if lengths_S.size == 0:
        raise InputError(f"holds no length; each line {_ALLOWED}", file=path, key=key)
    sidecar = path.with_suffix(".json")
    facts = read_json_object(sidecar, what=f"sidecar of a {_WHAT}") if sidecar.exists() else {}
    return LengthTrace(
        name=path.stem,
        lengths_S=lengths_S,
        group_size=_group_size(facts, rows=lengths_S.size, file=sidecar),
        provenance=facts,
        synthetic=synthetic_flag(facts, file=sidecar),
    )


def _group_size(facts: JsonObject, *, rows: int, file: Path) -> int:
    count = facts.get("count", rows)
    if isinstance(count, bool) or not isinstance(count, int) or count != rows:
        raise InputError(
            f"must be the number of lengths in the trace, {rows}: correct the sidecar, or remove it",
            file=file,
            key="count",
            value=count,
        )
    group_size = facts.get("group_size", 1)
    if isinstance(group_size, bool) or not isinstance(group_size, int) or not 1 <= group_size <= rows:
        raise InputError(
            f"must be a whole number from 1 to the number of lengths, {rows}",
            file=file,
            key="group_size",
            value=group_size,
        )
    return group_size


def _parse(text: str, *, path: Path) -> IntArray:
    # Nothing but digits and line ends, comments aside, cannot hide a malformed line, only a number out of range; every
    # other file, and every file with a fault, goes through the slower scan that knows line numbers.
    bare = _COMMENT.sub("", text) if "#" in text else text
    if bare.isascii() and not bare.encode("ascii").translate(None, b"0123456789\n"):
        lines = bare.split()
        try:
            lengths_S = np.fromiter(map(int, lines), dtype=np.int64, count=len(lines))
        except (OverflowError, ValueError):  # beyond int64, or more digits than int() takes
            pass
        else:
            if lengths_S.size == 0 or (lengths_S.min() >= 1 and lengths_S.max() <= LONGEST_TOKENS):
                return lengths_S
    return _scan(text, path=path)


def _scan(text: str, *, path: Path) -> IntArray:
    lengths: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        # isdigit() alone would let superscripts and other scripts' digits pass; int() alone, "1_000" and "+5".
        plain = stripped.isascii() and stripped.isdigit() and len(stripped) <= _LONGEST_TEXT
        if not plain or not 1 <= int(stripped) <= LONGEST_TOKENS:
            raise InputError(_ALLOWED, file=path, key=f"line {number}", value=stripped)
        lengths.append(int(stripped))
    return np.array(lengths, dtype=np.int64)
