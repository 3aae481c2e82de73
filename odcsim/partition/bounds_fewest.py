"""How many microbatches samples need at least, whoever packs them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["count_fewest_microbatches"]


def count_fewest_microbatches(tokens_S: Sequence[int], *, cap_tokens: int) -> int:
    """Microbatches that samples need at least, whoever packs them.

    The largest of two counts, over every i; s is the length of the i-th longest, which stands for short.
    1. ceil(i / floor(cap / s)): at most floor(cap / s) of the i longest share a microbatch.
    2. Of the i longest, those of more than cap - s tokens each have a microbatch without any other of the i. The others
       of the i fill ceil(their tokens / cap) more. For the shortest s this is at least ceil(all tokens / cap).

    A sample over the cap counts as one of cap tokens: either is alone.

    Source: 2. is the bound of Martello and Toth (Lower bounds and reduction procedures for the bin packing problem,
    1990).

    Args:
        tokens_S: lengths, at least 1.
        cap_tokens: most tokens of a microbatch, at least 1.
    """
    capped = sorted([min(tokens, cap_tokens) for tokens in tokens_S], reverse=True)
    fewest = 0
    lone = len(capped)  # how many are too long to share with one of the length looked at
    longest_tokens = 0  # of the samples up to the one looked at
    lone_tokens = sum(capped)
    for place, tokens in enumerate(capped, start=1):
        longest_tokens += tokens
        while lone and capped[lone - 1] + tokens <= cap_tokens:
            lone -= 1
            lone_tokens -= capped[lone]
        if lone < place:
            needed = lone - (lone_tokens - longest_tokens) // cap_tokens
            fewest = max(fewest, needed)
            if fewest * (cap_tokens // tokens) < place:
                fewest = -(-place // (cap_tokens // tokens))
        else:
            # No two of the samples so far share a microbatch.
            fewest = place
    return fewest
