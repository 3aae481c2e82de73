"""From a scenario to what can be simulated: names looked up, files read, costs worked out.

Everything that can be wrong with a scenario beyond its schema is found here, before anything is simulated.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.catalog import Gpu, load_gpu
from odcsim.costs.compute import analytic_compute, fitted_compute, microbatch_cost
from odcsim.costs.memory import RESERVE_SHARE, MemoryModel
from odcsim.costs.network import Fabric, Tier
from odcsim.costs.state import DTYPE_BYTES, OPTIMIZER_STATES, ShardState
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import InputError
from odcsim.lengths import LengthSource, load_source
from odcsim.model_shape import ModelShape, load_model
from odcsim.policies import Policy, find_policy
from odcsim.scenario import Case, Cluster, Scenario
from odcsim.schedule import ROOT_UNIT, Overlap, Schedule, SharedLinks, Visit, decoder_visits

__all__ = ["ResolvedCase", "ResolvedScenario", "resolve"]

# No step of any run takes as long, and sums of such steps are far from overflowing.
_LONGEST_STEP_S = 1e15
_LARGEST_RATE = 1e30


@dataclass(frozen=True)
class ResolvedCase:
    """A case with its policy and its schedule; `label` tells it from the scenario's other cases."""

    case: Case
    label: str
    policy: Policy
    schedule: Schedule


@dataclass(frozen=True)
class ResolvedScenario:
    """A scenario with everything it names.

    Attributes:
        scenario: as written.
        model: the decoder's shape.
        gpu: the device's figures.
        source: draws lengths.
        coefficients_FV: seconds of a visit per squared token, token and microbatch.
        cost: seconds of a whole microbatch's compute.
        speeds_D: compute speed of every rank.
        memory: peak memory of a rank.
        published_bytes: of one published parameter under `odc`; 0 where the master parameters themselves are read.
        cases: in the scenario's order.
        warnings: settings that have no effect.
    """

    scenario: Scenario
    model: ModelShape
    gpu: Gpu
    source: LengthSource
    coefficients_FV: FloatArray
    cost: TokenCost
    speeds_D: FloatArray
    memory: MemoryModel
    published_bytes: int
    cases: tuple[ResolvedCase, ...]
    warnings: tuple[str, ...]

    def gather_bytes(self, *, on_demand: bool) -> int:
        """Bytes of a parameter as it is gathered."""
        return _gather_bytes(self.scenario, on_demand=on_demand)

    @property
    def capacity_bytes(self) -> float:
        """Memory of a device that training can use."""
        return self.gpu.memory_bytes * (1 - RESERVE_SHARE)

    def to_document(self) -> dict[str, Any]:
        """The scenario as it was understood, for the result document."""
        document = self.scenario.model_dump(mode="json", exclude_none=True)
        document["model"] = {**asdict(self.model), "total_parameters": self.model.total_parameters}
        document["cluster"]["gpu"] = asdict(self.gpu)
        document["workload"]["source"] = _source_document(self.source)
        return document


def resolve(scenario: Scenario, *, base_folder: Path, file: Path | None = None) -> ResolvedScenario:
    """Look up and read everything that a scenario names.

    Args:
        scenario: a valid scenario.
        base_folder: what its paths are relative to.
        file: the scenario's file, for messages.

    Raises:
        InputError: an unknown name, an unreadable file, or a case that cannot work.
    """
    model = load_model(scenario.model, base_folder=base_folder, file=file)
    gpu = load_gpu(scenario.cluster.gpu, file=file)
    source = load_source(scenario.workload.lengths, base_folder=base_folder, file=file)
    visits = decoder_visits(model.layers)
    coefficients_FV = _compute(scenario, model, gpu, visits, file=file)
    speeds_D = np.ones(scenario.cluster.ranks)
    for rank, speed in scenario.cluster.rank_speeds.items():
        speeds_D[rank] = speed
    costs = _ScheduleCosts.of(scenario, model, gpu)
    cases = []
    for position, case in enumerate(scenario.cases):
        key = f"cases.{position}"
        policy = find_policy(case.policy, file=file, key=f"{key}.policy")
        if case.sync == "fsdp" and not policy.equal_counts and not case.pad:
            raise InputError(
                f"{policy.name} gives ranks unequal numbers of microbatches, which deadlocks under fsdp; "
                "allowed: sync: odc, or pad: true (padding microbatches), or a policy with equal counts",
                file=file,
                key=f"{key}.policy",
                value=case.policy,
            )
        schedule = costs.schedule(case, overlap=case.overlap or scenario.overlap, visits=visits)
        cases.append(ResolvedCase(case, "", policy, schedule))
    labels = _labels([case.case for case in cases], scenario)
    training = scenario.training
    resolved = ResolvedScenario(
        scenario=scenario,
        model=model,
        gpu=gpu,
        source=source,
        coefficients_FV=coefficients_FV,
        cost=microbatch_cost(coefficients_FV),
        speeds_D=speeds_D,
        memory=MemoryModel(
            shape=model,
            ranks=scenario.cluster.ranks,
            param_bytes=DTYPE_BYTES[training.param_dtype],
            reduce_bytes=DTYPE_BYTES[training.reduce_dtype],
            optimizer=training.optimizer,
            recompute=training.recompute == "full",
            fused_loss=training.fused_loss,
        ),
        published_bytes=costs.shard.published_bytes_per_parameter,
        cases=tuple(
            ResolvedCase(case.case, label, case.policy, case.schedule)
            for case, label in zip(cases, labels, strict=True)
        ),
        warnings=tuple(_settings_without_effect(scenario, cases)),
    )
    _require_plausible(resolved, file=file)
    return resolved


