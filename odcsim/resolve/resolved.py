"""A scenario with everything that it names: what the simulation, and the runtime, start from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from odcsim.arrays import FloatArray, IntArray
from odcsim.catalog import Gpu
from odcsim.costs.calibrated import CalibratedCosts
from odcsim.costs.memory import RESERVE_SHARE, MemoryModel
from odcsim.costs.token_cost import TokenCost
from odcsim.lengths import LengthSource
from odcsim.model_shape import ModelShape
from odcsim.policies import Policy
from odcsim.resolve.case_schedules import bytes_gathered
from odcsim.scenario import Case, Scenario
from odcsim.schedule import Schedule

__all__ = ["ResolvedCase", "ResolvedScenario"]


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
        planning_cost: what policies balance by: `cost`, or tokens.
        speeds_D: compute speed of every rank.
        memory: peak memory of a rank.
        published_bytes: of one published parameter under `odc`; 0 where the master parameters themselves are read.
        calibrated: costs fitted to a run, if the scenario names such.
        cases: in the scenario's order.
        warnings: settings that have no effect.
    """

    scenario: Scenario
    model: ModelShape
    gpu: Gpu
    source: LengthSource
    coefficients_FV: FloatArray
    cost: TokenCost
    planning_cost: TokenCost
    speeds_D: FloatArray
    memory: MemoryModel
    published_bytes: int
    calibrated: CalibratedCosts | None
    cases: tuple[ResolvedCase, ...]
    warnings: tuple[str, ...]

    def gather_bytes(self, *, on_demand: bool) -> int:
        """Bytes of a parameter as it is gathered."""
        return bytes_gathered(self.scenario, on_demand=on_demand)

    @cached_property
    def kept_groups_NS(self) -> IntArray | None:
        """The group of each sample of each minibatch, where plans are to keep groups on one rank; else None.

        A group that the end of a minibatch cuts counts as one in each of the two.
        """
        if not self.scenario.planning.keep_groups or self.source.group_size == 1:
            return None
        workload = self.scenario.workload
        samples = workload.samples_of(self.scenario.cluster.ranks)
        return self.source.draw_groups(workload.minibatches, samples, workload.seed)

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


def _source_document(source: LengthSource) -> dict[str, Any]:
    """Where lengths come from, with as much of a trace's provenance as a reader of the result needs."""
    told = {key: source.provenance[key] for key in ("source_repo", "licence", "kind") if key in source.provenance}
    return {"name": source.name, "synthetic": source.synthetic, "description": source.describe(), **told}
