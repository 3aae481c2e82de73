"""Settings that were made and change nothing: each is told, none is silently ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from odcsim.costs.calibrated import CalibratedCosts
from odcsim.lengths import LengthSource
from odcsim.resolve.case_schedules import ports_of
from odcsim.resolve.resolved import ResolvedCase
from odcsim.scenario import Scenario

__all__ = ["settings_without_effect"]


def settings_without_effect(
    scenario: Scenario, source: LengthSource, cases: Sequence[ResolvedCase], *, costs: CalibratedCosts | None = None
) -> list[str]:
    """One sentence for every setting that was made and changes nothing."""
    cluster, found = scenario.cluster, []
    for position, case in enumerate(cases):
        if case.case.pad and case.policy.equal_counts:
            found.append(f"cases.{position}.pad has no effect: {case.policy.name} gives equal counts already")
        elif case.case.pad and case.policy.is_pulled:
            found.append(
                f"cases.{position}.pad has no effect: under {case.policy.name} no rank has microbatches to match"
            )
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
    elif cluster.contention and ports_of(cluster) == cluster.gpus_per_node:
        found.append(
            "cluster.contention has no effect: every rank has a port of its own (see cluster.inter_node.ports)"
        )
    if scenario.compute.calibrated is not None and cluster.contention:
        found.append("cluster.contention has no effect with compute.calibrated: transfers take what was measured")
    if scenario.compute.fitted is not None and scenario.training.recompute == "none":
        found.append(
            "training.recompute: none changes memory, but not the total of compute.fitted: it holds what was measured"
        )
    if costs is not None and costs.origin.ranks == costs.origin.ranks_per_node:
        found += [
            f"{key} has no effect: what transfers inside a node cost was measured (compute.calibrated)"
            for key in ("cluster.intra_node", "cluster.one_sided.intra_node_efficiency")
            if _is_set(scenario, key)
        ]
    found += _planning_without_effect(scenario, source, cases)
    # A setting may have no effect for two reasons: the first one told is enough.
    return list({sentence.partition(" ")[0]: sentence for sentence in reversed(found)}.values())[::-1]


def _planning_without_effect(scenario: Scenario, source: LengthSource, cases: Sequence[ResolvedCase]) -> Iterator[str]:
    policies = [case.policy for case in cases]
    if scenario.planning.cost != "model" and not any(policy.uses_cost for policy in policies):
        yield "planning.cost has no effect: no case's policy balances by it"
    if scenario.planning.known_speeds:
        if not any(policy.uses_speeds for policy in policies):
            yield "planning.known_speeds has no effect: no case's policy looks at speeds"
        if all(speed == 1.0 for speed in scenario.cluster.rank_speeds.values()):
            yield "planning.known_speeds has no effect: all ranks are alike (see cluster.rank_speeds)"
    if scenario.planning.keep_groups and source.group_size == 1:
        yield "planning.keep_groups has no effect: the samples of workload.lengths come in no groups"


def _is_set(scenario: Scenario, key: str) -> bool:
    """Whether the user wrote `key`, and not its default."""
    section: Any = scenario
    *parents, last = key.split(".")
    for name in parents:
        section = getattr(section, name)
    default = type(section).model_fields[last].get_default(call_default_factory=True)
    return last in section.model_fields_set and getattr(section, last) != default