def _require_plausible(resolved: ResolvedScenario, *, file: Path | None) -> None:
    """Refuse figures so far from any device that times would overflow, or mean nothing.

    Raises:
        InputError: names the step that would take too long, or the figure of the device.
    """
    for figure in ("peak_flops_per_s", "memory_bandwidth_bytes_per_s"):
        value = getattr(resolved.gpu, figure)
        if not 1.0 <= value <= _LARGEST_RATE:
            problem = f"{figure} of the GPU must be from 1 to {_LARGEST_RATE:g}"
            raise InputError(problem, file=file, key="cluster.gpu", value=value)
    scenario, cost = resolved.scenario, resolved.cost
    cap = float(scenario.workload.max_tokens)
    slowest = scenario.cluster.slowdowns.factor if scenario.cluster.slowdowns is not None else 1.0
    slowest = slowest / min([1.0, *scenario.cluster.rank_speeds.values()])
    steps_s = {
        f"compute of {cap:g} tokens": (cost.quadratic * cap * cap + cost.linear * cap + cost.constant) * slowest,
        "compute of an empty microbatch": cost.constant * slowest,
    }
    for case in resolved.cases:
        schedule = case.schedule
        steps_s |= {
            f"the longest gather under {schedule.sync}": float(schedule.gather_s_V.max()),
            f"the longest reduce under {schedule.sync}": float(schedule.reduce_s_V.max()),
            "the optimizer's step": schedule.optimizer_s,
            "publishing": schedule.publish_s,
            "settling": schedule.settle_s,
            "on_demand.minibatch_overhead": schedule.fixed_s,
        }
    for step, time_s in steps_s.items():
        if not time_s <= _LONGEST_STEP_S:
            problem = f"{step} would take {time_s:g} s; at most {_LONGEST_STEP_S:g} s are simulated"
            raise InputError(problem, file=file, key="compute" if step.startswith("compute") else "cluster")


def _source_document(source: LengthSource) -> dict[str, Any]:
    """Where lengths come from, with as much of a trace's provenance as a reader of the result needs."""
    told = {key: source.provenance[key] for key in ("source_repo", "licence", "kind") if key in source.provenance}
    return {"name": source.name, "synthetic": source.synthetic, "description": source.describe(), **told}


def _compute(
    scenario: Scenario, model: ModelShape, gpu: Gpu, visits: tuple[Visit, ...], *, file: Path | None
) -> FloatArray:
    recompute = scenario.training.recompute == "full"
    fitted = scenario.compute.fitted
    if fitted is not None:
        fit = TokenCost(
            quadratic=fitted.scale * fitted.quadratic / fitted.per_tokens / fitted.per_tokens,
            linear=fitted.scale * fitted.linear / fitted.per_tokens,
            constant=fitted.scale * fitted.constant,
        )
        if not np.isfinite([fit.quadratic, fit.linear, fit.constant]).all():
            raise InputError("gives times that no number holds", file=file, key="compute.fitted", value=fit)
        return fitted_compute(model, visits, fit=fit, recompute=recompute)
    analytic = scenario.compute.analytic
    assert analytic is not None
    return analytic_compute(
        model,
        visits,
        peak_flops_per_s=gpu.peak_flops_per_s,
        linear_efficiency=analytic.linear_efficiency or gpu.linear_efficiency,
        attention_efficiency=analytic.attention_efficiency or gpu.attention_efficiency,
        recompute=recompute,
        visit_overhead_s=analytic.visit_overhead,
    )


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


def _gather_bytes(scenario: Scenario, *, on_demand: bool) -> int:
    reads_master = on_demand and scenario.on_demand.gather_dtype == "fp32"
    return DTYPE_BYTES["fp32" if reads_master else scenario.training.param_dtype]


