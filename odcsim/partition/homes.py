"""Arrangements of items in parts, either way round: the items of each part, or the home of each item, its part.

Legend: S items, P parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from odcsim.arrays import IntArray

__all__ = ["homes_of", "items_of_parts"]


def homes_of(parts: Sequence[Sequence[int]], *, items: int) -> IntArray:
    """The home of each item.

    Args:
        parts: the items of each part; every item is in exactly one.
        items: S.
    """
    homes_S = np.empty(items, dtype=np.int64)
    homes_S[list(chain.from_iterable(parts))] = np.repeat(np.arange(len(parts)), list(map(len, parts)))
    return homes_S


def items_of_parts(homes_S: IntArray, *, parts: int) -> list[list[int]]:
    """The items of each part, ascending.

    Args:
        homes_S: the home of each item.
        parts: P.
    """
    by_part = np.argsort(homes_S, kind="stable").tolist()
    ends = np.cumsum(np.bincount(homes_S, minlength=parts)).tolist()
    return [by_part[start:end] for start, end in zip([0, *ends], ends, strict=False)]
