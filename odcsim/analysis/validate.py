"""Predicted against measured: the very plans of recorded runs, simulated, and how far off each figure is.

A case may have been recorded several times: then the median over repeats counts, minibatch by minibatch, and the
repeats' spread tells how well the machine agrees with itself. A run that costs were fitted to is shown, but not judged.

Legend: N minibatches, R repeats. Errors are predicted / measured - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from odcsim.analysis.match import matching_case, require_same_emulation, require_same_scenario, transport_of
from odcsim.analysis.measured import MeasuredRun, measure
from odcsim.analysis.observe import observe
from odcsim.analysis.prediction import PredictedRun, predict
from odcsim.arrays import FloatArray
from odcsim.errors import InputError
from odcsim.resolve import ResolvedScenario, over_collectives, resolve
from odcsim.results import TimeFractions
from odcsim.scenario import Scenario
from odcsim.trace_format import RecordedRun, run_digest

__all__ = ["DISTINCT_SHARE", "CaseComparison", "Validation", "validate"]

DISTINCT_SHARE = 0.05
"""Cases whose measured times differ by less are not asked which is faster."""


@dataclass(frozen=True)
class CaseComparison:
    """One case, predicted and measured.

    Attributes:
        label: the case, and the transport of its collectives.
        sync: `fsdp` or `odc`.
        policy: by name.
        transport: what moved the data.
        ranks: D.
        runs: folders of its repeats.
        is_fitted: whether costs were fitted to one of them.
        minibatches: N of them, by number.
        predicted_s_N: seconds.
        measured_s_RN: seconds of every repeat.
        predicted: fractions of rank-time.
        measured: fractions of rank-time, mean over repeats.
        predicted_peak_bytes: of the fullest rank; None where costs say nothing of memory.
        measured_peak_bytes_R: of every repeat that tells.
    """

    label: str
    sync: str
    policy: str
    transport: str
    ranks: int
    runs: tuple[str, ...]
    is_fitted: bool
    minibatches: tuple[int, ...]
    predicted_s_N: FloatArray
    measured_s_RN: FloatArray
    predicted: TimeFractions
    measured: TimeFractions
    predicted_peak_bytes: float | None
    measured_peak_bytes_R: tuple[float, ...]

    @property
    def measured_s_N(self) -> FloatArray:
        """Median over repeats."""
        median_s_N: FloatArray = np.median(self.measured_s_RN, axis=0)
        return median_s_N

    @property
    def error(self) -> float:
        """Of the mean minibatch."""
        return float(self.predicted_s_N.mean() / self.measured_s_N.mean()) - 1

    @property
    def errors_N(self) -> FloatArray:
        """Of each minibatch."""
        errors_N: FloatArray = self.predicted_s_N / self.measured_s_N - 1
        return errors_N

    @property
    def repeat_spread(self) -> float | None:
        """Longest over shortest mean of a repeat, less 1; None for a single one."""
        means_R = self.measured_s_RN.mean(axis=1)
        return float(means_R.max() / means_R.min()) - 1 if len(means_R) > 1 else None

    @property
    def memory_error(self) -> float | None:
        """Of peak memory, against the repeats' median."""
        if self.predicted_peak_bytes is None or not self.measured_peak_bytes_R:
            return None
        return self.predicted_peak_bytes / float(np.median(self.measured_peak_bytes_R)) - 1

    @property
    def memory_spread(self) -> float | None:
        """Most over least peak of a repeat, less 1."""
        peaks = self.measured_peak_bytes_R
        return max(peaks) / min(peaks) - 1 if len(peaks) > 1 else None


@dataclass(frozen=True)
class Validation:
    """All cases of a scenario that runs were given of; the first is the baseline of speedups."""

    name: str
    cases: tuple[CaseComparison, ...]
    warnings: tuple[str, ...]

    @property
    def judged(self) -> tuple[CaseComparison, ...]:
        """Cases that no cost was fitted to."""
        return tuple(case for case in self.cases if not case.is_fitted)

    @property
    def mean_absolute_error(self) -> float | None:
        """Over the judged cases; None without any."""
        errors = [abs(case.error) for case in self.judged]
        return float(np.mean(errors)) if errors else None

    @property
    def worst(self) -> CaseComparison | None:
        """The judged case that is furthest off."""
        return max(self.judged, key=lambda case: abs(case.error), default=None)

    def speedups(self, case: CaseComparison) -> tuple[float, float]:
        """Predicted and measured speedup of a case over the first, over the minibatches that both have."""
        first = self.cases[0]
        (_, ours), (_, theirs) = _shared_rows(case, first)
        predicted = float(first.predicted_s_N[theirs].sum() / case.predicted_s_N[ours].sum())
        measured = float(first.measured_s_N[theirs].sum() / case.measured_s_N[ours].sum())
        return predicted, measured

    @property
    def distinct_pairs(self) -> tuple[tuple[CaseComparison, CaseComparison], ...]:
        """Pairs of cases that clearly differ over the minibatches that both have: (measured faster, slower)."""
        found = []
        for one, other in combinations(self.cases, 2):
            one_s, other_s = (case.measured_s_N[rows].sum() for case, rows in _shared_rows(one, other))
            if max(one_s, other_s) > (1 + DISTINCT_SHARE) * min(one_s, other_s):
                found.append((one, other) if one_s < other_s else (other, one))
        return tuple(found)

    @property
    def misordered(self) -> tuple[tuple[CaseComparison, CaseComparison], ...]:
        """Of the pairs that clearly differ, those that are predicted the other way round: (measured faster, slower)."""
        wrong = []
        for pair in self.distinct_pairs:
            fast_s, slow_s = (case.predicted_s_N[rows].sum() for case, rows in _shared_rows(*pair))
            if fast_s >= slow_s:
                wrong.append(pair)
        return tuple(wrong)


