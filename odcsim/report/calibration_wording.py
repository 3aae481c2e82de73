"""Sentences on fitted costs that page and terminal share."""

from __future__ import annotations

from collections.abc import Mapping

from odcsim.costs.calibrated import CalibratedCosts
from odcsim.report.wording import fine_percent, plural
from odcsim.units import format_count

__all__ = ["calibration_context", "calibration_headline", "calibration_name", "case_text"]


def calibration_name(costs: CalibratedCosts) -> str:
    """What was fitted: the costs of which scenario."""
    return f"Costs of {costs.origin.scenario}" if costs.origin.scenario else "Costs of a recorded run"


def calibration_context(costs: CalibratedCosts) -> dict[str, str]:
    """What they were fitted to, in a few lines."""
    origin = costs.origin
    cases = dict.fromkeys(case_text(case) for case in origin.cases)
    hosts = origin.ranks // origin.ranks_per_node
    ranks = plural(origin.ranks, "rank")
    if hosts > 1:
        ranks += f" ({plural(hosts, 'node')} x {origin.ranks_per_node})"
    if origin.processors is not None:
        ranks += f"; those of a host share {plural(origin.processors, 'processor')}"
    lines = {
        "Runs": f"{plural(len(origin.runs), 'run')}: {'; '.join(cases)}",
        "Seen": f"{plural(origin.minibatches, 'minibatch')}, {plural(origin.microbatches, 'microbatch')}",
        "Ranks": ranks,
    }
    if costs.model is not None:
        parameters = costs.model.get("total_parameters")
        size = f", {format_count(parameters)} parameters" if isinstance(parameters, int | float) else ""
        lines["Model"] = f"{costs.model.get('name', 'unnamed')}{size}"
    return lines


def case_text(case: Mapping[str, object]) -> str:
    """A recorded case, and what moved its data: "FSDP lb-micro over gloo"."""
    name = case.get("name") or f"{case.get('sync')} {case.get('policy')}"
    transport = case.get("transport")
    return f"{name} over {transport}" if transport else str(name)


def calibration_headline(costs: CalibratedCosts) -> tuple[str, str]:
    """How well the largest parts follow their fits; and what is not known."""
    forward, backward = costs.compute.block_forward.spread, costs.compute.block_backward.spread
    lead = (
        f"A block's compute follows its fit within {fine_percent(forward)} forward and {fine_percent(backward)} "
        "backward, one standard deviation."
    )
    warned = len(costs.warnings)
    support = f"{plural(warned, 'warning')} on what the runs do not tell." if warned else "Every term is told apart."
    return lead, support
