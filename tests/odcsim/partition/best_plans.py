"""The best of all plans of a handful of samples, found by trying every way of splitting every set of them.

Sets of samples are bit masks. Nothing here is shared with the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from odcsim.costs.token_cost import TokenCost


def least_busiest_rank_s(tokens: Sequence[int], cost: TokenCost, cap_tokens: int, speeds: Sequence[float]) -> float:
    """The busiest rank's time under the best plan for `odc`."""
    work, fits = _work(tokens, cost), _fits(tokens, cap_tokens)

    @cache
    def microbatches(chosen: int) -> int:
        if not chosen:
            return 0
        return min(1 + microbatches(chosen ^ part) for part in _parts_with_the_first(chosen) if fits[part])

    @cache
    def least_s(left: int, rank: int) -> float:
        if rank == len(speeds):
            return float("inf") if left else 0.0
        return min(
            max((work[mine] + cost.constant * microbatches(mine)) / speeds[rank], least_s(left ^ mine, rank + 1))
            for mine in _subsets(left)
        )

    return least_s((1 << len(tokens)) - 1, 0)


def least_lockstep_s(tokens: Sequence[int], cost: TokenCost, cap_tokens: int, ranks: int) -> float:
    """The sum over steps of the longest microbatch under the best plan for `fsdp`."""
    work, fits = _work(tokens, cost), _fits(tokens, cap_tokens)

    @cache
    def height_s(chosen: int, microbatches: int) -> float:
        if not chosen:
            return 0.0
        if not microbatches:
            return float("inf")
        return min(
            max(work[part], height_s(chosen ^ part, microbatches - 1)) if fits[part] else float("inf")
            for part in _parts_with_the_first(chosen)
        )

    @cache
    def least_s(left: int) -> float:
        if not left:
            return 0.0
        return min(height_s(step, ranks) + cost.constant + least_s(left ^ step) for step in _parts_with_the_first(left))

    return least_s((1 << len(tokens)) - 1)


def _work(tokens: Sequence[int], cost: TokenCost) -> list[float]:
    costs = [cost.quadratic * length**2 + cost.linear * length for length in tokens]
    return [sum(_members(costs, chosen)) for chosen in range(1 << len(tokens))]


def _fits(tokens: Sequence[int], cap_tokens: int) -> list[bool]:
    """Whether samples may share a microbatch; one alone always may."""
    return [
        chosen.bit_count() == 1 or sum(_members(tokens, chosen)) <= cap_tokens for chosen in range(1 << len(tokens))
    ]


def _members(values: Sequence[float], chosen: int) -> list[float]:
    return [value for sample, value in enumerate(values) if chosen >> sample & 1]


def _subsets(chosen: int) -> Iterator[int]:
    part = chosen
    while part:
        yield part
        part = (part - 1) & chosen
    yield 0


def _parts_with_the_first(chosen: int) -> Iterator[int]:
    """The subsets that hold the first sample of those chosen, so that no split is tried in two orders."""
    first = chosen & -chosen
    return (first | part for part in _subsets(chosen ^ first))
