"""One time for the files of all ranks, from their collectives. Times in nanoseconds.

Legend: D ranks, K collectives that all ranks took part in.

Nobody's data are there before everybody has arrived. So for the offset of a rank's clock from rank 0's (its reading
minus rank 0's at one moment), every collective gives two bounds: it is at least (the rank arrives - rank 0's data are
there), and at most (the rank's data are there - rank 0 arrives). `odcrt.tracing.clocks` aligns clocks by barriers in
the same way.

Ranks of one machine, by the files' `host_name`, are taken to read one clock if their collectives allow it. The offset
of another clock is the median over collectives of the difference of the moments at which data were there, brought
within the bounds. The uncertainty is the distance to the farther bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.arrays import IntArray

__all__ = ["TOLERANCE_NS", "Alignment", "ClockJump", "align_files", "find_jump"]

TOLERANCE_NS = 1_000_000
"""By how much a rank may seem to end before another arrives: clocks of one rate drift apart by less in a trace."""


@dataclass(frozen=True)
class Alignment:
    """How the clocks of D files compare.

    Attributes:
        offsets_ns_D: reading minus rank 0's at one moment.
        uncertainty_ns: no offset is off by more.
        is_shared: whether all ranks read one clock.
    """

    offsets_ns_D: IntArray
    uncertainty_ns: int
    is_shared: bool


def align_files(arrived_ns_DK: IntArray, end_ns_DK: IntArray, hosts: Sequence[str]) -> Alignment:
    """Estimate offsets.

    Args:
        arrived_ns_DK: when each rank arrived at each collective, by its own clock.
        end_ns_DK: when its data were there.
        hosts: names of machines; empty where they are not known.
    """
    # Nanoseconds since 1970 are more than a float holds exactly.
    base_ns = arrived_ns_DK.min()
    arrived_ns_DK, end_ns_DK = arrived_ns_DK - base_ns, end_ns_DK - base_ns
    clocks = _clocks(arrived_ns_DK, end_ns_DK, hosts)
    reference = clocks[0]
    offsets_ns_D = np.zeros(len(hosts), dtype=np.int64)
    for ranks in clocks[1:]:
        apart_ns_K = np.median(end_ns_DK[ranks], axis=0) - np.median(end_ns_DK[reference], axis=0)
        offset_ns = round(float(np.median(apart_ns_K)))
        # All who read these two clocks bound the offset between them.
        least_ns = int((arrived_ns_DK[ranks].max(axis=0) - end_ns_DK[reference].min(axis=0)).max())
        most_ns = int((end_ns_DK[ranks].min(axis=0) - arrived_ns_DK[reference].max(axis=0)).min())
        offsets_ns_D[ranks] = min(max(offset_ns, least_ns), most_ns) if least_ns <= most_ns else offset_ns
    # That several ranks read one clock is taken for granted no longer: bounds from each one's own collectives.
    least_ns_D = (arrived_ns_DK - end_ns_DK[0]).max(axis=1)
    most_ns_D = (end_ns_DK - arrived_ns_DK[0]).min(axis=1)
    farther_ns_D = np.maximum(np.abs(offsets_ns_D - least_ns_D), np.abs(most_ns_D - offsets_ns_D))
    return Alignment(offsets_ns_D, int(farther_ns_D[1:].max(initial=0)), is_shared=len(clocks) == 1)


def _clocks(arrived_ns_DK: IntArray, end_ns_DK: IntArray, hosts: Sequence[str]) -> list[list[int]]:
    """The ranks that read each clock; rank 0's come first."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host or f"of rank {rank}", []).append(rank)
    clocks = []
    for ranks in by_host.values():
        ahead_ns_K = arrived_ns_DK[ranks].max(axis=0) - end_ns_DK[ranks].min(axis=0)
        # Machines that bear one name, or a clock that jumped: every rank for itself.
        clocks += [ranks] if ahead_ns_K.max() <= 0 else [[rank] for rank in ranks]
    return sorted(clocks)


@dataclass(frozen=True)
class ClockJump:
    """A collective that cannot have been as the clocks say.

    Attributes:
        collective: its position among K.
        rank: whose clock is farthest from the others' there.
        early: the rank whose data were there before `late` arrived.
        late: the rank that arrived last.
        by_ns: how long before.
    """

    collective: int
    rank: int
    early: int
    late: int
    by_ns: int


def find_jump(arrived_ns_DK: IntArray, end_ns_DK: IntArray) -> ClockJump | None:
    """The first collective, in aligned time, at which somebody's data were there before somebody else arrived.

    Args:
        arrived_ns_DK: when each rank arrived.
        end_ns_DK: when its data were there.
    """
    by_ns_K = arrived_ns_DK.max(axis=0) - end_ns_DK.min(axis=0)
    wrong_K = np.flatnonzero(by_ns_K > TOLERANCE_NS)
    if not wrong_K.size:
        return None
    first = int(wrong_K[0])
    end_ns_D = end_ns_DK[:, first] - end_ns_DK[0, first]
    from_median_ns_D = np.abs(end_ns_D - np.median(end_ns_D))
    # Of two ranks, neither is farther from the median: the one whose clock is measured by the other's is named.
    rank = len(from_median_ns_D) - 1 - int(np.argmax(from_median_ns_D[::-1]))
    return ClockJump(
        collective=first,
        rank=rank,
        early=int(np.argmin(end_ns_DK[:, first])),
        late=int(np.argmax(arrived_ns_DK[:, first])),
        by_ns=int(by_ns_K[first]),
    )
