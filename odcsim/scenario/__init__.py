"""The scenario file: its schema, and how a file becomes a validated `Scenario`."""

from odcsim.scenario.load import load_scenario, parse_scenario, scenario_schema
from odcsim.scenario.schema import (
    MOST_RANKS,
    AnalyticCompute,
    Case,
    Cluster,
    Compute,
    FittedCompute,
    Link,
    NodeLink,
    OnDemand,
    OneSided,
    Planning,
    Runtime,
    Scenario,
    Slowdowns,
    Training,
    Workload,
)

__all__ = [
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
]
