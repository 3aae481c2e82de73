"""Calibrate on one case, predict all others, from recorded traces alone. Seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from odcsim import load_scenario
from odcsim.analysis.calibrate import calibrate
from odcsim.analysis.observe import observe
from odcsim.analysis.replay import replay
from odcsim.analysis.validate import CaseComparison, Validation, validate
from odcsim.costs.calibrated import CalibratedCosts, costs_text, write_costs
from odcsim.trace_format import RecordedRun, find_runs, read_run, run_digest
from validation.settings import CALIBRATION_POLICY, CALIBRATION_SETTINGS, SETTINGS, Kind, Setting

__all__ = ["Predicted", "Replayed", "Study", "calibration_runs", "run_digest", "runs_of", "study"]


@dataclass(frozen=True)
class Predicted:
    """One setting and what became of its predictions."""

    setting: Setting
    validation: Validation

    @property
    def speedup_differences(self) -> list[float]:
        """Predicted less measured speedup of each judged case over the setting's first."""
        pairs = [self.validation.speedups(case) for case in self.validation.judged]
        return [predicted - measured for predicted, measured in pairs]


@dataclass(frozen=True)
class Replayed:
    """One plan: the speedup of ODC that its FSDP runs foretold, and the one that was measured, over all repeats."""

    setting: Setting
    replay_error: float
    predicted: float
    measured: float


@dataclass(frozen=True)
class Study:
    """All settings.

    Attributes:
        predicted: with costs from one case a way of moving data.
        strict: with costs from the `odc` run of that case alone; without gloo, of which it tells nothing.
        replayed: every plan that was run both ways over shared memory.
        costs: of each kind.
    """

    predicted: tuple[Predicted, ...]
    strict: tuple[Predicted, ...]
    replayed: tuple[Replayed, ...]
    costs: dict[Kind, CalibratedCosts]

    @property
    def costs_texts(self) -> dict[str, str]:
        """The files of costs."""
        return {kind: costs_text(costs) for kind, costs in self.costs.items()}

    def judged(self, kind: Kind, *, strict: bool = False) -> list[CaseComparison]:
        """The cases of a kind that no cost was fitted to."""
        chosen = self.strict if strict else self.predicted
        return [case for found in chosen if found.setting.kind == kind for case in found.validation.judged]


def runs_of(setting: Setting, traces: Path) -> list[RecordedRun]:
    """Everything recorded of a setting."""
    folder = traces / setting.name
    found = [run for launch in sorted(folder.iterdir()) for run in find_runs(launch)] if folder.is_dir() else []
    if not found:
        told = f"{folder}: nothing recorded of this setting; run benchmarks/validate.py without --recorded"
        print(told, file=sys.stderr)
        raise SystemExit(2)
    return [read_run(run) for run in found]


def calibration_runs(kind: Kind, runs: Sequence[RecordedRun], *, only_odc: bool) -> list[RecordedRun]:
    """The runs of the calibrated case."""
    chosen = [run for run in runs if run.info.case["policy"] == CALIBRATION_POLICY]
    if only_odc:
        chosen = [run for run in chosen if run.info.case["sync"] == "odc"]
    assert chosen, f"no run to calibrate {kind} compute on"
    return chosen


def study(traces: Path, settings: Sequence[Setting] = SETTINGS, *, only_verdict: bool = False) -> Study:
    """Calibrate and predict.

    Args:
        traces: folder of the recording.
        settings: of it.
        only_verdict: leave out `strict` and `replayed`.
    """
    runs = {setting.name: runs_of(setting, traces) for setting in settings}
    calibrated_of = {setting.kind: CALIBRATION_SETTINGS[setting.kind] for setting in settings}
    found: dict[bool, list[Predicted]] = {False: [], True: []}
    kept = {}
    with TemporaryDirectory() as scratch:
        for only_odc in (False,) if only_verdict else (False, True):
            for kind, calibrated in calibrated_of.items():
                costs = calibrate(calibration_runs(kind, runs[calibrated.name], only_odc=only_odc)).costs
                file = Path(scratch) / f"costs-{kind}.yaml"
                write_costs(file, costs)
                if not only_odc:
                    kept[kind] = costs
                for setting in settings:
                    if setting.kind == kind:
                        found[only_odc].append(predict(setting, runs[setting.name], file, only_odc=only_odc))
    order = [setting.name for setting in settings]
    sorted_found = {
        key: tuple(sorted(value, key=lambda one: order.index(one.setting.name))) for key, value in found.items()
    }
    replayed = () if only_verdict else tuple(one for each in settings for one in replays(each, runs[each.name]))
    return Study(sorted_found[False], sorted_found[True], replayed, kept)


def replays(setting: Setting, runs: Sequence[RecordedRun]) -> Iterator[Replayed]:
    """Replay the FSDP runs of every plan that ODC ran too."""
    for policy in ("local-sort", "lb-micro"):
        of_policy = [run for run in runs if run.info.case["policy"] == policy and run.info.case["transport"] != "gloo"]
        fsdp, odc = ([run for run in of_policy if run.info.case["sync"] == sync] for sync in ("fsdp", "odc"))
        found = [replay(run) for run in fsdp]
        fsdp_s_N, odc_s_N = (np.median([observe(run).minibatch_s_N for run in of], axis=0) for of in (fsdp, odc))
        yield Replayed(
            setting,
            float(np.median([one.error for one in found])),
            float(np.median([one.speedup for one in found])),
            float(fsdp_s_N.mean() / odc_s_N.mean()),
        )


def predict(setting: Setting, runs: Sequence[RecordedRun], costs: Path, *, only_odc: bool) -> Predicted:
    """Predict what a setting measured."""
    overrides = [*setting.overrides(), f"compute={{calibrated: {costs}}}"]
    scenario = load_scenario(setting.scenario, overrides=overrides)
    chosen = [run for run in runs if not (only_odc and run.info.case["transport"] == "gloo")]
    return Predicted(setting, validate(scenario, chosen, base_folder=setting.scenario.parent, file=setting.scenario))
