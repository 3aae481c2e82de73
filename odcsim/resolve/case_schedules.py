"""The schedule of each case: how long its transfers and fixed steps take on the scenario's cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.catalog import Gpu
from odcsim.costs.calibrated import CalibratedCosts, CalibratedTransfers, TransferName
from odcsim.costs.network import Fabric, Tier
from odcsim.costs.state import DTYPE_BYTES, OPTIMIZER_STATES, ShardState
from odcsim.model_shape import ModelShape
from odcsim.scenario import Case, Cluster, Scenario
from odcsim.schedule import ROOT_UNIT, Overlap, Schedule, SharedLinks, Visit

__all__ = ["CaseSchedules", "bytes_gathered", "collective_transport", "over_collectives", "ports_of"]

# Of `runtime.transport`, what moves the data of collectives, as a file of calibrated costs names it.
_COLLECTIVES = {"shm": "collective", "collective": "collective", "gloo": "gloo", "cuda": "nccl"}


def collective_transport(scenario: Scenario) -> str:
    """What moves the data of collectives, as a file of calibrated costs names it."""
    return _COLLECTIVES[scenario.runtime.transport]


def over_collectives(scenario: Scenario, transport: str) -> Scenario:
    """The scenario with its collectives over what a file of calibrated costs calls so; as it is if that has none."""
    if transport not in _COLLECTIVES.values() or transport == collective_transport(scenario):
        return scenario
    chosen = next(key for key, moving in _COLLECTIVES.items() if moving == transport)
    return scenario.model_copy(update={"runtime": scenario.runtime.model_copy(update={"transport": chosen})})


def bytes_gathered(scenario: Scenario, *, on_demand: bool) -> int:
    """Bytes of one parameter as it is gathered."""
    reads_master = on_demand and scenario.on_demand.gather_dtype == "fp32"
    return DTYPE_BYTES["fp32" if reads_master else scenario.training.param_dtype]


@dataclass(frozen=True)
class CaseSchedules:
    """What the schedules of a scenario's cases are made of.

    `fabric_alone` is the cluster as a transfer sees it that shares its node's ports with no other; `calibrated`, if
    any, takes the place of both where it knows better.
    """

    scenario: Scenario
    model: ModelShape
    fabric: Fabric
    fabric_alone: Fabric
    shard: ShardState
    calibrated: CalibratedTransfers | None = None

    @classmethod
    def of(
        cls, scenario: Scenario, model: ModelShape, gpu: Gpu, *, costs: CalibratedCosts | None = None
    ) -> CaseSchedules:
        """What `scenario` makes of a model and a GPU, and of costs fitted to a run."""
        training = scenario.training
        reads_master = scenario.on_demand.gather_dtype == "fp32"
        fabric = _fabric(scenario.cluster, gpu, sharers=scenario.cluster.gpus_per_node)
        shard = ShardState(
            parameters=model.total_parameters / scenario.cluster.ranks,
            memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
            published_bytes_per_parameter=0 if reads_master else DTYPE_BYTES[training.param_dtype],
            optimizer_states=OPTIMIZER_STATES[training.optimizer],
        )
        return cls(
            scenario=scenario,
            model=model,
            fabric=fabric,
            fabric_alone=_fabric(scenario.cluster, gpu, sharers=ports_of(scenario.cluster)),
            shard=shard,
            calibrated=None
            if costs is None
            else CalibratedTransfers(costs, fabric, shard, transport=collective_transport(scenario)),
        )

    def schedule(self, case: Case, *, overlap: Overlap, visits: tuple[Visit, ...]) -> Schedule:
        """The schedule of one case."""
        training, fabric = self.scenario.training, self.fabric
        on_demand = case.sync == "odc"
        gather_bytes = bytes_gathered(self.scenario, on_demand=on_demand)
        reduce_bytes = DTYPE_BYTES[training.reduce_dtype]
        shared_links = _shared_links(self.scenario.cluster) if on_demand and self.calibrated is None else None

        def transfers_s(flag: str, name: TransferName, element_bytes: int) -> FloatArray:
            return np.array(
                [
                    self._transfer_s(
                        name,
                        self._unit_parameters(visit.unit) * element_bytes,
                        on_demand=on_demand,
                        alone=shared_links is not None,
                    )
                    if getattr(visit, flag) and fabric.ranks > 1
                    else 0.0
                    for visit in visits
                ]
            )

        calibrated, barrier_s = self.calibrated, fabric.barrier_s()
        return Schedule(
            sync=case.sync,
            overlap=overlap,
            visits=visits,
            gather_s_V=transfers_s("gathers", "gather", gather_bytes),
            reduce_s_V=transfers_s("reduces", "scatter_accumulate", reduce_bytes),
            publish_s=self.shard.publish_s + barrier_s if calibrated is None else calibrated.publish_s,
            settle_s=self.shard.settle_s + barrier_s if calibrated is None else calibrated.settle_s,
            fixed_s=self.scenario.on_demand.minibatch_overhead,
            optimizer_s=self.shard.optimizer_s if calibrated is None else calibrated.optimizer_s,
            shared_links=shared_links,
            gather_lag=0.0 if on_demand or calibrated is None else calibrated.collective_lag("gather"),
            reduce_lag=0.0 if on_demand or calibrated is None else calibrated.collective_lag("scatter_accumulate"),
        )

    def _transfer_s(self, name: TransferName, unit_bytes: float, *, on_demand: bool, alone: bool) -> float:
        """A transfer of a unit; `alone`: as if no other shared its node's ports."""
        if self.calibrated is not None:
            transfer_s = self.calibrated.one_sided_s if on_demand else self.calibrated.collective_s
            return transfer_s(name, unit_bytes)
        links = self.fabric_alone if alone else self.fabric
        return links.one_sided_s(unit_bytes) if on_demand else links.collective_s(unit_bytes)

    def _unit_parameters(self, unit: int) -> int:
        return self.model.root_parameters if unit == ROOT_UNIT else self.model.parameters_per_block


