"""What balancing is tested against: all arrangements of a tiny case, longest first, and costs of many shapes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import numpy as np

SHAPES = ["log-normal", "squared", "uniform", "two kinds", "few values", "pareto"]


def shaped_costs(shape: str, count: int, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    match shape:
        case "log-normal":
            costs = rng.lognormal(0.0, 1.0, count)
        case "squared":
            costs = rng.lognormal(0.0, 0.8, count) ** 2
        case "uniform":
            costs = rng.uniform(1.0, 2.0, count)
        case "two kinds":
            costs = np.where(rng.random(count) < 0.1, 40.0, 1.0) + rng.uniform(0.0, 0.1, count)
        case "few values":
            costs = rng.integers(1, 5, count).astype(np.float64)
        case "pareto":
            costs = np.minimum(rng.pareto(1.2, count), 50.0)
        case _:
            raise AssertionError(shape)
    return costs.tolist()


def sums(answer: Sequence[Sequence[int]], costs: Sequence[float]) -> list[float]:
    return [sum(costs[item] for item in part) for part in answer]


def largest_time(
    answer: Sequence[Sequence[int]],
    costs: Sequence[float],
    loads: Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
) -> float:
    loads = loads or [0.0] * len(answer)
    speeds = speeds or [1.0] * len(answer)
    return max((load + total) / speed for load, total, speed in zip(loads, sums(answer, costs), speeds, strict=True))


def best_largest_time(
    costs: Sequence[float],
    *,
    loads: Sequence[float],
    speeds: Sequence[float],
    equal_counts: bool,
    tokens: Sequence[int] | None = None,
    cap: int = 0,
) -> float:
    """The optimum, by trying everything; infinite where the cap leaves no arrangement."""
    parts = len(loads)
    best = float("inf")
    for homes in itertools.product(range(parts), repeat=len(costs)):
        answer = [[item for item, home in enumerate(homes) if home == part] for part in range(parts)]
        counts = [len(part) for part in answer]
        if equal_counts and max(counts) - min(counts) > 1:
            continue
        if tokens is not None and any(sum(tokens[item] for item in part) > cap for part in answer):
            continue
        best = min(best, largest_time(answer, costs, loads, speeds))
    return best


def longest_first(costs: Sequence[float], parts: int) -> float:
    """The largest sum when each item, the costliest first, goes to the part with the smallest sum."""
    totals = [0.0] * parts
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(totals, totals[0] + cost)
    return max(totals)
