"""Costs fitted to a recorded run: what their file says, and what they come to on a cluster.

    schema  the file's content
    file    reading and writing it
    laws    seconds of transfers and steps on a cluster of any size

`odcsim calibrate` writes the file; a scenario takes it by `compute: {calibrated: FILE}`. docs/calibrate.md explains.
"""

from odcsim.costs.calibrated.file import costs_text, load_costs, write_costs
from odcsim.costs.calibrated.laws import CalibratedTransfers, TransferName, calibrated_compute
from odcsim.costs.calibrated.schema import (
    COSTS_SCHEMA,
    ONE_SIDED_BASE,
    VISIT_KINDS,
    CalibratedCosts,
    ComputeCosts,
    MemoryCosts,
    Origin,
    StepCosts,
    Term,
    TransferCost,
    TransferPair,
    VisitCost,
    visit_kind,
)

__all__ = [
    "COSTS_SCHEMA",
    "ONE_SIDED_BASE",
    "VISIT_KINDS",
    "CalibratedCosts",
    "CalibratedTransfers",
    "ComputeCosts",
    "MemoryCosts",
    "Origin",
    "StepCosts",
    "Term",
    "TransferCost",
    "TransferName",
    "TransferPair",
    "VisitCost",
    "calibrated_compute",
    "costs_text",
    "load_costs",
    "visit_kind",
    "write_costs",
]
