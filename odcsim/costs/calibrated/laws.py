"""What calibrated costs come to on a cluster: the visits' coefficients, and seconds of transfers and steps.

A run was made on D0 ranks; a cluster may have D. The laws by which costs follow D (docs/calibrate.md tells why):

- a collective has G - 1 steps inside a node and D / G - 1 between nodes, each with the fitted latency; its bytes are
  those of `odcsim.costs.network.Fabric`;
- ranks leave a collective one after another: the last one by a share of its time later than in the mean, on any D;
- a one-sided transfer has its latency once, and moves its own bytes;
- a meeting (barrier) takes a step for every rank beyond the first;
- where G ranks share fewer processors, whatever all of them do at once takes `crowding` = G / processors times as long:
  the bytes of collectives in shared memory, and the steps of a minibatch. Ranks that meet in shared memory wake up once
  each, which the number of steps covers. Those of a ring of messages wake up once a step: a step, and what it moves,
  takes between as long as ever (if it waits for the next rank) and `crowding` times as long (if it waits for a
  processor); the geometric mean is taken;
- publish, settle and the optimizer move the shard through memory, which D divides; the rest is a fixed effort.

What a run did not show is taken from what it did: a collective as a one-sided transfer and a meeting, a one-sided
transfer as one step of a collective with its bandwidth, a meeting's step as a collective's. `remarks` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.costs.calibrated.schema import CalibratedCosts, TransferCost, TransferPair, visit_kind
from odcsim.costs.network import Fabric, Tier
from odcsim.costs.state import ShardState
from odcsim.schedule import Visit

__all__ = ["CalibratedTransfers", "TransferName", "calibrated_compute"]

TransferName = Literal["gather", "scatter_accumulate"]
_StepName = Literal["publish", "settle", "optimizer"]

# Collectives of these are one meeting in shared memory, and copies.
_MEETING_TRANSPORTS = frozenset({"collective"})


def calibrated_compute(costs: CalibratedCosts, visits: Sequence[Visit]) -> FloatArray:
    """Coefficients of the visits, shape (3, V): seconds per squared token, token and microbatch."""
    of_visits = [getattr(costs.compute, visit_kind(visit)) for visit in visits]
    return np.array([[cost.squared_tokens.value, cost.tokens.value, cost.constant.value] for cost in of_visits]).T


@dataclass(frozen=True)
class CalibratedTransfers:
    """Seconds of transfers and steps on one cluster.

    Attributes:
        costs: fitted to a run.
        fabric: the cluster's links by its catalog; tiers that the run did not use come from here.
        shard: of the cluster's ranks.
        transport: of collectives: a key of `costs.collectives`.
    """

    costs: CalibratedCosts
    fabric: Fabric
    shard: ShardState
    transport: str

    def collective_s(self, name: TransferName, unit_bytes: float) -> float:
        """A collective of a unit of `unit_bytes` (unsharded): an all-gather, or a reduce-scatter."""
        pair = self._collectives
        if pair is None:
            return self.one_sided_s(name, unit_bytes) + self.meeting_s
        cost: TransferCost = getattr(pair, name)
        ratio = self._crowding_ratio
        if self.transport in _MEETING_TRANSPORTS:
            return self._fabric_of(cost, slower_bytes=ratio).collective_s(unit_bytes)
        return self._fabric_of(cost).collective_s(unit_bytes) * math.sqrt(ratio)

    def collective_lag(self, name: TransferName) -> float:
        """How much later than in the mean the last rank leaves a collective, as a share of its time."""
        pair = self._collectives
        lag = None if pair is None else getattr(pair, name).lag
        return 0.0 if lag is None else float(lag.value)

    def one_sided_s(self, name: TransferName, unit_bytes: float) -> float:
        """A rank's own transfer of a unit of `unit_bytes` (unsharded)."""
        pair = self.costs.one_sided or self._collectives
        if pair is None:
            return self.fabric.one_sided_s(unit_bytes)
        cost: TransferCost = getattr(pair, name)
        contention = cost.contention.value if cost.contention is not None else 0.0
        others = cost.others * (self.fabric.ranks - 1) / max(self.costs.origin.ranks - 1, 1)
        return self._fabric_of(cost).one_sided_s(unit_bytes) * (1 + contention * others)

    @property
    def meeting_s(self) -> float:
        """A barrier of all ranks."""
        step = self.costs.steps.meeting
        if step is None and self._collectives is not None:
            step = self._collectives.gather.latency
        return self.fabric.barrier_s() if step is None else (self.fabric.ranks - 1) * step.value

    @property
    def publish_s(self) -> float:
        """Making the shard readable, and meeting."""
        return self._step_s("publish") + self.meeting_s

    @property
    def settle_s(self) -> float:
        """Meeting, and taking the gradients."""
        return self._step_s("settle") + self.meeting_s

    @property
    def optimizer_s(self) -> float:
        """The optimizer's step."""
        return self._step_s("optimizer")

    def remarks(self, *, file: object, syncs: set[str]) -> list[str]:
        """What the run did not show of what these syncs need, and what stands in for it; a sentence each."""
        costs, found = self.costs, []
        if "fsdp" in syncs and not costs.collectives:
            found.append(f"{file} has no collectives: each is taken to cost a one-sided transfer and a meeting")
        elif "fsdp" in syncs and self.transport not in costs.collectives:
            known = next(iter(costs.collectives))
            found.append(f"{file} has no collectives over {self.transport}: those over {known} are taken instead")
        if "odc" in syncs and costs.one_sided is None:
            found.append(
                f"{file} has no one-sided transfers: each is taken to have the bandwidth of a collective and the "
                "latency of one of its steps; publishing and settling are worked out from the bandwidth of memory"
            )
        return found

    @property
    def _collectives(self) -> TransferPair | None:
        known = self.costs.collectives
        return known.get(self.transport) or next(iter(known.values()), None)

    def _crowding(self, ranks_per_node: int) -> float:
        """How many ranks share a processor; 1 where each has its own."""
        processors = self.costs.origin.processors
        return 1.0 if processors is None else max(1.0, ranks_per_node / processors)

    @property
    def _crowding_ratio(self) -> float:
        return self._crowding(self.fabric.ranks_per_node) / self._crowding(self.costs.origin.ranks_per_node)

    def _fabric_of(self, cost: TransferCost, *, slower_bytes: float = 1.0) -> Fabric:
        """The cluster's links with what was measured of the tier that the run's transfers were bound by."""
        latency_s = cost.latency.value
        per_byte_s = cost.seconds_per_byte.value * slower_bytes
        measured = Tier(
            bandwidth_bytes_per_s=1 / per_byte_s if per_byte_s > 0 else float("inf"),
            latency_s=latency_s,
            collective_efficiency=1.0,
            one_sided_efficiency=1.0,
        )
        origin = self.costs.origin
        if origin.ranks == origin.ranks_per_node:
            return replace(self.fabric, intra_node=measured)
        # A run over several nodes shows the sum of both tiers' latencies alone: each step is given the same one.
        return replace(
            self.fabric, intra_node=replace(self.fabric.intra_node, latency_s=latency_s), inter_node=measured
        )

    def _step_s(self, name: _StepName) -> float:
        """A step of a minibatch, by what it moves and what it costs whatever it moves."""
        term = getattr(self.costs.steps, name)
        here_s: float = getattr(self.shard, f"{name}_s")
        if term is None:
            return here_s
        then = replace(self.shard, parameters=self.shard.parameters * self.fabric.ranks / self.costs.origin.ranks)
        moving_then_s = min(term.value, getattr(then, f"{name}_s"))
        effort_s = term.value - moving_then_s
        return float(effort_s + moving_then_s * self.costs.origin.ranks / self.fabric.ranks) * self._crowding_ratio
