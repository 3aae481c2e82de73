"""Finds collectives inside of a minibatch, where ranks are not in step.

A collective that a model runs in its forward, an all-reduce of a statistic say, works as long as all ranks happen to
have as many microbatches, and hangs the first time that they do not. Torch numbers the collectives of a group; a number
that has grown between the two ends of a minibatch tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from odcrt.errors import HiddenCollectiveWarning

__all__ = ["CollectiveWatch"]

# From `end` to the user's own `with odc.minibatch():`.
_FRAMES_TO_USER = 6


class CollectiveWatch:
    """Watches the collectives of some groups, and warns once.

    Args:
        groups: whose collectives count; others are not seen.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._groups: tuple[Any, ...] = tuple(dict.fromkeys(groups))
        self._before: int | None = None
        self._has_warned = False

    def begin(self) -> None:
        """A minibatch begins."""
        self._before = None if self._has_warned else self._count()

    def end(self, minibatch: int) -> None:
        """The microbatches of a minibatch are done; warn if there was a collective among them."""
        before, self._before = self._before, None
        after = None if before is None else self._count()
        if before is None or after is None or after == before:
            return
        self._has_warned = True
        warnings.warn(
            f"{after - before} collectives of torch.distributed ran inside minibatch {minibatch}. Ranks wait for each "
            "other there, and hang once they have different numbers of microbatches; move them behind minibatch()",
            HiddenCollectiveWarning,
            stacklevel=_FRAMES_TO_USER,
        )

    def _count(self) -> int | None:
        """Collectives of all groups so far; None where this torch or its backend does not number them."""
        try:
            count: int = sum(group._get_sequence_number_for_group() for group in self._groups)  # noqa: SLF001 - no public way
        except (AttributeError, RuntimeError):
            return None
        return count
