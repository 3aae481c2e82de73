"""The simulations behind an advice: one scenario with this or that changed, their warnings, and progress over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from odcsim.plan_cache import PlanCache
from odcsim.results import RunResult
from odcsim.scenario import Case, Scenario, parse_scenario
from odcsim.simulation import Progress, simulate

__all__ = ["Simulations"]


class Simulations:
    """Simulates a scenario with other cases and settings.

    Args:
        scenario: which the user wrote.
        base_folder: what its paths are relative to.
        file: the scenario's file, for messages.
        progress: told of the samples done, of all that will be simulated.
        samples: of all simulations together, times their cases, as far as can be foreseen.
        plans: that simulations share.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        base_folder: Path,
        file: Path | None,
        progress: Progress | None,
        samples: int,
        plans: PlanCache,
    ) -> None:
        self._scenario = scenario
        self._base_folder = base_folder
        self._file = file
        self._progress = progress
        self._samples = samples
        self._plans = plans
        self._done = 0
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of all simulations so far, each once, in the order in which they came up."""
        return tuple(self._warnings)

    def of(self, cases: Sequence[Case], *, minibatches: int, settings: Mapping[str, object]) -> RunResult:
        """Simulate cases.

        Args:
            cases: in place of the scenario's.
            minibatches: in place of the scenario's.
            settings: dotted keys of the scenario with other values.

        Raises:
            InputError: the changed scenario cannot be run.
        """
        changed = self._changed(cases, {**settings, "workload.minibatches": minibatches})
        weight = minibatches * changed.workload.samples_of(changed.cluster.ranks) * len(cases)

        def told(done: int, steps: int) -> None:
            if self._progress is not None:
                self._progress(min(self._samples, self._done + weight * done // steps), self._samples)

        try:
            result = simulate(changed, base_folder=self._base_folder, file=self._file, progress=told, plans=self._plans)
        finally:
            self._done += weight
        self._warnings |= dict.fromkeys(result.warnings)
        return result

    def _changed(self, cases: Sequence[Case], settings: Mapping[str, object]) -> Scenario:
        document = self._scenario.model_dump(exclude_unset=True)
        document["cases"] = [case.model_dump(exclude_unset=True) for case in cases]
        for key, value in settings.items():
            section, _, name = key.partition(".")
            document[section] = {**document.get(section, {}), name: value}
        return parse_scenario(document, file=self._file)
