"""The order in which ranks leave a collective, where they do not all leave at once.

It changes from one collective to the next, and has nothing to do with how long ranks compute. On real hosts it is
chance; here it is drawn once and for all, so that the same input gives the same outcome.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from odcsim.arrays import FloatArray

__all__ = ["leaving_shares"]

# So many orders are used in turn. A prime: no order belongs to one place in a microbatch.
_ORDERS = 251
_ORDERS_KEY = 0x1EA


def leaving_shares(ranks: int, *, collective: int, lag: float) -> FloatArray:
    """How much later than in the mean each rank leaves, as a share of the collective's time; shape (ranks,).

    Evenly spread from -lag for the first to lag for the last; nobody leaves before the transfer starts (-1).

    Args:
        ranks: how many leave.
        collective: its number in the minibatch, among those of its kind.
        lag: of the last rank.
    """
    shares_W: FloatArray = np.maximum(lag * _places_W(ranks, collective % _ORDERS), -1.0)
    return shares_W


@lru_cache(maxsize=_ORDERS)
def _places_W(ranks: int, order: int) -> FloatArray:
    """From -1 for the first to 1 for the last."""
    places_W = np.linspace(-1.0, 1.0, ranks) if ranks > 1 else np.zeros(1)
    entropy = np.random.SeedSequence([_ORDERS_KEY, ranks, order])
    drawn_W: FloatArray = np.random.Generator(np.random.PCG64(entropy)).permutation(places_W)
    return drawn_W
