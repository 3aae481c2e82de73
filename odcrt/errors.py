"""Errors of a run, under the tree of `odcsim.errors`.

    RunError (odcsim.errors)
    ├── RankLost           the process of a rank has ended
    ├── PeerFailed         another rank has reported an error, and ended its run
    ├── DeadlineExceeded   ranks did not arrive where the others wait for them
    ├── StaleRead          what was read does not belong to this minibatch
    ├── LayoutMismatch     FSDP2 does not hand over what was published
    └── OutsideMinibatch   a forward, a backward or a pull outside of `minibatch()`

A `HiddenCollectiveWarning` tells of what will become a `DeadlineExceeded` one day.

Each names the rank that is at fault and what it did last.
"""

from __future__ import annotations

from odcsim.errors import RunError

__all__ = [
    "DeadlineExceeded",
    "HiddenCollectiveWarning",
    "LayoutMismatch",
    "OutsideMinibatch",
    "PeerFailed",
    "RankLost",
    "StaleRead",
]


class RankLost(RunError):
    """The process of a rank has ended without a word: killed, most likely."""


class PeerFailed(RunError):
    """Another rank has reported an error; its own traceback tells more."""


class DeadlineExceeded(RunError):
    """Ranks did not arrive in time."""


class StaleRead(RunError):
    """A rank's memory does not hold what this minibatch needs."""


class LayoutMismatch(RunError):
    """The shard that FSDP2 hands over is not the one that was published."""


class OutsideMinibatch(RunError):
    """The model was run, or a queue pulled from, outside of `minibatch()`, where nothing is published."""


class HiddenCollectiveWarning(UserWarning):
    """A collective ran inside `minibatch()`, where ranks need not run as many."""
