"""Groups of samples that stay on one rank."""

from __future__ import annotations

from odcsim.arrays import IntArray

__all__ = ["members_of_groups"]


def members_of_groups(groups_S: IntArray) -> list[tuple[int, ...]]:
    """The samples of each group, ascending, groups in the order of their first samples.

    Args:
        groups_S: a number for each sample, the same for samples of one group.
    """
    members: dict[int, list[int]] = {}
    for sample, group in enumerate(groups_S.tolist()):
        members.setdefault(group, []).append(sample)
    return [tuple(samples) for samples in members.values()]