def _shared_rows(*cases: CaseComparison) -> tuple[tuple[CaseComparison, list[int]], ...]:
    """For each case, where it has the minibatches that all of them have."""
    shared = sorted(set.intersection(*(set(case.minibatches) for case in cases)))
    return tuple((case, [case.minibatches.index(n) for n in shared]) for case in cases)


def validate(scenario: Scenario, runs: Sequence[RecordedRun], *, base_folder: Path, file: Path) -> Validation:
    """Predict what recorded runs measured.

    Args:
        scenario: with the costs to test.
        runs: of its cases; several of one case are repeats.
        base_folder: what the scenario's paths are relative to.
        file: the scenario's.

    Raises:
        InputError: the scenario cannot be resolved, a run is damaged, or is of another scenario or case.
    """
    require_same_emulation(runs)
    resolved_of: dict[str, ResolvedScenario] = {}
    groups: dict[tuple[int, str, str], list[tuple[RecordedRun, MeasuredRun, PredictedRun]]] = {}
    for run in runs:
        transport = transport_of(run)
        if transport not in resolved_of:
            resolved_of[transport] = resolve(over_collectives(scenario, transport), base_folder=base_folder, file=file)
        resolved = resolved_of[transport]
        overlap = require_same_scenario(run, resolved, file=file)
        position = matching_case(run, resolved, file=file)
        observed = observe(run)
        if not observed.knows_tokens:
            raise InputError(
                "does not say how many tokens its microbatches hold: nothing can be predicted", file=run.folder
            )
        predicted = predict(resolved, resolved.cases[position], observed, overlap=overlap)
        groups.setdefault((position, transport, overlap), []).append((run, measure(observed), predicted))
    fitted = {digest for resolved in resolved_of.values() for digest in _fitted_digests(resolved)}
    # What stands in for collectives depends on their transport, which an odc run has none of.
    telling = {transport_of(run) for run in runs if run.info.case.get("sync") == "fsdp"} or set(resolved_of)
    ordered = sorted(groups.items(), key=lambda item: item[0])
    return Validation(
        name=scenario.name,
        cases=tuple(
            _comparison(resolved_of[transport], position, transport, repeats, fitted)
            for (position, transport, _), repeats in ordered
        ),
        warnings=tuple(
            dict.fromkeys(
                warning
                for transport, resolved in resolved_of.items()
                if transport in telling
                for warning in resolved.warnings
            )
        ),
    )


def _fitted_digests(resolved: ResolvedScenario) -> tuple[str, ...]:
    return () if resolved.calibrated is None else resolved.calibrated.origin.digests


def _comparison(
    resolved: ResolvedScenario,
    position: int,
    transport: str,
    repeats: Sequence[tuple[RecordedRun, MeasuredRun, PredictedRun]],
    fitted: set[str],
) -> CaseComparison:
    """Put the repeats of a case together; only minibatches that all of them recorded count."""
    case = resolved.cases[position]
    shared = sorted(set.intersection(*(set(run.info.window) for run, _, _ in repeats)))
    if not shared:
        raise InputError(
            f"shares no minibatch with {repeats[0][0].folder}, a run of the same case", file=repeats[-1][0].folder
        )
    rows = [[run.info.window.index(n) for n in shared] for run, _, _ in repeats]
    measured = [found for _, found, _ in repeats]
    first_predicted = repeats[0][2]
    fractions = np.mean([list(found.fractions.to_document().values()) for found in measured], axis=0)
    label = case.label if transport in {"shm", "collective"} else f"{case.label} on {transport}"
    return CaseComparison(
        label=label,
        sync=case.case.sync,
        policy=case.policy.name,
        transport=transport,
        ranks=resolved.scenario.cluster.ranks,
        runs=tuple(run.folder.name for run, _, _ in repeats),
        is_fitted=any(run_digest(run.folder) in fitted for run, _, _ in repeats),
        minibatches=tuple(shared),
        predicted_s_N=first_predicted.minibatch_s_N[rows[0]],
        measured_s_RN=np.array([found.minibatch_s_N[row] for found, row in zip(measured, rows, strict=True)]),
        predicted=first_predicted.fractions,
        measured=TimeFractions(*fractions.tolist()),
        predicted_peak_bytes=first_predicted.peak_bytes,
        measured_peak_bytes_R=tuple(found.peak_bytes for found in measured if found.peak_bytes is not None),
    )
