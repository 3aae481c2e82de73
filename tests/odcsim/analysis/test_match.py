"""Runs that look like one scenario's, and are not."""

from __future__ import annotations

import dataclasses

import pytest

from odcsim.analysis.match import require_same_emulation
from odcsim.errors import InputError


def emulating(run, scale):
    """The run, as if odcrt had emulated compute at a scale of time."""
    compute = {"fitted": {"quadratic": 1.0, "linear": 1.0, "per_tokens": 1000.0, "scale": scale}}
    info = dataclasses.replace(
        run.info,
        case={**run.info.case, "compute": "emulated"},
        scenario={**run.info.scenario, "compute": compute},
    )
    return dataclasses.replace(run, info=info)


def test_runs_that_emulated_the_same_compute_go_together(recorded):
    runs = [emulating(run, 0.5) for run in recorded(0, 1)]
    require_same_emulation(runs)


def test_runs_emulated_at_another_scale_are_no_repeats(recorded):
    one, other = recorded(0, 1)
    with pytest.raises(InputError, match=r"run-1.run\.json: scenario\.compute: .*run-0 emulated .*0\.5"):
        require_same_emulation([emulating(one, 0.5), emulating(other, 0.25)])


def test_real_compute_may_have_been_planned_on_other_costs(recorded):
    """What policies balance by is not what ranks computed."""
    one, other = recorded(0, 1)
    info = dataclasses.replace(other.info, case={**other.info.case, "compute": "real"}, scenario={})
    require_same_emulation([one, dataclasses.replace(other, info=info)])
