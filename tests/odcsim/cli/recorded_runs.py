"""Run folders for the commands that read them, as the simulator sees a scenario."""

from __future__ import annotations

from pathlib import Path

from odcsim.analysis.simulated_run import write_simulated_runs
from odcsim.scenario import load_scenario

__all__ = ["simulated_runs"]


def simulated_runs(scenario_file: Path, folder: Path, *, overrides=("overlap=none",), **options):
    """The folders of the scenario's runs."""
    scenario = load_scenario(scenario_file, overrides=list(overrides))
    return write_simulated_runs(scenario, folder, base_folder=scenario_file.parent, file=scenario_file, **options)
