"""A rank's samples into microbatches: near-equal cost by differencing, with the token cap as a hard postcondition.

The number of microbatches starts at the fewest that could hold the samples and grows by one, or by a small share where
they are many, until no microbatch breaks the cap. That ends, at the latest when every sample is alone.

A sample longer than the cap (its user has allowed that) gets a microbatch of its own; it counts as a sample of cap
tokens wherever microbatches are counted. The other samples are packed as if it were not there.

Invariants: no microbatch holds more tokens than the cap, unless it is a single sample; microbatches run by descending
cost, so that those of equal position on different ranks, which meet in a collective, are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.partition.bounds import count_fewest_microbatches
from odcsim.partition.differencing import split_by_differencing
from odcsim.plan import Microbatch

__all__ = ["pack_rank", "pack_ranks_alike"]

# More microbatches than these grow by more than one, so that tries stay few.
_MANY = 64


def pack_rank(
    samples: Sequence[int], *, costs_S: Sequence[float], tokens_S: Sequence[int], cap_tokens: int
) -> tuple[Microbatch, ...]:
    """One rank's microbatches, as few as differencing can make.

    Args:
        samples: the rank's sample indices.
        costs_S: cost of every sample of the minibatch, in any unit.
        tokens_S: length of every sample of the minibatch.
        cap_tokens: most tokens of a microbatch.
    """
    return pack_ranks_alike([samples], costs_S=costs_S, tokens_S=tokens_S, cap_tokens=cap_tokens)[0]


def pack_ranks_alike(
    ranks: Sequence[Sequence[int]], *, costs_S: Sequence[float], tokens_S: Sequence[int], cap_tokens: int
) -> tuple[tuple[Microbatch, ...], ...]:
    """Every rank's microbatches, the count agreed between them: the smallest with which all ranks keep the cap.

    Of counts from 128 on, those up to a 64th above it are not told apart.

    A rank with fewer samples than the agreed count runs each of them alone, and so has fewer microbatches than the
    others.

    Args:
        ranks: for each rank, its sample indices.
        costs_S: cost of every sample of the minibatch, in any unit.
        tokens_S: length of every sample of the minibatch.
        cap_tokens: most tokens of a microbatch.
    """
    count = max(
        (
            count_fewest_microbatches([tokens_S[sample] for sample in samples], cap_tokens=cap_tokens)
            for samples in ranks
        ),
        default=0,
    )
    while True:
        packed: list[tuple[Microbatch, ...]] = []
        for samples in ranks:
            microbatches = _split(samples, count, costs_S=costs_S, tokens_S=tokens_S, cap_tokens=cap_tokens)
            if microbatches is None:
                break
            packed.append(microbatches)
        else:
            return tuple(packed)
        count += max(count // _MANY, 1)


def _split(
    samples: Sequence[int], count: int, *, costs_S: Sequence[float], tokens_S: Sequence[int], cap_tokens: int
) -> tuple[Microbatch, ...] | None:
    """At most `count` microbatches; None where differencing breaks the cap with that many."""
    bins = [[sample] for sample in samples if tokens_S[sample] > cap_tokens]
    rest = [sample for sample in samples if tokens_S[sample] <= cap_tokens]
    if rest:
        costs = [costs_S[sample] for sample in rest]
        for part in split_by_differencing(costs, parts=count - len(bins), equal_counts=False):
            chosen = [rest[position] for position in part]
            if sum([tokens_S[sample] for sample in chosen]) > cap_tokens:
                return None
            if chosen:
                bins.append(chosen)
    keyed = sorted((-sum([costs_S[sample] for sample in chosen]), sorted(chosen)) for chosen in bins)
    return tuple(tuple(chosen) for _, chosen in keyed)
