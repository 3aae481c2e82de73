"""A data set as a sampler sees it: the lengths of its samples, and the order in which every epoch goes through them.

Invariants:
    an epoch's order holds every sample once, and follows from the lengths' number, the seed and the group size alone;
    with shuffling, epoch after epoch hands out what `odcsim.lengths` draws from a trace of the same lengths and seed.

Unit: tokens. Legend: N samples of the data set, G groups of samples that stay together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from odcrt.data.checks import whole_number
from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.lengths import LONGEST_TOKENS

__all__ = ["DatasetOrder"]

# odcsim.lengths.source keeps lengths apart by this key from whatever else is drawn from a seed.
_SPAWN_KEY = (0x6C656E,)


class DatasetOrder:
    """The lengths and the order of the samples, epoch by epoch.

    Attributes:
        lengths_N: tokens of each sample.
        seed: of the shuffling.
        shuffle: whether each epoch has an order of its own; otherwise each has the data set's.
        group_size: consecutive samples that stay together.
    """

    def __init__(self, lengths: Sequence[int] | IntArray, *, seed: int, shuffle: bool, group_size: int) -> None:
        """Check the data set.

        Raises:
            InputError: no samples, a length that is no whole number or out of range, or another value that is.
        """
        self.lengths_N = _checked(lengths)
        self.seed = whole_number("seed", seed, least=0)
        self.shuffle = shuffle
        self.group_size = whole_number("group_size", group_size, least=1, most=self.lengths_N.size)
        self._fingerprint = hashlib.blake2b(self.lengths_N.astype("<i8").tobytes(), digest_size=16).hexdigest()
        self._latest: tuple[int, IntArray] | None = None

    def of_epoch(self, epoch: int) -> IntArray:
        """The samples of an epoch, as indices into the data set."""
        if self._latest is None or self._latest[0] != epoch:
            self._latest = (epoch, self._shuffled(epoch) if self.shuffle else np.arange(self.lengths_N.size))
        return self._latest[1]

    def _shuffled(self, epoch: int) -> IntArray:
        starts_G = np.arange(0, self.lengths_N.size, self.group_size, dtype=np.int64)
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=_SPAWN_KEY))
        # Each epoch takes one random number a group, so that any epoch is found without those before it.
        bits.advance(epoch * starts_G.size)
        keys_G = np.random.Generator(bits).random(starts_G.size)
        chosen_G = starts_G[np.argsort(keys_G, kind="stable")]
        places_N = (chosen_G[:, None] + np.arange(self.group_size)).reshape(-1)
        # The last group of the data set may be a smaller one.
        return places_N[places_N < self.lengths_N.size]

    def identity(self) -> dict[str, int | bool | str]:
        """All that the order follows from, and the lengths by a fingerprint."""
        return {
            "samples": self.lengths_N.size,
            "lengths_fingerprint": self._fingerprint,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "group_size": self.group_size,
        }


def _checked(lengths: Sequence[int] | IntArray) -> IntArray:
    try:
        lengths_N = np.asarray(lengths)
    except (TypeError, ValueError):
        raise InputError("must be whole numbers in one row", key="lengths", value=lengths) from None
    if lengths_N.size == 0:
        raise InputError("the data set has no samples", key="lengths", value=[])
    if lengths_N.ndim != 1 or not np.issubdtype(lengths_N.dtype, np.integer):
        raise InputError("must be whole numbers in one row", key="lengths", value=lengths)
    wrong_N = (lengths_N < 1) | (lengths_N > LONGEST_TOKENS)
    if wrong_N.any():
        sample = int(wrong_N.argmax())
        raise InputError(
            f"a sample must have from 1 to {LONGEST_TOKENS} tokens",
            key=f"lengths[{sample}]",
            value=int(lengths_N[sample]),
        )
    # A copy: what the caller does to its own later must not change plans on one rank alone.
    return lengths_N.astype(np.int64)
