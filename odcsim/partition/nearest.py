"""Which of one part's offers against which of another's: the exchange that moves nearest to what is wanted.

In each of Q pairs of parts, the first is the giver, who ends later, and the second the taker. Each makes K offers: sets
of its items, by what they cost. Exchanging offer i of the giver for offer j of the taker moves `offers[0, i] -
offers[1, j]` of work; the two would end together if just what is wanted were moved. The *distance* is how far from that
the later of the two ends, as work of the giver: x where x too little is moved (the giver is late), and x times
`overshoot`, the giver's speed over the taker's, where x too much is moved (the taker is late).

Legend: Q pairs of parts, 2 the giver and the taker, K offers of a part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from odcsim.arrays import FloatArray, IntArray

__all__ = ["Limits", "Nearest", "nearest_exchange", "nearest_exchange_under_cap"]


class Limits(NamedTuple):
    """How a cap limits the exchanges of each pair.

    Attributes:
        tokens_Q2K: tokens of the offers.
        room_Q2: tokens that a part may gain.
    """

    tokens_Q2K: IntArray
    room_Q2: IntArray


class Nearest(NamedTuple):
    """The best exchange of each pair.

    Attributes:
        distance_Q: what it leaves; infinite where the cap forbids every exchange.
        offer_Q2: numbers of the offers.
    """

    distance_Q: FloatArray
    offer_Q2: IntArray


def nearest_exchange(offers_Q2K: FloatArray, *, wanted_Q: FloatArray, overshoot_Q: FloatArray | None) -> Nearest:
    """The best exchange of each pair, in about K log K steps.

    Once the giver's offers are lowered by what is wanted, the best exchange is that of the two nearest offers of
    different sides. In ascending order of all offers they are neighbours: one between them would be nearer to that of
    the two which is not of its side.

    The side of an offer goes into the last bit of its value, so that values alone need sorting. That is several times
    as quick as sorting their numbers, and which of two equal values comes first cannot matter.

    Args:
        offers_Q2K: work of the offers; finite. The giver's are lowered in place.
        wanted_Q: work to move.
        overshoot_Q: weight of moving too much; None: 1 everywhere.
    """
    pairs, _, count = offers_Q2K.shape
    offers_Q2K[:, 0] -= wanted_Q[:, None]
    bits_Q2K = offers_Q2K.view(np.int64)
    bits_Q2K[:, 0] |= 1
    bits_Q2K[:, 1] &= ~1
    ascending = np.sort(offers_Q2K.reshape(pairs, 2 * count), axis=1)
    is_given = ascending.view(np.int64) & 1
    distances = ascending[:, 1:] - ascending[:, :-1]
    if overshoot_Q is not None:
        # Where the higher of two neighbours is the giver's, more is moved than wanted.
        distances *= np.where(is_given[:, 1:], overshoot_Q[:, None], 1.0)
    np.putmask(distances, is_given[:, 1:] == is_given[:, :-1], np.inf)
    row_Q = np.arange(pairs)
    lower_Q = distances.argmin(axis=1)
    # The giver's offer is the lower one of the neighbours or the one after it.
    taken_Q = lower_Q + is_given[row_Q, lower_Q]
    place_Q2 = np.stack([2 * lower_Q + 1 - taken_Q, taken_Q], axis=1)
    value_Q2 = ascending[row_Q[:, None], place_Q2]
    return Nearest(distances[row_Q, lower_Q], (offers_Q2K == value_Q2[:, :, None]).argmax(axis=2))


def nearest_exchange_under_cap(
    offers_Q2K: FloatArray, limits: Limits, *, wanted_Q: FloatArray, overshoot_Q: FloatArray | None
) -> Nearest:
    """The best exchange of each pair that leaves both parts within the cap, in about K^2 steps.

    Args:
        offers_Q2K: work of the offers; finite.
        limits: what the cap allows.
        wanted_Q: work to move.
        overshoot_Q: weight of moving too much; None: 1 everywhere.
    """
    pairs, _, count = offers_Q2K.shape
    missing = (wanted_Q[:, None] - offers_Q2K[:, 0])[:, :, None] + offers_Q2K[:, 1, None, :]
    excess = -missing if overshoot_Q is None else missing * -overshoot_Q[:, None, None]
    distances = np.maximum(missing, excess)
    gained = limits.tokens_Q2K[:, 0, :, None] - limits.tokens_Q2K[:, 1, None, :]  # tokens, by the taker
    too_much = gained > limits.room_Q2[:, 1, None, None]
    too_little = gained < -limits.room_Q2[:, 0, None, None]
    distances[too_much | too_little] = np.inf
    flat = distances.reshape(pairs, count * count)
    place_Q = flat.argmin(axis=1)
    return Nearest(flat[np.arange(pairs), place_Q], np.stack([place_Q // count, place_Q % count], axis=1))
