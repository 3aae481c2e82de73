"""What is said about a set of lengths, their scaling, and the cut to a data set's longest. Unit: tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.lengths.limits import LONGEST_TOKENS

__all__ = ["LengthStatistics", "cut", "describe_lengths", "scaled"]


class LengthStatistics(TypedDict):
    """Statistics of lengths as plain numbers, ready for JSON; all in tokens but `count` and `cv`."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    cv: float


def describe_lengths(lengths: IntArray | Sequence[int]) -> LengthStatistics:
    """Count, mean, quantiles, maximum and coefficient of variation of lengths.

    Args:
        lengths: tokens, in an array of any shape.

    Returns:
        Quantiles are interpolated linearly between neighbours; `cv` is the population's standard deviation divided by
        the mean.

    Raises:
        InputError: there are no lengths.
    """
    lengths_S = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if lengths_S.size == 0:
        raise InputError("there are no lengths to describe; at least one is needed")
    p50, p90, p99 = (float(quantile) for quantile in np.quantile(lengths_S, [0.5, 0.9, 0.99]))
    mean = int(lengths_S.sum()) / lengths_S.size
    return LengthStatistics(
        count=lengths_S.size,
        mean=mean,
        p50=p50,
        p90=p90,
        p99=p99,
        max=int(lengths_S.max()),
        cv=float(lengths_S.std()) / mean,
    )


def scaled(lengths: IntArray | Sequence[int], *, scale: float, file: object | None = None) -> IntArray:
    """Lengths times a factor, rounded, 1 token at least; an array of the same shape.

    Raises:
        InputError: the longest would be longer than any sequence.
    """
    multiplied = np.rint(np.asarray(lengths, dtype=np.float64) * scale)
    longest = float(multiplied.max(initial=1.0))
    if not longest <= LONGEST_TOKENS:
        raise InputError(
            f"makes sequences of {longest:.4g} tokens; at most {LONGEST_TOKENS}",
            file=file,
            key="workload.length_scale",
            value=scale,
        )
    return np.maximum(multiplied, 1.0).astype(np.int64)


def cut(lengths: IntArray | Sequence[int], *, cut_tokens: int) -> IntArray:
    """Lengths after truncation: none is longer than `cut_tokens`; an array of the same shape.

    Raises:
        InputError: `cut_tokens` is below 1.
    """
    if cut_tokens < 1:
        raise InputError("lengths can be cut to 1 token or more", key="cut_tokens", value=cut_tokens)
    return np.minimum(np.asarray(lengths, dtype=np.int64), cut_tokens)
