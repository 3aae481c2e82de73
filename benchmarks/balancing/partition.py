"""Splitting samples into parts: how even, how quickly, against plain methods and peers in the same run.

Evenness is the largest sum over a bound that no split is below. References are slow: they run on fewer seeds the larger
the minibatch. Times are the processor's, so that what else the machine does weighs less. Ours are the best of several
runs on one minibatch, those of others of one run. Collecting garbage is part of them, as it is in use: differencing
makes so many lists that with collection off it takes a third to a half of the time.

Required: never less even than Karmarkar-Karp, nor than 1.0001 times Karmarkar-Karp with swaps; within the time limit of
the size; and, with free counts, 50 times as quick as verl's Karmarkar-Karp from 1024 samples on, or as the plain one
where verl is not installed. With equal counts differencing has no more states to merge than a part has samples, so that
it is quick in any implementation: the ratio is printed, and nothing is required of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from time import process_time

from balancing.reference import Split, bound_s, karmarkar_karp, longest_first, lower_by_swaps, peers
from balancing.settings import SEEDS, SIZES, TRACES, Size, draw_costs_S
from odcsim.partition.balance import balance

__all__ = ["sections"]

OURS = "odcsim balance"
PLAIN = "Karmarkar-Karp"
SWAPPED = "Karmarkar-Karp + swaps"
LONGEST_FIRST = "longest first"
RUNS = 5
PAIRS_PER_PART = 64

MOST_OVER_SWAPPED = 1.0001
LEAST_SPEEDUP = 50
SPEEDUP_FROM_SAMPLES = 1024
ROUNDING = 1e-12

QUICK_SAMPLES = 1024
QUICK_TRACES = TRACES[::3]
QUICK_SEEDS = SEEDS[:2]


@dataclass
class Measured:
    """One method on minibatches, known by trace and seed.

    Attributes:
        evenness: largest sum over bound.
        took_s: seconds of one split.
    """

    evenness: dict[tuple[str, int], float] = field(default_factory=dict)
    took_s: dict[tuple[str, int], float] = field(default_factory=dict)


def sections(*, quick: bool = False) -> Iterator[str]:
    """One block of lines for each size, with free and with equal counts.

    Args:
        quick: a few traces and seeds, of up to 1024 samples.
    """
    yield "\n".join(["splitting samples into parts", *peers(equal_counts=False)[1]])
    for size in SIZES:
        if quick and size.samples > QUICK_SAMPLES:
            continue
        for equal_counts in (False, True):
            measured = measure(size, methods(equal_counts=equal_counts), equal_counts=equal_counts, quick=quick)
            counts = "equal" if equal_counts else "free"
            lines = [f"{size}, {counts} counts, {len(measured[OURS].took_s)} minibatches"]
            lines += [describe(name, measured) for name in measured]
            lines += [f"  MISSED: {miss}" for miss in misses(size, measured, equal_counts=equal_counts)]
            yield "\n".join(lines)


def methods(*, equal_counts: bool) -> dict[str, Split]:
    """What is measured, ours first."""
    chosen: dict[str, Split] = {
        OURS: lambda costs, parts: balance(costs, parts=parts, equal_counts=equal_counts) or [],
        PLAIN: lambda costs, parts: karmarkar_karp(costs, parts, equal_counts=equal_counts),
        SWAPPED: lambda costs, parts: lower_by_swaps(
            karmarkar_karp(costs, parts, equal_counts=equal_counts), costs, pairs_budget=PAIRS_PER_PART * parts
        ),
    }
    if not equal_counts:
        chosen[LONGEST_FIRST] = longest_first
    return chosen | peers(equal_counts=equal_counts)[0]


def measure(size: Size, chosen: dict[str, Split], *, equal_counts: bool, quick: bool) -> dict[str, Measured]:
    """Every method on the minibatches of a size."""
    measured = {name: Measured() for name in chosen}
    reference_seeds = 1 if size.samples > 1024 else 2 if size.samples > 256 else len(SEEDS)
    for trace in QUICK_TRACES if quick else TRACES:
        for seed in QUICK_SEEDS if quick else SEEDS:
            costs = draw_costs_S(trace, samples=size.samples, seed=seed).tolist()
            bound = bound_s(costs, size.parts, equal_counts=equal_counts)
            for name, split in chosen.items():
                if name != OURS and seed >= reference_seeds:
                    continue
                answer, took_s = timed(split, costs, size.parts, runs=RUNS if name == OURS else 1)
                measured[name].took_s[trace, seed] = took_s
                largest = max(sum(costs[sample] for sample in part) for part in answer)
                measured[name].evenness[trace, seed] = largest / bound
    return measured


def timed(split: Split, costs: list[float], parts: int, *, runs: int) -> tuple[Sequence[Sequence[int]], float]:
    """An answer, and the shortest time of several runs, in seconds."""
    took_s = []
    for _ in range(runs):
        start = process_time()
        answer = split(costs, parts)
        took_s.append(process_time() - start)
    return answer, min(took_s)


def describe(name: str, measured: dict[str, Measured]) -> str:
    """One line on a method: how even, how quick, and how long it takes beside ours."""
    took_s, evenness = measured[name].took_s, measured[name].evenness
    line = (
        f"  {name:24} max/bound: mean {mean(evenness.values()):.6f}, worst {max(evenness.values()):.6f}; "
        f"{1000 * mean(took_s.values()):9.3f} ms, longest {1000 * max(took_s.values()):9.3f} ms"
    )
    return line if name == OURS else f"{line} ({slowness(name, measured):.1f} x ours, on {len(took_s)} minibatches)"


def slowness(name: str, measured: dict[str, Measured]) -> float:
    """Time of a method over ours, on the minibatches that both ran."""
    took_s = measured[name].took_s
    return sum(took_s.values()) / sum(measured[OURS].took_s[minibatch] for minibatch in took_s)


def misses(size: Size, measured: dict[str, Measured], *, equal_counts: bool) -> Iterator[str]:
    """Requirements that do not hold."""
    ours = measured[OURS]
    for name, most in ((PLAIN, 1 + ROUNDING), (SWAPPED, MOST_OVER_SWAPPED)):
        for (trace, seed), evenness in measured[name].evenness.items():
            ratio = ours.evenness[trace, seed] / evenness
            if ratio > most:
                yield f"{ratio:.6f} times the largest sum of {name} on {trace}, seed {seed}; at most {most:.4f}"
    longest_ms = 1000 * max(ours.took_s.values())
    if size.limit_ms is not None and longest_ms > size.limit_ms:
        yield f"{longest_ms:.2f} ms; at most {size.limit_ms:g} ms"
    peer = next((name for name in measured if name.startswith("verl ")), PLAIN)
    speedup = slowness(peer, measured)
    if not equal_counts and size.samples >= SPEEDUP_FROM_SAMPLES and speedup < LEAST_SPEEDUP:
        yield f"{speedup:.1f} times as quick as {peer}; at least {LEAST_SPEEDUP} times"
