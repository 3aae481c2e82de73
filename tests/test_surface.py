"""The surface: what is exported, and what importing it costs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import odcsim

SURFACE = {
    "odcsim": [
        "CaseResult",
        "InputError",
        "OdcError",
        "Plan",
        "PolicyError",
        "RunError",
        "RunResult",
        "Scenario",
        "UnknownNameError",
        "load_scenario",
        "simulate",
    ],
    "odcsim.analysis.simulated_run": ["write_simulated_runs"],
    "odcsim.analysis.validation_document": [
        "VALIDATION_SCHEMA",
        "ValidationSummary",
        "speedups_of",
        "summarize",
        "validation_document",
    ],
    "odcsim.catalog": ["Gpu", "gpu_names", "load_gpu", "model_entries", "model_names"],
    "odcsim.cli": ["main"],
    "odcsim.drop_in": [
        "DEFAULT_COST",
        "CostLike",
        "DropInWarning",
        "Packing",
        "agreed_micro_batch_indices",
        "micro_batch_indices",
        "pack_indices",
        "plan_lengths",
        "seqlen_balanced_partitions",
        "token_cost",
    ],
    "odcsim.engines": ["Engine", "engine_names", "find_engine"],
    "odcsim.errors": ["InputError", "OdcError", "PolicyError", "RunError", "UnknownNameError"],
    "odcsim.files": ["read_text", "require_output_folder", "write_atomically", "write_together"],
    "odcsim.foreign": ["IngestedRun", "RankShares", "ingest", "shares_of"],
    "odcsim.metrics": ["RankTimeTotals", "paired_speedup"],
    "odcsim.model_shape": ["ModelShape", "SlidingWindowWarning", "load_model"],
    "odcsim.plan": ["Microbatch", "MicrobatchLoads", "Plan"],
    "odcsim.policies": [
        "MinibatchPlan",
        "Oversize",
        "OversizeResult",
        "PlanFunction",
        "PlanTask",
        "Policy",
        "apply_oversize",
        "find_policy",
        "plan_minibatch",
        "policy_names",
    ],
    "odcsim.report": [
        "print_calibration",
        "print_table",
        "print_validation",
        "render_calibration_page",
        "render_page",
        "render_table",
        "render_validation_page",
    ],
    "odcsim.results": ["RESULT_SCHEMA", "CaseResult", "Conservation", "MemoryResult", "RunResult", "TimeFractions"],
    "odcsim.scenario": [
        "MOST_RANKS",
        "AnalyticCompute",
        "Case",
        "Cluster",
        "Compute",
        "FittedCompute",
        "Link",
        "NodeLink",
        "OnDemand",
        "OneSided",
        "Planning",
        "Runtime",
        "Scenario",
        "Slowdowns",
        "Training",
        "Workload",
        "load_scenario",
        "parse_scenario",
        "scenario_schema",
    ],
    "odcsim.simulation": ["EngineChoice", "Progress", "simulate"],
    "odcsim.units": ["Dimension", "format_bytes", "format_count", "format_seconds", "parse_quantity"],
}
HEAVY = ["numpy", "scipy", "pydantic", "plotly", "simpy", "yaml", "rich", "torch"]


@pytest.mark.parametrize("module", SURFACE)
def test_exported_names(module):
    exported = importlib.import_module(module).__all__
    assert sorted(exported) == sorted(SURFACE[module])


@pytest.mark.parametrize("module", SURFACE)
def test_exported_names_are_there(module):
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None


def test_names_of_the_package_are_found_when_they_are_used():
    assert dir(odcsim) == sorted(odcsim.__all__)
    with pytest.raises(AttributeError, match="module 'odcsim' has no attribute 'simulator'"):
        _ = odcsim.simulator


def test_errors_are_the_same_wherever_they_are_taken_from():
    assert odcsim.InputError is importlib.import_module("odcsim.errors").InputError


def python(code):
    """What a fresh interpreter prints, as JSON."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ended.stderr == ""
    return json.loads(ended.stdout.splitlines()[-1])


def test_importing_the_package_costs_next_to_nothing():
    code = f"import odcsim, sys, json; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    assert python(code) == []


def test_the_simulator_needs_no_torch(root):
    """A whole run with torch blocked, and without odcrt."""
    code = f"""
import json, sys
from pathlib import Path
sys.modules["torch"] = sys.modules["odcrt"] = None
import odcsim
from odcsim.report import render_page
path = Path({str(root / "scenarios" / "quickstart.yaml")!r})
scenario = odcsim.load_scenario(path, overrides=["workload.minibatches=2"])
result = odcsim.simulate(scenario, base_folder=path.parent, file=path)
assert render_page(result)
print(json.dumps(len(result.cases)))
"""
    assert python(code) >= 3


@pytest.mark.parametrize(
    ("command", "needed"),
    # Newer versions of Typer look at a command's parameters with pydantic.
    [("", []), ("run", ["pydantic"]), ("calibrate", ["pydantic"]), ("validate", ["pydantic"])],
)
def test_help_is_quick(command, needed):
    """None of what a run needs is imported for --help."""
    code = f"""
import json, sys
sys.argv = ["odcsim", *{command.split()}, "--help"]
from odcsim.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
print(json.dumps([code or 0, [name for name in {HEAVY} if name in sys.modules]]))
"""
    ended, imported = python(code)
    assert ended == 0
    assert set(imported) <= set(needed)


def test_engines_are_imported_when_they_are_asked_for():
    code = """
import json, sys
from odcsim.engines import find_engine
find_engine("recurrence")
before = "simpy" in sys.modules
find_engine("events")
print(json.dumps([before, "simpy" in sys.modules]))
"""
    assert python(code) == [False, True]