@dataclass(frozen=True)
class _ScheduleCosts:
    """What the schedules of a scenario's cases are made of.

    `fabric_alone` is the cluster as a transfer sees it that shares its node's ports with no other.
    """

    scenario: Scenario
    model: ModelShape
    fabric: Fabric
    fabric_alone: Fabric
    shard: ShardState

    @classmethod
    def of(cls, scenario: Scenario, model: ModelShape, gpu: Gpu) -> _ScheduleCosts:
        training = scenario.training
        reads_master = scenario.on_demand.gather_dtype == "fp32"
        return cls(
            scenario=scenario,
            model=model,
            fabric=_fabric(scenario.cluster, gpu, sharers=scenario.cluster.gpus_per_node),
            fabric_alone=_fabric(scenario.cluster, gpu, sharers=_ports(scenario.cluster)),
            shard=ShardState(
                parameters=model.total_parameters / scenario.cluster.ranks,
                memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
                published_bytes_per_parameter=0 if reads_master else DTYPE_BYTES[training.param_dtype],
                optimizer_states=OPTIMIZER_STATES[training.optimizer],
            ),
        )

    def schedule(self, case: Case, *, overlap: Overlap, visits: tuple[Visit, ...]) -> Schedule:
        """The schedule of one case."""
        training, fabric = self.scenario.training, self.fabric
        on_demand = case.sync == "odc"
        gather_bytes = _gather_bytes(self.scenario, on_demand=on_demand)
        reduce_bytes = DTYPE_BYTES[training.reduce_dtype]
        shared_links = _shared_links(self.scenario.cluster) if on_demand else None
        links = fabric if shared_links is None else self.fabric_alone
        transfer_s = links.one_sided_s if on_demand else links.collective_s

        def transfers_s(flag: str, element_bytes: int) -> FloatArray:
            return np.array(
                [
                    transfer_s(self._unit_parameters(visit.unit) * element_bytes)
                    if getattr(visit, flag) and fabric.ranks > 1
                    else 0.0
                    for visit in visits
                ]
            )

        barrier_s = fabric.barrier_s()
        return Schedule(
            sync=case.sync,
            overlap=overlap,
            visits=visits,
            gather_s_V=transfers_s("gathers", gather_bytes),
            reduce_s_V=transfers_s("reduces", reduce_bytes),
            publish_s=self.shard.publish_s + barrier_s,
            settle_s=self.shard.settle_s + barrier_s,
            fixed_s=self.scenario.on_demand.minibatch_overhead,
            optimizer_s=self.shard.optimizer_s,
            shared_links=shared_links,
        )

    def _unit_parameters(self, unit: int) -> int:
        return self.model.root_parameters if unit == ROOT_UNIT else self.model.parameters_per_block


def _ports(cluster: Cluster) -> int:
    """Ports that a node's ranks have to share; a rank uses one at a time, so more ports than ranks help nobody."""
    return min(cluster.inter_node.ports or cluster.gpus_per_node, cluster.gpus_per_node)


def _shared_links(cluster: Cluster) -> SharedLinks | None:
    """The node ports that one-sided transfers share; None where they share none, or the scenario leaves it out."""
    if not cluster.contention or cluster.nodes == 1 or _ports(cluster) == cluster.gpus_per_node:
        return None
    return SharedLinks(
        group_of_rank=tuple(rank // cluster.gpus_per_node for rank in range(cluster.ranks)),
        full_rate_transfers=float(_ports(cluster)),
    )


def _labels(cases: list[Case], scenario: Scenario) -> list[str]:
    """A short label for each case: sync and policy, and what else sets it apart."""
    labels = []
    for case in cases:
        parts = [case.sync.upper(), case.policy]
        if case.pad:
            parts.append("padded")
        if case.overlap not in {None, scenario.overlap}:
            parts.append(f"overlap {case.overlap}")
        labels.append(case.name or " ".join(parts))
    return [
        label if labels.count(label) == 1 else f"{label} (#{position + 1})" for position, label in enumerate(labels)
    ]


def _settings_without_effect(scenario: Scenario, cases: list[ResolvedCase]) -> list[str]:
    """One sentence for every setting that was made and changes nothing."""
    cluster, found = scenario.cluster, []
    for position, case in enumerate(cases):
        if case.case.pad and case.policy.equal_counts:
            found.append(f"cases.{position}.pad has no effect: {case.policy.name} gives equal counts already")
    syncs = {case.case.sync for case in cases}
    if "odc" not in syncs:
        found += [
            f"{key} has no effect: no case uses sync: odc"
            for key in ("on_demand", "cluster.one_sided", "cluster.contention")
            if _is_set(scenario, key)
        ]
    if cluster.nodes == 1:
        found += [
            f"{key} has no effect: there is one node only"
            for key in ("cluster.inter_node", "cluster.one_sided.inter_node_efficiency", "cluster.contention")
            if _is_set(scenario, key)
        ]
    elif cluster.inter_node.ports is not None and not cluster.contention:
        found.append("cluster.inter_node.ports has no effect without cluster.contention: true")
    elif cluster.contention and _ports(cluster) == cluster.gpus_per_node:
        found.append(
            "cluster.contention has no effect: every rank has a port of its own (see cluster.inter_node.ports)"
        )
    if scenario.compute.fitted is not None and scenario.training.recompute == "none":
        found.append(
            "training.recompute: none changes memory, but not the total of compute.fitted: it holds what was measured"
        )
    # A setting may have no effect for two reasons: the first one told is enough.
    return list({sentence.partition(" ")[0]: sentence for sentence in reversed(found)}.values())[::-1]


def _is_set(scenario: Scenario, key: str) -> bool:
    """Whether the user wrote `key`, and not its default."""
    section: Any = scenario
    *parents, last = key.split(".")
    for name in parents:
        section = getattr(section, name)
    default = type(section).model_fields[last].get_default(call_default_factory=True)
    return last in section.model_fields_set and getattr(section, last) != default
