"""Facts about a list of lengths, kept as one JSON object: where it comes from, and how its rows hang together.

What the programs read: `synthetic` (true or false), `group_size` (rows that share a prompt, in consecutive groups) and
`count` (rows, to notice a sidecar that belongs to another file). Everything else is passed on untouched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.files import read_text

__all__ = ["JsonObject", "read_json_object", "synthetic_flag"]

JsonObject = dict[str, Any]


def read_json_object(path: Path, *, what: str, key: str | None = None) -> JsonObject:
    """The JSON object that a file holds.

    Args:
        path: the file.
        what: what the file should be: "histogram of lengths".
        key: the key that named the file, if any.

    Raises:
        InputError: the file cannot be read, is not JSON, or holds something other than an object.
    """
    text = read_text(path, what=what, key=key).removeprefix("\ufeff")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON ({error.msg}); give a {what}", file=path, key=f"line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise InputError(f"is not JSON that can be read; give a {what}", file=path) from None
    if not isinstance(value, dict):
        raise InputError(f"must be a JSON object ({what})", file=path)
    return value


def synthetic_flag(facts: JsonObject, *, file: Path) -> bool:
    """Whether the lengths are declared to be made up; False where `facts` do not say.

    Raises:
        InputError: something other than true or false.
    """
    flag = facts.get("synthetic", False)
    if not isinstance(flag, bool):
        raise InputError("must be true or false", file=file, key="synthetic", value=flag)
    return flag
