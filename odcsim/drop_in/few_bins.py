"""Few bins under a cap, for as many samples as a data set has.

First every sample, the longest first, goes into the fullest bin that still has room for it (`best_fit`). Where a lower
bound says that fewer bins might do, samples are also dealt out to blocks of like lengths, and each block is balanced
over fewer bins than best fit needs for it, as few as keep the cap; a bisection finds how few.

Invariants: no bin holds more than the cap; every sample is in exactly one; never more bins than best fit alone needs;
ties are broken by the order of the samples.

Legend: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.partition.balance import balance
from odcsim.partition.best_fit import best_fit
from odcsim.partition.bounds import count_fewest_microbatches

__all__ = ["pack_few_bins"]

# Larger blocks of shipped traces took up to twice the time and hardly fewer bins; smaller ones waste more, as each ends
# with a bin that is not full.
_BLOCK_SAMPLES = 1024


def pack_few_bins(tokens_S: Sequence[int], *, cap_tokens: int) -> list[list[int]]:
    """Bins of samples, in time that hardly grows faster than their number.

    Args:
        tokens_S: samples' lengths, from 1 to the cap.
        cap_tokens: most tokens of a bin.

    Returns:
        bins in the order of their first samples, each with its sample indices ascending. They number at most 11/9 of
        the fewest possible and 4 more, as best fit does (Johnson and others, 1974).
    """
    longest_first = sorted(range(len(tokens_S)), key=lambda sample: (-tokens_S[sample], sample))
    bins = _fitted(longest_first, tokens_S, cap_tokens)
    if len(bins) > count_fewest_microbatches(tokens_S, cap_tokens=cap_tokens):
        blocks = -(-len(tokens_S) // _BLOCK_SAMPLES)
        balanced = [
            samples
            for block in range(blocks)
            for samples in _balanced(longest_first[block::blocks], tokens_S, cap_tokens)
        ]
        bins = min(bins, balanced, key=len)
    return sorted(sorted(samples) for samples in bins)


def _fitted(longest_first: Sequence[int], tokens_S: Sequence[int], cap_tokens: int) -> list[list[int]]:
    """Best fit's bins."""
    fitted = best_fit([tokens_S[sample] for sample in longest_first], cap_tokens=cap_tokens)
    return [[longest_first[place] for place in places] for places in fitted]


def _balanced(longest_first: Sequence[int], tokens_S: Sequence[int], cap_tokens: int) -> list[list[int]]:
    """Best fit's bins, or fewer if balancing keeps the cap with fewer."""
    bins = _fitted(longest_first, tokens_S, cap_tokens)
    tokens = [tokens_S[sample] for sample in longest_first]
    fewest = count_fewest_microbatches(tokens, cap_tokens=cap_tokens)
    while fewest < len(bins):
        count = (fewest + len(bins)) // 2
        parts = balance(tokens, parts=count, tokens_S=tokens, cap_tokens=cap_tokens)
        if parts is None:
            fewest = count + 1
        else:
            bins = [[longest_first[place] for place in places] for places in parts if places]
    return bins
