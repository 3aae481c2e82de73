"""Fitted costs and a validation made by hand: what their pages and tables are tested on."""

from __future__ import annotations

import dataclasses

import numpy as np

from odcsim.analysis.calibrate import Calibration
from odcsim.analysis.terms import FittedPart
from odcsim.analysis.validate import CaseComparison, Validation
from odcsim.costs.calibrated import (
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
)
from odcsim.results import TimeFractions


def term(value: float, low: float | None = None, high: float | None = None, *, identified: bool = True) -> Term:
    """A term, by default with an interval of 10% to either side."""
    return Term(
        value=value,
        low=value * 0.9 if low is None else low,
        high=value * 1.1 if high is None else high,
        identified=identified,
    )


UNKNOWN = Term(value=0.0, low=0.0, high=0.0, identified=False)


def _transfer(latency_s: float, per_byte: Term, *, contention: Term | None = None) -> TransferCost:
    return TransferCost(
        latency=term(latency_s), seconds_per_byte=per_byte, contention=contention, spread=0.25, observations=99
    )


def sample_costs(**changes: object) -> CalibratedCosts:
    """Costs with every kind of term: known well, not told apart, without an upper end."""
    visit = VisitCost(
        squared_tokens=term(109e-12, 106e-12, 112e-12),
        tokens=term(4.74e-6, 4.59e-6, 4.88e-6),
        constant=term(0.0394, 0.0357, 0.0432),
        spread=0.0004,
        observations=1234,
    )
    costs = CalibratedCosts(
        origin=Origin(
            runs=("0-fsdp-lb-micro", "1-odc-lb-micro"),
            digests=("0123456789abcdef", "fedcba9876543210"),
            cases=(
                {"name": "FSDP lb-micro", "sync": "fsdp", "policy": "lb-micro", "transport": "gloo"},
                {"name": "ODC lb-micro", "sync": "odc", "policy": "lb-micro", "transport": "shm"},
            ),
            scenario="sample",
            ranks=4,
            ranks_per_node=4,
            processors=2,
            minibatches=6,
            microbatches=96,
            versions={"odcsim": "0.1.0"},
        ),
        model={"name": "toy", "layers": 2, "total_parameters": 106816},
        training={"recompute": "full"},
        compute=ComputeCosts(**dict.fromkeys(VISIT_KINDS, visit)),
        one_sided=TransferPair(
            gather=_transfer(1e-4, UNKNOWN, contention=term(3.43, 0.85, 7.3)),
            scatter_accumulate=_transfer(3e-4, term(0.0, 0.0, 2e-10), contention=UNKNOWN),
        ),
        collectives={
            "gloo": TransferPair(
                gather=_transfer(1e-3, term(1.6e-10, 1.25e-10, 2e-10)),
                scatter_accumulate=_transfer(2e-3, term(1.6e-10, 0.0, 2e-10)),
            )
        },
        steps=StepCosts(meeting=term(8e-4), optimizer=term(4.65e-3, 3.45e-3, 6.24e-3)),
        memory=MemoryCosts(
            process=term(297e6, 296e6, 298e6),
            base={"one_sided": term(188e6), "gloo": term(180e6)},
            per_token=term(56e3),
            spread=0.1,
            observations=24,
        ),
        warnings=("block_forward: constant is known to lie from 0 to 1 only",),
    )
    return costs.model_copy(update=changes)


def sample_part(name: str, *, count: int = 60, axis: str = "tokens", spread: float = 0.02, seed: int = 0) -> FittedPart:
    """Observations that spread around their fit."""
    generator = np.random.Generator(np.random.PCG64(seed))
    against_K = generator.uniform(1e3, 5e4, count) if axis == "tokens" else generator.choice([5e4, 2e5], count)
    fitted_s_K = 1e-3 + 1e-6 * against_K
    measured_s_K = fitted_s_K * (1 + spread * generator.standard_normal(count))
    return FittedPart(name, axis, against_K, measured_s_K, fitted_s_K, spread)


def sample_calibration(**changes: object) -> Calibration:
    """All six visits, and four kinds of transfer."""
    parts = [sample_part(kind, seed=seed) for seed, kind in enumerate(VISIT_KINDS)]
    parts += [
        sample_part(name, axis="bytes", spread=0.2, seed=9)
        for name in (
            "all-gather over gloo",
            "reduce-scatter over gloo",
            "one-sided gather",
            "one-sided scatter-accumulate",
        )
    ]
    return Calibration(sample_costs(**changes), tuple(parts))


def sample_case(
    label: str,
    predicted_s: list[float],
    measured_s: list[list[float]],
    *,
    sync: str = "fsdp",
    is_fitted: bool = False,
    predicted_peak_bytes: float | None = 3e8,
    measured_peak_bytes: tuple[float, ...] = (3.1e8,),
) -> CaseComparison:
    """A case whose minibatches count from 0; a list of seconds for every repeat."""
    return CaseComparison(
        label=label,
        sync=sync,
        policy="lb-micro",
        transport="collective",
        ranks=4,
        runs=tuple(f"{position}-{label}" for position in range(len(measured_s))),
        is_fitted=is_fitted,
        minibatches=tuple(range(len(predicted_s))),
        predicted_s_N=np.array(predicted_s),
        measured_s_RN=np.array(measured_s),
        predicted=TimeFractions(0.7, 0.1, 0.15, 0.03, 0.02),
        measured=TimeFractions(0.68, 0.12, 0.15, 0.03, 0.02),
        predicted_peak_bytes=predicted_peak_bytes,
        measured_peak_bytes_R=measured_peak_bytes,
    )


def sample_validation() -> Validation:
    """A case that costs were fitted to, one with two repeats, and one that is far off: +1%, +5% and -10%."""
    return Validation(
        "sample",
        (
            sample_case("FSDP lb-micro", [2.02, 2.02], [[2.0, 2.0]], is_fitted=True),
            sample_case("ODC lb-micro", [1.68, 1.68], [[1.5, 1.5], [1.7, 1.7]], sync="odc"),
            sample_case("ODC lb-mini", [1.08, 1.08], [[1.2, 1.2]], sync="odc"),
        ),
        ("a warning",),
    )


def with_case(validation: Validation, position: int, **changes: object) -> Validation:
    """The validation with one of its cases changed."""
    cases = list(validation.cases)
    cases[position] = dataclasses.replace(cases[position], **changes)
    return dataclasses.replace(validation, cases=tuple(cases))
