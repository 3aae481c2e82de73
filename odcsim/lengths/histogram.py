"""Histograms of lengths: what is left of a data set when only a figure of it was published.

File: a JSON object with `bin_edges` (E = B + 1 increasing numbers, in tokens) and `counts` (B numbers, not all zero);
`total`, if given, is their sum. Other keys are provenance, as in a trace's sidecar.

A bin holds the whole numbers from its lower edge up to, and without, its upper edge; the last bin holds its upper edge
too. Within a bin every length is equally likely: the figure says no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import InputError
from odcsim.lengths.limits import LONGEST_TOKENS
from odcsim.lengths.sidecar import JsonObject, read_json_object, synthetic_flag

__all__ = ["LengthHistogram", "read_histogram"]


@dataclass(frozen=True, eq=False)
class LengthHistogram:
    """A distribution of lengths by bins, of which every one with a count holds at least one whole number.

    Attributes:
        name: the file's name without its folder and suffix.
        first_B: the least length of each bin, in tokens.
        values_B: how many lengths the bin holds: `first_B` to `first_B + values_B - 1`.
        counts_B: samples in each bin; only their proportions matter.
        provenance: the file's content without its numbers.
        synthetic: whether the file declares the lengths to be made up.
    """

    name: str
    first_B: IntArray
    values_B: IntArray
    counts_B: FloatArray
    provenance: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False

    @property
    def mean(self) -> float:
        """Mean length of the distribution, in tokens."""
        middle_B = self.first_B + (self.values_B - 1) / 2
        return float(middle_B @ self.counts_B / self.counts_B.sum())

    @property
    def max(self) -> int:
        """The greatest length that can be drawn, in tokens."""
        return int((self.first_B + self.values_B)[self.counts_B > 0].max()) - 1

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw `count` lengths [count], in tokens, by inverting the distribution: one random number a length."""
        cumulative_B = np.cumsum(self.counts_B)
        position_S = rng.random(count) * cumulative_B[-1]
        # "right" steps over empty bins; a position never reaches the last sum, as the random number is below 1.
        bin_S = np.searchsorted(cumulative_B, position_S, side="right")
        share_S = 1.0 - (cumulative_B[bin_S] - position_S) / self.counts_B[bin_S]
        within_S = np.floor(np.clip(share_S, 0.0, 1.0) * self.values_B[bin_S]).astype(np.int64)
        lengths_S: IntArray = self.first_B[bin_S] + np.minimum(within_S, self.values_B[bin_S] - 1)
        return lengths_S


def read_histogram(path: Path, *, key: str | None = None) -> LengthHistogram:
    """Read a histogram of lengths.

    Args:
        path: the JSON file.
        key: the key that named the file, if any; it appears in the error when the file cannot be opened.

    Raises:
        InputError: the file cannot be read, or is no histogram; the text names the key at fault.
    """
    path = Path(path)
    facts = read_json_object(path, what="histogram of lengths", key=key)
    edges = _numbers(facts, "bin_edges", most=LONGEST_TOKENS, file=path)
    if len(edges) < 2 or any(low >= high for low, high in pairwise(edges)):
        raise InputError("must be two or more increasing numbers", file=path, key="bin_edges", value=edges)
    counts = _numbers(facts, "counts", most=1e18, file=path)
    if len(counts) != len(edges) - 1:
        raise InputError(
            f"must have one number a bin: {len(edges) - 1}, not {len(counts)}", file=path, key="counts", value=counts
        )
    if not any(counts):
        raise InputError("must not all be zero", file=path, key="counts", value=counts)
    total = facts.get("total", sum(counts))
    if not _is_number(total) or total > 2 * sum(counts) or not math.isclose(total, sum(counts)):
        raise InputError(f"must be the sum of the counts, {sum(counts)}", file=path, key="total", value=total)

    first_E = np.maximum(np.ceil(edges).astype(np.int64), 1)
    first_B = first_E[:-1]
    end_B = np.append(first_E[1:-1], math.floor(edges[-1]) + 1)
    values_B = end_B - first_B
    for index, (values, count) in enumerate(zip(values_B, counts, strict=True)):
        if count > 0 and values < 1:
            raise InputError(
                f"bin {index}, {edges[index]} to {edges[index + 1]}, has a count but holds no whole number above 0",
                file=path,
                key="bin_edges",
            )
    return LengthHistogram(
        name=path.stem,
        first_B=first_B,
        values_B=values_B,
        counts_B=np.array(counts, dtype=np.float64),
        provenance={name: fact for name, fact in facts.items() if name not in {"bin_edges", "counts"}},
        synthetic=synthetic_flag(facts, file=path),
    )


def _is_number(value: object) -> bool:
    # Whole numbers of any size pass here; comparing them with a bound is exact, converting them may overflow.
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _numbers(facts: JsonObject, name: str, *, most: float, file: Path) -> list[float]:
    if name not in facts:
        raise InputError("is missing: a histogram has 'bin_edges' and 'counts'", file=file, key=name)
    numbers = facts[name]
    if not isinstance(numbers, list):
        raise InputError("must be a list of numbers", file=file, key=name, value=numbers)
    for index, number in enumerate(numbers):
        if not _is_number(number) or not 0 <= number <= most:
            raise InputError(f"must be a number from 0 to {most:,.0f}", file=file, key=f"{name}.{index}", value=number)
    return numbers
