"""What ranks do in a minibatch: the order of compute and transfers, and how long each takes.

A *visit* is one stretch of compute of one FSDP unit within a microbatch: its forward, or its backward. A visit may need
the unit's parameters gathered before it, and may leave gradients to reduce after it. Every microbatch runs the same
visits, in the same order.

The decoder's visits follow FSDP2 (2U - 1 gathers and U reduces a microbatch for U units): the root is gathered first,
kept through the whole microbatch, and reduced last; every block is gathered once forward and once backward.

    root forward (embedding)            gathers the root
    blocks 1..L forward                 each gathers its block
    root forward (norm, head, loss)     no transfer
    root backward (norm, head, loss)    no transfer
    blocks L..1 backward                each gathers its block, then reduces it
    root backward (embedding)           reduces the root
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import InputError

__all__ = [
    "ROOT_UNIT",
    "Overlap",
    "Phase",
    "Schedule",
    "SharedLinks",
    "Sync",
    "Visit",
    "Work",
    "decoder_visits",
    "gathers_in_turn",
]

Sync = Literal["fsdp", "odc"]
Overlap = Literal["prefetch", "gather-only", "none"]
Phase = Literal["forward", "backward"]

ROOT_UNIT = 0


@dataclass(frozen=True)
class Visit:
    """One stretch of compute of one unit.

    Attributes:
        unit: the FSDP unit; 0 is the root, blocks count from 1.
        phase: as it appears in traces.
        gathers: whether the unit's parameters must be gathered before it.
        reduces: whether the unit's gradients are reduced (scatter-accumulated) after it.
    """

    unit: int
    phase: Phase
    gathers: bool
    reduces: bool


def decoder_visits(layers: int) -> tuple[Visit, ...]:
    """The visits of one microbatch of a decoder with `layers` blocks: 2 layers + 4 of them."""
    blocks = range(1, layers + 1)
    return (
        Visit(ROOT_UNIT, "forward", gathers=True, reduces=False),
        *(Visit(unit, "forward", gathers=True, reduces=False) for unit in blocks),
        Visit(ROOT_UNIT, "forward", gathers=False, reduces=False),
        Visit(ROOT_UNIT, "backward", gathers=False, reduces=False),
        *(Visit(unit, "backward", gathers=True, reduces=True) for unit in reversed(blocks)),
        Visit(ROOT_UNIT, "backward", gathers=False, reduces=True),
    )


def gathers_in_turn(visits: tuple[Visit, ...]) -> tuple[tuple[int, ...], ...]:
    """For each visit, which visits' gathers come right before its compute where transfers and compute take turns.

    A visit's own, but for one thing: a unit's backward begins with FSDP2's gathering the unit whose backward comes next
    (its backward prefetch), so among visits in backward a gather comes one visit early.
    """
    gathers: list[list[int]] = [[] for _ in visits]
    for position, visit in enumerate(visits):
        if visit.gathers:
            follows_backward = position > 0 and visits[position - 1].phase == "backward"
            gathers[position - 1 if visit.phase == "backward" and follows_backward else position].append(position)
    return tuple(tuple(positions) for positions in gathers)


@dataclass(frozen=True)
class SharedLinks:
    """Links that the one-sided transfers of several ranks share; only the events engine models them.

    Transfers of the ranks of one group run at full rate while at most `full_rate_transfers` of them are under way, and
    share the link evenly beyond that. Gathers and reduces do not disturb each other (full duplex).

    Attributes:
        group_of_rank: for each rank, the group (a node, mostly) whose link its transfers take.
        full_rate_transfers: how many transfers at once the link carries at full rate.
    """

    group_of_rank: tuple[int, ...]
    full_rate_transfers: float


@dataclass(frozen=True)
class Schedule:
    """How ranks synchronize, and what transfers and fixed steps cost. Times in seconds.

    Attributes:
        sync: `fsdp` or `odc`.
        overlap: `prefetch`: gathers and reduces run beside compute, each on a stream of its own; `gather-only`: gathers
            do, a reduce blocks its rank's compute; `none`: compute, gathers and reduces take turns in program order
            (`gathers_in_turn`).
        visits: V visits of every microbatch.
        gather_s_V: time of the visit's gather; 0 where it has none. Under `fsdp` the collective's, under `odc` a
            rank's own transfer's.
        reduce_s_V: the same for the reduce (under `odc`: the scatter-accumulate).
        publish_s: `odc`: making the shard readable, at the start of a minibatch.
        settle_s: `odc`: handing the accumulated gradients to the optimizer, after the last barrier.
        fixed_s: `odc`: any other cost of a minibatch, paid with the publishing.
        optimizer_s: the optimizer's step, at the end, on every rank.
        shared_links: see `SharedLinks`; None for transfers that do not disturb each other.
        gather_lag: `fsdp`: ranks may leave a gather one after another, in the mean when its time is over; how much
            later the last one leaves, as a share of that time. See `odcsim.engines.leaving`.
        reduce_lag: the same for the reduce.
    """

    sync: Sync
    overlap: Overlap
    visits: tuple[Visit, ...]
    gather_s_V: FloatArray
    reduce_s_V: FloatArray
    publish_s: float = 0.0
    settle_s: float = 0.0
    fixed_s: float = 0.0
    optimizer_s: float = 0.0
    shared_links: SharedLinks | None = None
    gather_lag: float = 0.0
    reduce_lag: float = 0.0

    def __post_init__(self) -> None:
        shape = (len(self.visits),)
        assert self.gather_s_V.shape == shape, f"gather_s_V has shape {self.gather_s_V.shape}, not {shape}"
        assert self.reduce_s_V.shape == shape, f"reduce_s_V has shape {self.reduce_s_V.shape}, not {shape}"

    @property
    def has_lags(self) -> bool:
        """Whether ranks leave collectives one after another."""
        return self.sync == "fsdp" and max(self.gather_lag, self.reduce_lag) > 0

    @property
    def opening_s(self) -> float:
        """What a minibatch costs before its first microbatch, alike on every rank."""
        return self.publish_s + self.fixed_s if self.sync == "odc" else 0.0

    @property
    def closing_s(self) -> float:
        """What a minibatch costs between the last rank's end and the optimizer's step, alike on every rank."""
        return self.settle_s if self.sync == "odc" else 0.0


@dataclass(frozen=True)
class Work:
    """The compute of N minibatches on D ranks.

    The compute time of minibatch n, rank d, microbatch m and visit v is
    `factors_NDMF[n, d, m] @ coefficients_FV[:, v]`: few factors (squared tokens, tokens, one; divided by the rank's
    speed) instead of an array over visits.

    Attributes:
        counts_ND: microbatches of each rank; M is the largest.
        factors_NDMF: zero beyond a rank's count.
        coefficients_FV: seconds of a visit per factor.
    """

    counts_ND: IntArray
    factors_NDMF: FloatArray
    coefficients_FV: FloatArray

    def __post_init__(self) -> None:
        minibatches, ranks, microbatches, factors = self.factors_NDMF.shape
        assert self.counts_ND.shape == (minibatches, ranks)
        assert self.coefficients_FV.shape[0] == factors
        assert int(self.counts_ND.max(initial=0)) <= microbatches

    def require_counts_for(self, sync: Sync) -> None:
        """Refuse work that would deadlock: under `fsdp` every rank needs as many microbatches as the others.

        Raises:
            InputError: unequal counts under `fsdp`; the text gives the first such minibatch's counts per rank.
        """
        if sync == "odc":
            return
        uneven_N = (self.counts_ND != self.counts_ND[:, :1]).any(axis=1)
        if uneven_N.any():
            minibatch = int(np.argmax(uneven_N))
            raise InputError(
                "microbatches per rank, which must be equal under fsdp (collectives would wait for ever); "
                "use sync: odc, pad: true or a policy with equal counts",
                key=f"minibatch {minibatch}",
                value=self.counts_ND[minibatch].tolist(),
            )

    def minibatch(self, index: int) -> Work:
        """The work of one minibatch alone."""
        chosen = slice(index, index + 1)
        return Work(self.counts_ND[chosen], self.factors_NDMF[chosen], self.coefficients_FV)
