"""A rank's samples into as few microbatches as a bounded search finds.

Best fit of the longest first; where a lower bound says that fewer might do, differencing on tokens and a search that
tries every place of a sample, longest first, as long as its budget lasts.

A sample longer than the cap counts as one of cap tokens: either is alone. Ties are broken by sample index.

Invariant: no microbatch holds more tokens than the cap, unless it is a single sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.partition.best_fit import best_fit
from odcsim.partition.bounds import count_fewest_microbatches
from odcsim.partition.differencing import split_by_differencing
from odcsim.plan import Microbatch

__all__ = ["FewestPacker", "pack_fewest"]

# Places that the search tries for one count of microbatches: a few hundred microseconds.
_PLACES_TRIED = 400
# Samples given to differencing for one set: some 50 milliseconds.
_MOST_DIFFERENCED = 8192
# With more samples than these, short ones fill what longer ones leave, and best fit is as good as it gets.
_MOST_SEARCHED = 40


class FewestPacker:
    """Packs sets of samples of one minibatch, each set once."""

    def __init__(self, tokens_S: Sequence[int], *, cap_tokens: int, most_differenced: int = _MOST_DIFFERENCED) -> None:
        """Args: the lengths of all samples, and the cap, both in tokens; see `pack_fewest`."""
        self._tokens_S = tokens_S
        self._cap_tokens = cap_tokens
        self._most_differenced = most_differenced
        self._packed: dict[tuple[int, ...], tuple[Microbatch, ...]] = {}

    def pack(self, samples: Sequence[int]) -> tuple[Microbatch, ...]:
        """Microbatches of a rank that is to run these samples, in no particular order."""
        key = tuple(sorted(samples))
        if key not in self._packed:
            self._packed[key] = pack_fewest(
                key,
                tokens_S=self._tokens_S,
                cap_tokens=self._cap_tokens,
                most_differenced=self._most_differenced,
            )
        return self._packed[key]


def pack_fewest(
    samples: Sequence[int],
    *,
    tokens_S: Sequence[int],
    cap_tokens: int,
    most_differenced: int = _MOST_DIFFERENCED,
) -> tuple[Microbatch, ...]:
    """Microbatches for a set of samples, in no particular order; their samples ascend.

    Args:
        samples: sample indices.
        tokens_S: length of every sample of the minibatch.
        cap_tokens: most tokens of a microbatch.
        most_differenced: differencing is tried for one count after another as long as it is given no more samples in
            all.
    """
    longest_first = sorted(samples, key=lambda sample: (-tokens_S[sample], sample))
    tokens = [min(tokens_S[sample], cap_tokens) for sample in longest_first]
    bins = best_fit(tokens, cap_tokens=cap_tokens)
    fewest = count_fewest_microbatches(tokens, cap_tokens=cap_tokens) if len(bins) > 1 else 1
    for count in range(fewest, len(bins))[: most_differenced // max(len(tokens), 1)]:
        fewer = _by_differencing(tokens, cap_tokens, count)
        if fewer is None and len(tokens) <= _MOST_SEARCHED:
            fewer = _by_search(tokens, cap_tokens, count)
        if fewer is not None:
            bins = fewer
            break
    return tuple(tuple(sorted(longest_first[place] for place in places)) for places in bins)


def _by_differencing(tokens: Sequence[int], cap_tokens: int, count: int) -> list[list[int]] | None:
    parts = split_by_differencing([float(length) for length in tokens], parts=count, equal_counts=False)
    heaviest = max(sum([tokens[place] for place in part]) for part in parts)
    return parts if heaviest <= cap_tokens else None


def _by_search(tokens: Sequence[int], cap_tokens: int, count: int) -> list[list[int]] | None:
    """Depth first over the places of each sample in turn, the fullest microbatch first."""
    rooms = [cap_tokens] * count
    place_of: list[int] = []
    tried = 0

    def placed(sample: int) -> bool:
        nonlocal tried
        if sample == len(tokens):
            return True
        length, seen = tokens[sample], set()
        for number in sorted(range(count), key=rooms.__getitem__):
            room = rooms[number]
            # Microbatches of equal room are alike, whatever they hold.
            if room < length or room in seen:
                continue
            seen.add(room)
            tried += 1
            if tried > _PLACES_TRIED:
                return False
            rooms[number] -= length
            place_of.append(number)
            if placed(sample + 1):
                return True
            place_of.pop()
            rooms[number] += length
        return False

    if not placed(0):
        return None
    bins: list[list[int]] = [[] for _ in range(count)]
    for sample, number in enumerate(place_of):
        bins[number].append(sample)
    return [places for places in bins if places]