def _fabric(cluster: Cluster, gpu: Gpu, *, sharers: int) -> Fabric:
    """The cluster's links, with a node's network shared evenly by `sharers` ranks."""
    inside, between, one_sided = cluster.intra_node, cluster.inter_node, cluster.one_sided
    inside_efficiency = inside.efficiency or gpu.link_efficiency
    between_efficiency = between.efficiency or gpu.link_efficiency
    node_bandwidth = between.bandwidth or gpu.inter_node_bandwidth_bytes_per_s * cluster.gpus_per_node
    return Fabric(
        ranks=cluster.ranks,
        ranks_per_node=cluster.gpus_per_node,
        intra_node=Tier(
            bandwidth_bytes_per_s=inside.bandwidth or gpu.intra_node_bandwidth_bytes_per_s,
            latency_s=gpu.intra_node_latency_s if inside.latency is None else inside.latency,
            collective_efficiency=inside_efficiency,
            one_sided_efficiency=one_sided.intra_node_efficiency or inside_efficiency,
        ),
        inter_node=Tier(
            bandwidth_bytes_per_s=node_bandwidth / sharers,
            latency_s=gpu.inter_node_latency_s if between.latency is None else between.latency,
            collective_efficiency=between_efficiency,
            one_sided_efficiency=one_sided.inter_node_efficiency or between_efficiency,
        ),
        slowest_link_speed=min([1.0, *cluster.link_speeds.values()]),
    )


def ports_of(cluster: Cluster) -> int:
    """Ports that a node's ranks have to share; a rank uses one at a time, so more ports than ranks help nobody."""
    return min(cluster.inter_node.ports or cluster.gpus_per_node, cluster.gpus_per_node)


def _shared_links(cluster: Cluster) -> SharedLinks | None:
    """The node ports that one-sided transfers share; None where they share none, or the scenario leaves it out."""
    if not cluster.contention or cluster.nodes == 1 or ports_of(cluster) == cluster.gpus_per_node:
        return None
    return SharedLinks(
        group_of_rank=tuple(rank // cluster.gpus_per_node for rank in range(cluster.ranks)),
        full_rate_transfers=float(ports_of(cluster)),
    )
