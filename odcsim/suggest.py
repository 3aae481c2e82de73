"""The answer to a name that is not known: the nearest one, and what there is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from odcsim.errors import UnknownNameError

__all__ = ["unknown_name"]

_LONGEST_LIST = 24


def unknown_name(
    kind: str, name: object, known: Iterable[str], *, file: object | None = None, key: str | None = None
) -> UnknownNameError:
    """An error for `name`, which is none of `known`.

    Args:
        kind: what the name should be of: "policy", "GPU".
        name: as the user wrote it.
        known: the allowed names.
        file: the file that holds the name, if any.
        key: the key that holds the name, if any.
    """
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name).lower(), list(lowered), n=1, cutoff=0.4)
    hint = f"; did you mean {lowered[near[0]]!r}?" if near else ""
    listed = ", ".join(names[:_LONGEST_LIST]) + (", ..." if len(names) > _LONGEST_LIST else "")
    return UnknownNameError(f"unknown {kind}{hint} (known: {listed})", file=file, key=key, value=name)
