"""Items into parts so that the part that ends last ends as early as can be.

A few items are tried in every arrangement. More are dealt, the costliest first (`dealing`), and evened out by exchanges
(`exchange`). Tens of alike parts' items, and more where that leaves the parts uneven, are split by differencing and
swaps as well, and the better one counts.

A cap is forgotten at first: the answer may keep it anyway. If not, items are dealt under it, or split by differencing;
if that fails, tokens are balanced instead of costs, or packed as tightly as can be. Exchanges under the cap follow.

Invariants: every item is in exactly one part; equal counts and the cap hold without exception; ties go by item index,
so that the same input gives the same answer on every machine; the work is bounded whatever the costs are.

Legend: S items, P parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.partition.dealing import deal, fit_tokens
from odcsim.partition.differencing import split_by_differencing
from odcsim.partition.exchange import even_out
from odcsim.partition.exhaustive import can_try_all, try_all
from odcsim.partition.homes import items_of_parts
from odcsim.partition.refine import lower_heaviest_by_swaps
from odcsim.partition.task import PartitionTask

__all__ = ["balance", "find_homes"]

# Up to so many items, differencing with swaps is quick, and more often than not the better start.
_FEW_ITEMS = 128
# Up to so many, it is tried where dealing and exchanges come no nearer to the floor than this.
_MANY_ITEMS = 8192
_UNEVEN = 1e-4


def balance(
    costs_S: Sequence[float] | FloatArray,
    *,
    parts: int,
    equal_counts: bool = False,
    loads_P: Sequence[float] | FloatArray | None = None,
    speeds_P: Sequence[float] | FloatArray | None = None,
    tokens_S: Sequence[int] | IntArray | None = None,
    cap_tokens: int | None = None,
) -> list[list[int]] | None:
    """Split items into parts of near-equal time, where a part's time is (load + sum of its items' costs) / speed.

    Args:
        costs_S: cost of each item, in any unit; finite and not negative.
        parts: how many parts, at least 1.
        equal_counts: whether parts' counts of items may differ by at most one.
        loads_P: what each part costs before any item, in the unit of costs; None: nothing.
        speeds_P: speed of each part, above 0; None: 1.
        tokens_S: length of each item, not negative; given together with `cap_tokens`.
        cap_tokens: most tokens of a part; None: no cap.

    Returns:
        the items of each part, ascending. Parts are in the order given; where they are all alike, by descending sum.
        None where no arrangement was found that keeps the cap, which there can be without one.
    """
    homes_S = find_homes(
        costs_S,
        parts=parts,
        equal_counts=equal_counts,
        loads_P=loads_P,
        speeds_P=speeds_P,
        tokens_S=tokens_S,
        cap_tokens=cap_tokens,
    )
    return None if homes_S is None else items_of_parts(homes_S, parts=parts)


def find_homes(
    costs_S: Sequence[float] | FloatArray,
    *,
    parts: int,
    equal_counts: bool = False,
    loads_P: Sequence[float] | FloatArray | None = None,
    speeds_P: Sequence[float] | FloatArray | None = None,
    tokens_S: Sequence[int] | IntArray | None = None,
    cap_tokens: int | None = None,
) -> IntArray | None:
    """As `balance`; the part of each item instead of the items of each part."""
    costs = np.asarray(costs_S, dtype=np.float64)
    loads = np.zeros(parts) if loads_P is None else np.asarray(loads_P, dtype=np.float64)
    speeds = np.ones(parts) if speeds_P is None else np.asarray(speeds_P, dtype=np.float64)
    tokens = None if tokens_S is None else np.asarray(tokens_S, dtype=np.int64)
    _check(costs, parts, loads, speeds, tokens, cap_tokens)
    descending = np.argsort(-costs, kind="stable")
    task = PartitionTask(
        costs_S=costs[descending],
        loads_P=loads,
        speeds_P=speeds,
        equal_counts=equal_counts,
        tokens_S=None if tokens is None else tokens[descending],
        cap_tokens=0 if cap_tokens is None else cap_tokens,
    )
    arranged = _arrange(task)
    if arranged is None:
        return None
    homes_S = np.empty_like(arranged)
    homes_S[descending] = arranged
    return _by_descending_sum(homes_S, costs, parts) if task.are_alike else homes_S


def _check(
    costs: FloatArray, parts: int, loads: FloatArray, speeds: FloatArray, tokens: IntArray | None, cap: int | None
) -> None:
    assert parts >= 1, f"cannot split into {parts} parts"
    assert costs.ndim == 1, f"costs of shape {costs.shape}; one dimension is expected"
    assert loads.shape == (parts,), f"loads of shape {loads.shape} for {parts} parts"
    assert speeds.shape == (parts,), f"speeds of shape {speeds.shape} for {parts} parts"
    assert np.isfinite(8 * (costs.sum() + loads.sum())), "a cost or a load is not finite, or too large to be added up"
    assert costs.min(initial=0.0) >= 0, f"a cost is {costs.min()}; costs are not negative"
    assert loads.min() >= 0, f"a load is {loads.min()}; loads are not negative"
    assert np.isfinite(speeds).all(), "a speed is not finite"
    assert speeds.min() > 0, f"a speed is {speeds.min()}; speeds are positive"
    assert (tokens is None) == (cap is None), "tokens and their cap are given together"
    if tokens is not None:
        assert tokens.shape == costs.shape, f"{tokens.size} lengths for {costs.size} items"
        assert tokens.min(initial=0) >= 0, f"a length is {tokens.min()} tokens; lengths are not negative"


def _by_descending_sum(homes_S: IntArray, costs_S: FloatArray, parts: int) -> IntArray:
    """The same homes, parts renumbered. Of equal sums an empty one comes first, then that with the lowest item."""
    sums_P = np.bincount(homes_S, weights=costs_S, minlength=parts)
    first_P = np.full(parts, -1)
    first_P[homes_S[::-1]] = np.arange(homes_S.size)[::-1]
    number_P = np.empty(parts, dtype=np.int64)
    number_P[np.lexsort((first_P, -sums_P))] = np.arange(parts)
    return number_P[homes_S]


def _arrange(task: PartitionTask) -> IntArray | None:
    """The home of each item."""
    if task.tokens_S is None:
        return _arrange_freely(task)
    if task.tokens_S.max(initial=0) > task.cap_tokens or task.tokens_S.sum() > task.parts * task.cap_tokens:
        return None
    free = _arrange_freely(replace(task, tokens_S=None))
    if task.keeps_cap(free):
        return free
    if can_try_all(task):
        return try_all(task)
    return _arrange_under_cap(task)


def _arrange_freely(task: PartitionTask) -> IntArray:
    if task.parts == 1 or task.items == 0:
        return np.zeros(task.items, dtype=np.int64)
    if can_try_all(task):
        best = try_all(task)
        assert best is not None, "an arrangement without a cap always exists"
        return best
    start = deal(task)
    assert start is not None, "without a cap every item finds room"
    if task.are_alike and task.items <= _FEW_ITEMS:
        start = min(start, _difference(task), key=task.largest_time)
    best = even_out(task, start)
    is_uneven = task.largest_time(best) > task.floor_time * (1 + _UNEVEN)
    if task.are_alike and _FEW_ITEMS < task.items <= _MANY_ITEMS and is_uneven:
        best = min(best, even_out(task, _difference(task)), key=task.largest_time)
    return best


def _arrange_under_cap(task: PartitionTask) -> IntArray | None:
    starts = [deal(task)]
    if task.are_alike and task.items <= _FEW_ITEMS:
        starts.append(_difference(task))
    kept = [start for start in starts if start is not None and task.keeps_cap(start)]
    if kept:
        return even_out(task, min(kept, key=task.largest_time))
    for start in _starts_by_tokens(task):
        if start is not None and task.keeps_cap(start):
            return even_out(task, start)
    return None


def _difference(task: PartitionTask) -> IntArray:
    """Differencing, and swaps where no cap could be broken by them."""
    costs = task.costs_S.tolist()
    parts = split_by_differencing(costs, parts=task.parts, equal_counts=task.equal_counts)
    if task.tokens_S is None:
        parts = lower_heaviest_by_swaps(parts, costs)
    homes_S = np.empty(task.items, dtype=np.int64)
    for part, items in enumerate(parts):
        homes_S[items] = part
    return homes_S


def _starts_by_tokens(task: PartitionTask) -> Iterator[IntArray | None]:
    """Arrangements that look at tokens alone, and so are the likeliest to keep the cap."""
    assert task.tokens_S is not None, "no cap to keep"
    longest_first = np.argsort(-task.tokens_S, kind="stable")
    by_tokens = replace(
        task,
        costs_S=task.tokens_S[longest_first].astype(np.float64),
        loads_P=np.zeros(task.parts),
        speeds_P=np.ones(task.parts),
        tokens_S=None,
    )
    homes_S = np.empty(task.items, dtype=np.int64)
    homes_S[longest_first] = _arrange_freely(by_tokens)
    yield homes_S
    if not task.equal_counts:
        yield fit_tokens(task)
