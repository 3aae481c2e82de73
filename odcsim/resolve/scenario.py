"""From a scenario to what can be simulated: names looked up, files read, costs worked out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.catalog import Gpu, load_gpu
from odcsim.costs.calibrated import CalibratedCosts, calibrated_compute, load_costs
from odcsim.costs.compute import analytic_compute, fitted_compute, microbatch_cost
from odcsim.costs.memory import MemoryModel
from odcsim.costs.state import DTYPE_BYTES
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import InputError
from odcsim.lengths import LengthSource, load_source
from odcsim.model_shape import ModelShape, load_model
from odcsim.policies import Policy, find_policy, policy_names
from odcsim.resolve.case_schedules import CaseSchedules
from odcsim.resolve.plausible import require_plausible
from odcsim.resolve.resolved import ResolvedCase, ResolvedScenario
from odcsim.resolve.without_effect import settings_without_effect
from odcsim.scenario import Case, Scenario
from odcsim.schedule import Visit, decoder_visits

__all__ = ["resolve"]

# What plans are balanced by where `planning.cost` is `tokens`.
_TOKENS_ALONE = TokenCost(quadratic=0.0, linear=1.0)


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
    costs = _calibrated(scenario, model, base_folder=base_folder, file=file)
    coefficients_FV = (
        _compute(scenario, model, gpu, visits, file=file) if costs is None else calibrated_compute(costs, visits)
    )
    speeds_D = np.ones(scenario.cluster.ranks)
    for rank, speed in scenario.cluster.rank_speeds.items():
        speeds_D[rank] = speed
    schedules = CaseSchedules.of(scenario, model, gpu, costs=costs)
    cases = []
    for position, case in enumerate(scenario.cases):
        key = f"cases.{position}"
        policy = find_policy(case.policy, file=file, key=f"{key}.policy")
        _require_policy_works(case, policy, file=file, key=f"{key}.policy")
        schedule = schedules.schedule(case, overlap=case.overlap or scenario.overlap, visits=visits)
        cases.append(ResolvedCase(case, "", policy, schedule))
    _require_groups_can_be_kept(scenario, source, cases, file=file)
    labels = _labels([case.case for case in cases], scenario)
    training = scenario.training
    cost = microbatch_cost(coefficients_FV)
    resolved = ResolvedScenario(
        scenario=scenario,
        model=model,
        gpu=gpu,
        source=source,
        coefficients_FV=coefficients_FV,
        cost=cost,
        planning_cost=cost if scenario.planning.cost == "model" else _TOKENS_ALONE,
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
        published_bytes=schedules.shard.published_bytes_per_parameter,
        calibrated=costs,
        cases=tuple(
            ResolvedCase(case.case, label, case.policy, case.schedule)
            for case, label in zip(cases, labels, strict=True)
        ),
        warnings=(*settings_without_effect(scenario, source, cases, costs=costs), *_remarks(scenario, schedules)),
    )
    require_plausible(resolved, file=file)
    return resolved


def _require_policy_works(case: Case, policy: Policy, *, file: Path | None, key: str) -> None:
    """Refuse a policy whose plans the case's sync cannot run."""
    if case.sync != "fsdp":
        return
    if policy.is_pulled:
        raise InputError(
            f"{policy.name} decides as it runs which rank runs a microbatch, and under fsdp all ranks run each "
            "of theirs together; allowed: sync: odc, or a policy with equal counts",
            file=file,
            key=key,
            value=case.policy,
        )
    if not policy.equal_counts and not case.pad:
        raise InputError(
            f"{policy.name} gives ranks unequal numbers of microbatches, which deadlocks under fsdp; "
            "allowed: sync: odc, or pad: true (padding microbatches), or a policy with equal counts",
            file=file,
            key=key,
            value=case.policy,
        )


def _require_groups_can_be_kept(
    scenario: Scenario, source: LengthSource, cases: Sequence[ResolvedCase], *, file: Path | None
) -> None:
    """Refuse policies that would spread a group over ranks where none may be."""
    if not scenario.planning.keep_groups or source.group_size == 1:
        return
    able = ", ".join(name for name in policy_names() if find_policy(name).keeps_groups)
    for position, case in enumerate(cases):
        if not case.policy.keeps_groups:
            raise InputError(
                f"{case.policy.name} cannot keep the samples of a group on one rank, as planning.keep_groups asks; "
                f"allowed: {able}",
                file=file,
                key=f"cases.{position}.policy",
                value=case.case.policy,
            )


def _calibrated(
    scenario: Scenario, model: ModelShape, *, base_folder: Path, file: Path | None
) -> CalibratedCosts | None:
    """The costs that the scenario names, if any, once they are known to be of its model and training."""
    name, key = scenario.compute.calibrated, "compute.calibrated"
    if name is None:
        return None
    costs = load_costs(base_folder / name, key=key, file=file)
    if not costs.is_of_shape(model):
        other = (costs.model or {}).get("name", "without a name")
        raise InputError(
            f"was fitted to another model ({other}); allowed: costs of a run with this scenario's",
            file=file,
            key=key,
            value=name,
        )
    for setting, value in scenario.training.model_dump(mode="json").items():
        then = value if costs.training is None else costs.training.get(setting, value)
        if then != value:
            raise InputError(
                f"was fitted to a run with training.{setting}: {then}, and this scenario has {value}; allowed: costs "
                "of a run with this scenario's training",
                file=file,
                key=key,
                value=name,
            )
    return costs


def _remarks(scenario: Scenario, schedules: CaseSchedules) -> list[str]:
    if schedules.calibrated is None:
        return []
    return schedules.calibrated.remarks(file=scenario.compute.calibrated, syncs={case.sync for case in scenario.cases})


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
