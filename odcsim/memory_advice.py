"""Whether a case fits in memory, by how much it does not, and what would make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from odcsim.costs.memory import MemoryModel
from odcsim.resolve import ResolvedScenario, collective_transport
from odcsim.results import MemoryResult
from odcsim.scenario import MOST_RANKS
from odcsim.units import format_bytes

__all__ = ["memory_result", "peak_parts_bytes"]


def memory_result(resolved: ResolvedScenario, *, on_demand: bool, tokens: int) -> MemoryResult:
    """Peak memory of a case whose largest microbatch has `tokens`."""
    question = _Question(resolved, on_demand)
    result = MemoryResult(
        parts_bytes=question.parts_bytes(resolved.memory, tokens),
        capacity_bytes=resolved.capacity_bytes,
        largest_microbatch_tokens=tokens,
    )
    if result.fits:
        return result
    ways = list(question.ways_to_fit(tokens))
    advice = f"needs {format_bytes(result.over_bytes)} more than the {format_bytes(result.capacity_bytes)} of a device"
    remedy = f"would fit with {', or '.join(ways)}" if ways else "no single change of this scenario makes it fit"
    return dataclasses.replace(result, advice=f"{advice}; {remedy}")


def peak_parts_bytes(
    resolved: ResolvedScenario, memory: MemoryModel, *, on_demand: bool, tokens: float, accumulates: bool = True
) -> dict[str, float]:
    """Peak memory of a rank by part: by formula, or as a run showed it if the scenario names costs that tell of memory.

    Args:
        resolved: the scenario.
        memory: its model of memory, or a changed one.
        on_demand: whether gradients are in ODC's accumulator, and its published copy is held.
        tokens: of the largest microbatch.
        accumulates: whether it adds to gradients that an earlier one has left; where it is the first of its minibatch,
            memory that a run showed under FSDP is lower by these. Formulas count them always.
    """
    parts = memory.parts_bytes(
        tokens=tokens,
        on_demand=on_demand,
        published_bytes=resolved.published_bytes,
        gather_bytes=resolved.gather_bytes(on_demand=on_demand),
    )
    costs = resolved.calibrated
    if costs is None or costs.memory is None:
        return parts
    counted = costs.memory
    transport = collective_transport(resolved.scenario)
    base = counted.base_bytes(on_demand=on_demand, transport=transport)
    # The sharded state is part of the base; on other ranks it is another share.
    state = parts["parameters"] + parts["optimizer_state"]
    state_then = state * memory.ranks / costs.origin.ranks
    gradients = parts["gradients"] if accumulates and not on_demand else 0.0
    training = base - state_then + state + gradients + counted.per_token.value * tokens
    staging = counted.staging.value if counted.staging is not None and transport == "collective" else 0.0
    return {
        "process": counted.process.value,
        "training": max(training, 0.0),
        "shared_memory": parts["published_copy"] + parts["accumulator"] if on_demand else staging,
    }


@dataclass(frozen=True)
class _Question:
    """What a case of a scenario holds in memory, with this or that changed."""

    resolved: ResolvedScenario
    on_demand: bool

    def parts_bytes(self, memory: MemoryModel, tokens: int) -> dict[str, float]:
        return peak_parts_bytes(self.resolved, memory, on_demand=self.on_demand, tokens=tokens)

    def fits(self, memory: MemoryModel, tokens: int) -> bool:
        return sum(self.parts_bytes(memory, tokens).values()) <= self.resolved.capacity_bytes

    def ways_to_fit(self, tokens: int) -> Iterator[str]:
        """Single changes of the scenario that would each make it fit."""
        memory, cluster = self.resolved.memory, self.resolved.scenario.cluster
        # Another cost or number of ranks gives other plans, whose largest microbatch may fill the cap.
        most_tokens = max(tokens, self.resolved.scenario.workload.max_tokens)
        if self.fits(memory, 1):
            cap = _largest(lambda tokens: self.fits(memory, tokens), low=1, high=tokens)
            yield f"workload.max_tokens: {cap} (longer samples need workload.oversize: truncate or drop)"
        if not memory.recompute and self.fits(dataclasses.replace(memory, recompute=True), most_tokens):
            yield "training.recompute: full"
        if not memory.fused_loss and self.fits(dataclasses.replace(memory, fused_loss=True), tokens):
            yield "training.fused_loss: true"

        def on(nodes: int) -> MemoryModel:
            return dataclasses.replace(memory, ranks=nodes * cluster.gpus_per_node)

        most_nodes = MOST_RANKS // cluster.gpus_per_node
        if self.fits(on(most_nodes), most_tokens):
            too_few = _largest(lambda nodes: not self.fits(on(nodes), most_tokens), low=cluster.nodes, high=most_nodes)
            yield f"cluster.nodes: {too_few + 1}"


def _largest(holds: Callable[[int], bool], *, low: int, high: int) -> int:
    """The largest number from `low` to `high` for which `holds`; it must hold at `low` and cease only once."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
