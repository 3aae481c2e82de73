"""What this runtime does not do, and what it does differently from what a scenario says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from odcsim.errors import InputError
from odcsim.scenario import Scenario

__all__ = ["remarks_on", "require_runnable", "settings_without_effect"]


def require_runnable(scenario: Scenario, *, file: Path) -> None:
    """Refuse what this runtime does not do, or has never been checked to do.

    Raises:
        InputError: names the key.
    """
    runtime, cluster = scenario.runtime, scenario.cluster
    for key, value in (("device", runtime.device), ("transport", runtime.transport)):
        if value == "cuda":
            allowed = "cpu" if key == "device" else "shm, collective or gloo"
            raise InputError(
                f"not available: this runtime has not been verified on GPUs; allowed: {allowed}",
                file=file,
                key=f"runtime.{key}",
                value=value,
            )
    if cluster.nodes > 1:
        raise InputError(
            "ranks run on this host alone; allowed: 1, or --nproc N for N ranks here",
            file=file,
            key="cluster.nodes",
            value=cluster.nodes,
        )
    if scenario.training.param_dtype == "fp16" and runtime.compute == "real":
        raise InputError(
            "not available with real compute: gradients would need loss scaling; allowed: bf16 or fp32",
            file=file,
            key="training.param_dtype",
            value="fp16",
        )


def remarks_on(scenario: Scenario) -> list[str]:
    """How the figures came about, as far as nobody would guess."""
    remarks = []
    if scenario.runtime.compute == "emulated":
        remarks.append(
            "compute was emulated: ranks slept for as long as the cost model says; transfers, waits and the optimizer "
            "are real"
        )
    remarks.append(
        "measured on CPU processes of this machine; the first minibatch was run once before as a warm-up, which is not "
        "counted"
    )
    return remarks


def settings_without_effect(scenario: Scenario) -> Iterator[str]:
    """One sentence for every setting that was made and changes nothing in a run on CPU processes."""
    cluster = scenario.cluster
    if "overlap" in scenario.model_fields_set and scenario.overlap != "none":
        yield f"overlap: {scenario.overlap} has no effect: on the CPU, transfers and compute take turns"
    for position, case in enumerate(scenario.cases):
        if case.overlap not in {None, "none"}:
            yield f"cases.{position}.overlap has no effect: on the CPU, transfers and compute take turns"
    if scenario.runtime.compute == "real":
        for key in ("rank_speeds", "slowdowns", "compute_noise"):
            if getattr(cluster, key):
                yield f"cluster.{key} has no effect on real compute; runtime.compute: emulated follows it"
    if scenario.on_demand.gather_dtype != "param":
        yield "on_demand.gather_dtype has no effect: shards are published in training.param_dtype"
    if scenario.on_demand.minibatch_overhead:
        yield "on_demand.minibatch_overhead has no effect: the overhead here is real"
    for key in ("link_speeds", "contention"):
        if getattr(cluster, key):
            yield f"cluster.{key} has no effect: transfers here are real"
