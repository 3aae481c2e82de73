"""Transfers: seconds of a collective, and of a one-sided gather or scatter-accumulate, of one FSDP unit.

D ranks on nodes of G. Each tier (inside a node, between nodes) has a latency, a bandwidth of one rank in one
direction, and an efficiency. Both tiers work at the same time, so a transfer takes as long as the busier one.
docs/model.md derives the formulas ("Transfers").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from odcsim.arrays import FloatArray

__all__ = ["Fabric", "Tier", "collective_bytes", "one_sided_bytes"]

_Bytes = TypeVar("_Bytes", float, FloatArray)


def collective_bytes(unit_bytes: _Bytes, *, ranks: int, ranks_per_node: int) -> tuple[_Bytes, _Bytes]:
    """Bytes in and out of one rank for a hierarchical ring over units of `unit_bytes` (unsharded).

    Returns:
        Inside its node, M (G-1)/G, and between nodes, M (D-G)/(D G).
    """
    inside = unit_bytes * (ranks_per_node - 1) / ranks_per_node
    return inside, unit_bytes * (ranks - ranks_per_node) / (ranks * ranks_per_node)


def one_sided_bytes(unit_bytes: _Bytes, *, ranks: int, ranks_per_node: int) -> tuple[_Bytes, _Bytes]:
    """Bytes in (or out) of one rank for its own transfers of units of `unit_bytes` (unsharded).

    Returns:
        Inside its node, M (G-1)/D, and between nodes, M (D-G)/D: G times a ring's, as every rank fetches each remote
        piece itself.
    """
    return unit_bytes * (ranks_per_node - 1) / ranks, unit_bytes * (ranks - ranks_per_node) / ranks


@dataclass(frozen=True)
class Tier:
    """One kind of link.

    Attributes:
        bandwidth_bytes_per_s: of one rank, in one direction.
        latency_s: before the first byte arrives.
        collective_efficiency: share of the bandwidth that collectives reach.
        one_sided_efficiency: share of it that one-sided transfers reach.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    collective_efficiency: float
    one_sided_efficiency: float


@dataclass(frozen=True)
class Fabric:
    """The links of a cluster.

    Attributes:
        ranks: D.
        ranks_per_node: G.
        intra_node: links inside a node.
        inter_node: links between nodes.
        slowest_link_speed: 1, or less where some rank's links are slow. A ring moves at the pace of its slowest
            member; a one-sided transfer reads from every owner, and all ranks read from the slow one at the same pace.
    """

    ranks: int
    ranks_per_node: int
    intra_node: Tier
    inter_node: Tier
    slowest_link_speed: float = 1.0

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.ranks_per_node

    def collective_s(self, unit_bytes: float) -> float:
        """A ring all-gather or reduce-scatter of a unit of `unit_bytes` (unsharded), hierarchical over the tiers.

        Bytes: see `collective_bytes`. A ring has G-1 steps inside a node and D/G - 1 between nodes, each with the
        tier's latency.
        """
        per_node, nodes = self.ranks_per_node, self.nodes
        inside, between = collective_bytes(unit_bytes, ranks=self.ranks, ranks_per_node=per_node)
        return self._moving_s(
            intra_node_bytes=inside,
            inter_node_bytes=between,
            intra_node_efficiency=self.intra_node.collective_efficiency,
            inter_node_efficiency=self.inter_node.collective_efficiency,
        ) + ((per_node - 1) * self.intra_node.latency_s + (nodes - 1) * self.inter_node.latency_s)

    def one_sided_s(self, unit_bytes: float) -> float:
        """A rank's own gather from, or scatter-accumulate to, the owners of a unit of `unit_bytes` (unsharded).

        Bytes: see `one_sided_bytes`. All owners are addressed at once, so latency counts once.
        """
        ranks = self.ranks
        latency_s = self.inter_node.latency_s if self.nodes > 1 else self.intra_node.latency_s if ranks > 1 else 0.0
        inside, between = one_sided_bytes(unit_bytes, ranks=ranks, ranks_per_node=self.ranks_per_node)
        return latency_s + self._moving_s(
            intra_node_bytes=inside,
            inter_node_bytes=between,
            intra_node_efficiency=self.intra_node.one_sided_efficiency,
            inter_node_efficiency=self.inter_node.one_sided_efficiency,
        )

    def barrier_s(self) -> float:
        """A barrier: a dissemination barrier's ceil(log2 D) rounds, each at the latency of the slower tier in use."""
        latency_s = self.inter_node.latency_s if self.nodes > 1 else self.intra_node.latency_s
        return (self.ranks - 1).bit_length() * latency_s

    def _moving_s(
        self,
        *,
        intra_node_bytes: float,
        inter_node_bytes: float,
        intra_node_efficiency: float,
        inter_node_efficiency: float,
    ) -> float:
        # Not by the product: of two tiny numbers it would be 0.
        inside_s = intra_node_bytes / self.intra_node.bandwidth_bytes_per_s / intra_node_efficiency
        between_s = inter_node_bytes / self.inter_node.bandwidth_bytes_per_s / inter_node_efficiency
        return max(inside_s, between_s) / self.slowest_link_speed
