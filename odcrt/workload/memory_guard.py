"""Whether a scenario fits into this machine, before anything is started. Bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from odcrt.workload.minibatches import PlannedCase
from odcsim.errors import InputError
from odcsim.resolve import ResolvedScenario
from odcsim.units import format_bytes

__all__ = ["available_bytes", "estimate_bytes", "require_memory", "total_bytes"]

# Interpreter and libraries of a rank: 230 MB each, of which about 100 MB are shared.
_PROCESS_BYTES = 250e6
_FP32 = 4


def estimate_bytes(resolved: ResolvedScenario, planned: Sequence[PlannedCase]) -> float:
    """Memory that the ranks of the most demanding case need together.

    As the simulator counts it (docs/model.md, "Memory"), and beside it what this runtime holds: the staging areas of
    `collective`, weights being drawn, and the processes themselves. Emulated compute has no activations.
    """
    scenario, ranks = resolved.scenario, resolved.scenario.cluster.ranks
    emulated = scenario.runtime.compute == "emulated"
    largest_unit = max(resolved.model.root_parameters, resolved.model.parameters_per_block)
    needs = []
    for case, plan in zip(resolved.cases, planned, strict=True):
        on_demand = case.case.sync == "odc"
        parts = resolved.memory.parts_bytes(
            tokens=0 if emulated else plan.largest_microbatch_tokens,
            on_demand=on_demand,
            published_bytes=resolved.published_bytes,
            gather_bytes=resolved.gather_bytes(on_demand=on_demand),
        )
        staged = 0.0 if on_demand or scenario.runtime.transport == "gloo" else 2.0 * largest_unit * _FP32
        needs.append(sum(parts.values()) + staged)
    drawn = 0.0 if emulated else float(resolved.model.embedding_parameters * _FP32)
    return ranks * (max([*needs, drawn]) + _PROCESS_BYTES)


def total_bytes() -> float:
    """Memory of this machine, or of the group of processes that this one is confined to."""
    return min([_meminfo_bytes("MemTotal"), *(limit for limit, _ in _limits())])


def available_bytes() -> float:
    """What of it is not in use; infinite where nobody tells."""
    return min([_meminfo_bytes("MemAvailable"), *(limit - used for limit, used in _limits())])


def _meminfo_bytes(name: str) -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        if name == "MemTotal" and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return float("inf")
    found = dict(line.split(":", 1) for line in lines)
    return 1024.0 * int(found[name].split()[0])


def _limits() -> list[tuple[float, float]]:
    """Limit and use of control groups, version 2 and 1."""
    found = []
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            texts = [(Path("/sys/fs/cgroup") / name).read_text(encoding="ascii").strip() for name in (limit, used)]
        except OSError:
            continue
        if all(text.isdecimal() for text in texts):
            found.append((float(texts[0]), float(texts[1])))
    return found


def require_memory(resolved: ResolvedScenario, planned: Sequence[PlannedCase], *, file: object) -> None:
    """Refuse a scenario that would not fit.

    Raises:
        InputError: says how much it needs, and how much there is.
    """
    needed, there = estimate_bytes(resolved, planned), available_bytes()
    if needed > there:
        ranks = resolved.scenario.cluster.ranks
        raise InputError(
            f"needs about {format_bytes(needed)} on {ranks} ranks, and {format_bytes(there)} are available here "
            "(allowed: a smaller model, shorter microbatches or fewer ranks)",
            file=file,
            key="model",
            value=resolved.model.name,
        )
