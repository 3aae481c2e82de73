"""Costs that are known, as a file of calibrated costs has them, for tests of what makes and what takes such files."""

from __future__ import annotations

from odcsim.costs.calibrated import (
    CalibratedCosts,
    ComputeCosts,
    Origin,
    StepCosts,
    Term,
    TransferCost,
    TransferPair,
    VisitCost,
)


def term(value, *, identified=True):
    return Term(value=value, low=value, high=value, identified=identified)


def visit_cost(squared_tokens, tokens, constant):
    return VisitCost(
        squared_tokens=term(squared_tokens), tokens=term(tokens), constant=term(constant), spread=0.0, observations=1
    )


def transfer_cost(latency, seconds_per_byte, **more):
    return TransferCost(
        latency=term(latency), seconds_per_byte=term(seconds_per_byte), spread=0.0, observations=1, **more
    )


def known_costs(ranks=4, **changes):
    """Costs of which no two are alike, each large enough to matter: compute of a few to some hundred milliseconds."""
    given = {
        "origin": Origin(
            runs=("none",),
            digests=("0" * 16,),
            cases=({"sync": "odc"},),
            scenario=None,
            ranks=ranks,
            ranks_per_node=ranks,
            processors=None,
            minibatches=1,
            microbatches=1,
            versions={},
        ),
        "model": None,
        "training": None,
        "compute": ComputeCosts(
            embedding_forward=visit_cost(0.0, 1.5e-7, 3e-4),
            block_forward=visit_cost(7e-10, 2.5e-6, 1.1e-3),
            head_forward=visit_cost(0.0, 1.2e-6, 5e-4),
            head_backward=visit_cost(0.0, 2.3e-6, 7e-4),
            block_backward=visit_cost(2.1e-9, 6.5e-6, 2.3e-3),
            embedding_backward=visit_cost(0.0, 3.1e-7, 9e-4),
        ),
        "one_sided": TransferPair(
            gather=transfer_cost(2.3e-4, 3.1e-9), scatter_accumulate=transfer_cost(3.7e-4, 4.3e-9)
        ),
        "collectives": {
            "collective": TransferPair(
                gather=transfer_cost(1.3e-4, 1.7e-9), scatter_accumulate=transfer_cost(1.9e-4, 2.9e-9)
            )
        },
        "steps": StepCosts(meeting=term(1.1e-4), publish=term(1.7e-3), settle=term(2.9e-3), optimizer=term(5.3e-3)),
    }
    return CalibratedCosts(**{**given, **changes})


def terms_of(costs, *sections):
    """All terms of some sections of a file of costs, by dotted name."""
    found = {}

    def walk(name, value):
        if isinstance(value, Term):
            found[name] = value
        elif value is not None and hasattr(type(value), "model_fields"):
            for key in type(value).model_fields:
                walk(f"{name}.{key}", getattr(value, key))
        elif isinstance(value, dict):
            for key, entry in value.items():
                walk(f"{name}.{key}", entry)

    for section in sections:
        walk(section, getattr(costs, section))
    return found
