"""odcsim: simulate data-parallel LLM post-training under FSDP and under On-Demand Communication (ODC).

The command line is the main door (`odcsim --help`). From Python:

    from pathlib import Path
    from odcsim import load_scenario, simulate

    path = Path("scenarios/quickstart.yaml")
    result = simulate(load_scenario(path), base_folder=path.parent)
    print(result.cases[-1].speedup, result.cases[-1].speedup_ci95)

Names are imported when they are first used, so that `import odcsim` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odcsim.errors import InputError, OdcError, PolicyError, RunError, UnknownNameError

if TYPE_CHECKING:
    from odcsim.plan import Plan
    from odcsim.results import CaseResult, RunResult
    from odcsim.scenario import Scenario, load_scenario
    from odcsim.simulation import simulate

__version__ = "0.1.0"

__all__ = [
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
]

_HOMES = {
    "CaseResult": "odcsim.results",
    "Plan": "odcsim.plan",
    "RunResult": "odcsim.results",
    "Scenario": "odcsim.scenario",
    "load_scenario": "odcsim.scenario",
    "simulate": "odcsim.simulation",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of the exported names
    if name not in _HOMES:
        raise AttributeError(f"module 'odcsim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
