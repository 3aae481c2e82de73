"""Bins of whole samples up to a sequence length, as TRL's packing makes them of a data set.

As its best-fit decreasing strategies do, this fills rows of `seq_length` tokens with samples; a sample is never split
over two rows. What happens to one that is longer than a row is said by the caller and counted.

Invariants: every sample is in exactly one bin or among the dropped; no bin holds more than `seq_length` tokens, unless
it is a single sample under `own-microbatch`; tokens in = tokens in bins + dropped + cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.arrays import IntArray
from odcsim.drop_in.few_bins import pack_few_bins
from odcsim.drop_in.inputs import lengths_S_of, whole_number
from odcsim.policies import Oversize, apply_oversize
from odcsim.results import Conservation

__all__ = ["Packing", "pack_indices"]


@dataclass(frozen=True)
class Packing:
    """A data set in bins.

    Attributes:
        bins: sample indices of each bin, ascending; bins in the order of their first samples.
        lengths: every sample's tokens as it is packed; 0 for a dropped one.
        seq_length: tokens of a row.
        conservation: where samples and tokens went: in = run + dropped, and cut off for tokens.
    """

    bins: list[list[int]]
    lengths: list[int]
    seq_length: int
    conservation: Conservation

    @property
    def seq_lengths(self) -> list[list[int]]:
        """For each bin the lengths of its samples, in its order: TRL's column of that name."""
        return [[self.lengths[sample] for sample in samples] for samples in self.bins]

    @property
    def dropped(self) -> list[int]:
        """Samples that are in no bin, ascending."""
        return [sample for sample, tokens in enumerate(self.lengths) if tokens == 0]

    @property
    def slots(self) -> int:
        """Tokens that the rows have room for: `seq_length` each, or its length for a longer sample on its own."""
        return sum(max(self.seq_length, sum(lengths)) for lengths in self.seq_lengths)

    @property
    def filled(self) -> float:
        """Share of the slots that hold tokens; 1 where there are none."""
        return self.conservation.run_tokens / self.slots if self.bins else 1.0


def pack_indices(lengths: Sequence[int] | IntArray, seq_length: int, *, oversize: Oversize = "error") -> Packing:
    """Pack samples into few rows.

    Args:
        lengths: samples' lengths in tokens, at least 1 each; any number of samples, none included.
        seq_length: most tokens of a row.
        oversize: what happens to a sample of more: `error`; `truncate`, which leaves the cutting to whoever makes the
            rows (`Packing.lengths`); `drop`; `own-microbatch`, which gives it a longer row of its own.

    Raises:
        InputError: a value that is not allowed.
        PolicyError: a longer sample under `oversize="error"`; the first one is named.
    """
    lengths_S = lengths_S_of(lengths)
    row_tokens = whole_number("seq_length", seq_length, least=1)
    result = apply_oversize(lengths_S, cap_tokens=row_tokens, oversize=oversize)
    kept = np.flatnonzero(result.lengths_S)
    # A longer sample that may run counts as a full row, so that nothing goes with it.
    packed = pack_few_bins(np.minimum(result.lengths_S[kept], row_tokens).tolist(), cap_tokens=row_tokens)
    return Packing(
        bins=[[int(kept[place]) for place in places] for places in packed],
        lengths=result.lengths_S.tolist(),
        seq_length=row_tokens,
        conservation=Conservation(
            samples=lengths_S.size,
            dropped_samples=len(result.dropped),
            tokens=int(lengths_S.sum()),
            dropped_tokens=result.dropped_tokens,
            truncated_tokens=result.truncated_tokens,
        ),
    )
