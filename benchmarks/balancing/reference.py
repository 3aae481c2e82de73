"""What to compare with: methods written as plainly as can be, and peers where they are installed.

Each takes the costs of samples and a number of parts, and gives the sample indices of each part.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

__all__ = ["Split", "bound_s", "karmarkar_karp", "longest_first", "lower_by_swaps", "peers"]

Split = Callable[[Sequence[float], int], Sequence[Sequence[int]]]


def bound_s(costs: Sequence[float], parts: int, *, equal_counts: bool) -> float:
    """What the largest sum is at least.

    The mean; the costliest sample, with the cheapest that it needs for company where counts are equal; the cheapest
    two of the first parts + 1.
    """
    descending = sorted(costs, reverse=True)
    company = max(len(costs) // parts - 1, 0) if equal_counts else 0
    bounds = [sum(descending) / parts, descending[0] + sum(descending[len(costs) - company :])]
    if len(costs) > parts:
        bounds.append(descending[parts - 1] + descending[parts])
    return max(bounds)


def longest_first(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Each sample, the costliest first, to the part with the smallest sum so far."""
    heap = [(0.0, part) for part in range(parts)]
    split: list[list[int]] = [[] for _ in range(parts)]
    for sample in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        total, part = heapq.heappop(heap)
        split[part].append(sample)
        heapq.heappush(heap, (total + costs[sample], part))
    return split


class _Part:
    """Samples that stay together, and their sum."""

    def __init__(self, samples: Iterable[tuple[int, float]] = ()) -> None:
        self.samples = list(samples)
        self.total = sum(cost for _, cost in self.samples)

    def take(self, other: _Part) -> None:
        """Add the other one's samples to this one's."""
        for sample, cost in other.samples:
            self.samples.append((sample, cost))
            self.total += cost

    def __lt__(self, other: _Part) -> bool:
        return (self.total, len(self.samples), self.samples) < (other.total, len(other.samples), other.samples)


class _State:
    """As many parts as there are to be, by descending sum."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = sorted(parts, reverse=True)

    @property
    def spread(self) -> float:
        """Largest sum less smallest."""
        return self.parts[0].total - self.parts[-1].total

    def take(self, other: _State) -> None:
        """Join the other one's parts to this one's, the largest to the smallest."""
        for part, taken in zip(self.parts, reversed(other.parts), strict=True):
            part.take(taken)
        self.parts.sort(reverse=True)

    def __lt__(self, other: _State) -> bool:
        return self.spread > other.spread


def karmarkar_karp(costs: Sequence[float], parts: int, *, equal_counts: bool) -> list[list[int]]:
    """Karmarkar and Karp's differencing into k parts, as it is mostly written: a heap of states of k sums.

    Every merge of two states goes through k sums and all of their samples, and sorts the sums. Where counts are equal,
    states start with a sample in every part; the number of samples must then be a multiple of the parts.
    """
    ascending = sorted((cost, sample) for sample, cost in enumerate(costs))
    if equal_counts:
        assert len(costs) % parts == 0, f"{len(costs)} samples are no multiple of {parts} parts"
        groups = [ascending[start : start + parts] for start in range(0, len(costs), parts)]
    else:
        groups = [[pair] for pair in ascending]
    heap: list[_State] = []
    for group in groups:
        filled = [_Part([(sample, cost)]) for cost, sample in group]
        heapq.heappush(heap, _State(filled + [_Part() for _ in range(parts - len(group))]))
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        first.take(second)
        heapq.heappush(heap, first)
    return [[sample for sample, _ in part.samples] for part in heap[0].parts]


def lower_by_swaps(split: Sequence[Sequence[int]], costs: Sequence[float], *, pairs_budget: int) -> list[list[int]]:
    """Swap samples between the heaviest part and another while that helps, the lightest part first.

    Of all swaps between two parts the one that evens them most is made.

    Args:
        split: sample indices of each part.
        costs: of each sample.
        pairs_budget: how many pairs of parts to look at, at most.
    """
    parts = [list(part) for part in split]
    totals = [sum(costs[sample] for sample in part) for part in parts]
    while True:
        order = sorted(range(len(parts)), key=totals.__getitem__)
        heaviest = order.pop()
        for other in order:
            if pairs_budget == 0:
                return parts
            pairs_budget -= 1
            half = (totals[heaviest] - totals[other]) / 2
            distance, given, taken = min(
                (abs(costs[given] - costs[taken] - half), given, taken)
                for given in parts[heaviest]
                for taken in parts[other]
            )
            if distance < half * (1 - 1e-9):
                break
        else:
            return parts
        parts[heaviest][parts[heaviest].index(given)] = taken
        parts[other][parts[other].index(taken)] = given
        totals[heaviest] += costs[taken] - costs[given]
        totals[other] += costs[given] - costs[taken]


def peers(*, equal_counts: bool) -> tuple[dict[str, Split], list[str]]:
    """What other projects offer, by name and version; and a line on each that is missing, or cannot be imported."""
    found: dict[str, Split] = {}
    missing = []
    try:
        from verl.utils.seqlen_balancing import karmarkar_karp as verl_karmarkar_karp
    except ImportError as error:
        missing.append(f"verl is not measured, the plain Karmarkar-Karp stands for it: {error}")
    else:
        found[f"verl {version('verl')}"] = lambda costs, parts: verl_karmarkar_karp(list(costs), parts, equal_counts)
    try:
        import prtpy
    except ImportError as error:
        missing.append(f"prtpy is not measured: {error}")
    else:
        if not equal_counts:
            found[f"prtpy {version('prtpy')}"] = lambda costs, parts: prtpy.partition(
                algorithm=prtpy.partitioning.kk, numbins=parts, items=dict(enumerate(costs))
            )
    return found, missing
