"""Figures so far from any device that times would overflow, or mean nothing, are refused."""

from __future__ import annotations

from pathlib import Path

from odcsim.errors import InputError
from odcsim.resolve.resolved import ResolvedScenario

__all__ = ["require_plausible"]

# No step of any run takes as long, and sums of such steps are far from overflowing.
_LONGEST_STEP_S = 1e15
_LARGEST_RATE = 1e30


def require_plausible(resolved: ResolvedScenario, *, file: Path | None) -> None:
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
