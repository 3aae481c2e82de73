"""benchmarks/balancing/dynamic.py in small: what it measures is there, and points the way that it should."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from balancing import dynamic
from balancing.dynamic import Comparison, Setting, measured, sections, simulated

sys.path.pop(0)

UNKNOWING = ("independent", "lb-mini")


def test_pulling_is_near_the_best_plan_and_plans_that_know_as_little_are_far():
    found = simulated(Setting("qmsum_train_sft", 8, slow_ranks=(0, 5), minibatches=3))
    assert 0 <= found.beyond("dynamic") < 0.1
    assert all(found.beyond(policy) > 0.3 for policy in UNKNOWING)


def test_a_requirement_that_does_not_hold_is_named(monkeypatch):
    def shown(dynamic_s):
        found = Comparison(1.0, {"dynamic": dynamic_s, "independent": 1.4, "lb-mini": 1.4})
        monkeypatch.setattr(dynamic, "simulated", lambda _: found)
        monkeypatch.setattr(dynamic, "measured", lambda: found)
        return "\n".join(sections(runtime=True))

    assert "MISSED" not in shown(1.04)
    # With 8 samples a rank, and for real.
    assert shown(1.06).count("MISSED: dynamic is to be within 5%") == 2
    assert shown(1.5).count("MISSED: dynamic is to be faster") == 2


def test_of_several_runs_the_shortest_count(monkeypatch):
    runs_s = iter(
        [{"independent": 1.1}, {"lb-mini": 1.6, "dynamic": 1.2}, {"independent": 1.0}, {"lb-mini": 1.5, "dynamic": 1.3}]
    )
    monkeypatch.setattr(dynamic, "_measured_s", lambda *_: next(runs_s))
    assert measured() == Comparison(1.0, {"lb-mini": 1.5, "dynamic": 1.2})


def test_the_runtimes_scenario_is_planned_with_and_without_knowledge(monkeypatch):
    """The simulator stands in for the runtime, which prints the same document; test_launch_pulled runs the scenario."""
    simulator = "import sys; from odcsim.cli import main; sys.argv[1] = {'launch': 'run'}[sys.argv[1]]; main()"
    monkeypatch.setattr(dynamic, "ODCRT", [sys.executable, "-c", simulator])
    found = measured(repeats=1, overrides=["workload.minibatches=2"])
    assert set(found.others_s) == {"dynamic", *UNKNOWING}
    assert 0 < found.beyond("dynamic") < 0.1
    assert all(found.beyond(policy) > 0.2 for policy in UNKNOWING)
