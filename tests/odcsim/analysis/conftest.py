"""Shared by the tests of analysis: runs of a machine whose costs are known, and predictions by costs from a file."""

from __future__ import annotations

import pytest
from known_machine import CHANGES, Machine

from odcsim.costs.calibrated import write_costs


@pytest.fixture
def recorded(tmp_path, changed):
    """Records cases of the small scenario, changed as asked, on a machine."""

    def record(*cases, machine=None, changes=(), **options):
        document = changed({**CHANGES, **dict(changes)})
        return [
            (machine or Machine()).record(tmp_path / f"run-{case}", document, case=case, **options) for case in cases
        ]

    return record


@pytest.fixture
def predicted(tmp_path, changed, run):
    """Simulates the small scenario, changed as asked, on costs that went through a file."""

    def predict(costs, changes=(), **options):
        write_costs(tmp_path / "costs.yaml", costs)
        document = changed({**CHANGES, **dict(changes), "compute": {"calibrated": "costs.yaml"}})
        return run(document, **options)

    return predict
