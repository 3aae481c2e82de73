"""docs/validation.md is what the recorded traces say, and what it claims holds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Libraries round the last digits of a fit differently: figures may differ by one in the last place that is printed.
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def benchmark():
    """The parts of benchmarks/validate.py."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from validation import compare, page, settings
    finally:
        sys.path.pop(0)
    return compare, page, settings


@pytest.fixture(scope="module")
def study(benchmark):
    """Everything computed anew from the traces."""
    compare, _, _ = benchmark
    return compare.study(ROOT / "traces" / "measured")


@pytest.fixture(scope="module")
def again(benchmark):
    """The same of the second recording."""
    compare, _, _ = benchmark
    return compare.study(ROOT / "traces" / "measured_again", only_verdict=True)


def last_place(number: str) -> float:
    _, _, decimals = number.partition(".")
    return 10.0 ** -len(decimals)


def test_the_page_is_what_the_traces_say(benchmark, study, again):
    _, page, _ = benchmark
    written, anew = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8"), page.render(study, again)
    assert NUMBER.sub("#", written) == NUMBER.sub("#", anew)
    for left, right in zip(NUMBER.findall(written), NUMBER.findall(anew), strict=True):
        assert float(left) == pytest.approx(float(right), abs=1.01 * last_place(left)), f"{left} is {right} now"


def test_no_run_is_judged_that_costs_were_fitted_to(benchmark, study):
    compare, _, settings = benchmark
    for kind, setting in settings.CALIBRATION_SETTINGS.items():
        digests = set(study.costs[kind].origin.digests)
        runs = compare.runs_of(setting, ROOT / "traces" / "measured")
        assert digests == {
            compare.run_digest(run.folder) for run in compare.calibration_runs(kind, runs, only_odc=False)
        }
    fitted = [case for found in study.predicted for case in found.validation.cases if case.is_fitted]
    # Of each kind: ODC, FSDP over shared memory, FSDP over gloo.
    assert len(fitted) == 3 * len(settings.CALIBRATION_SETTINGS)
    judged = [case for kind in settings.CALIBRATION_SETTINGS for case in study.judged(kind)]
    assert len(judged) + len(fitted) == sum(len(found.validation.cases) for found in study.predicted)
    assert len(judged) > 100


def test_the_grid_is_what_was_asked_for(study):
    cases = [(found.setting, case) for found in study.predicted for case in found.validation.cases]
    assert {(setting.kind, setting.ranks) for setting, _ in cases} == {
        ("real", 2),
        *((kind, ranks) for kind in ("emulated", "fast") for ranks in (4, 8, 16)),
    }
    for kind, ranks in {(setting.kind, setting.ranks) for setting, _ in cases}:
        here = [(setting, case) for setting, case in cases if (setting.kind, setting.ranks) == (kind, ranks)]
        assert {setting.trace for setting, _ in here} == {"agentic", "reasoning", "chat"}
        assert {setting.samples_per_rank for setting, _ in here} == {2, 4}
        assert {case.transport for _, case in here} == {"shm", "collective", "gloo"}
        assert {case.policy for _, case in here} == {"local-sort", "lb-micro", "lb-mini"}
    assert {setting.kind for setting, _ in cases if setting.slowed_rank} == {"emulated", "fast"}


@pytest.mark.parametrize("recording", ["study", "again"])
def test_emulated_runs_are_predicted_as_well_as_is_asked(benchmark, recording, request):
    _, page, _ = benchmark
    requirements = page.verdict_of(request.getfixturevalue(recording)).of_kind["emulated"]
    assert len(requirements) == 5
    assert [f"{entry.asked}: {entry.figure}" for entry in requirements if not entry.is_met] == []


@pytest.mark.parametrize("recording", ["study", "again"])
def test_fast_runs_are_predicted_as_well_as_is_asked_but_for_some_speedups(benchmark, recording, request):
    _, page, _ = benchmark
    found = request.getfixturevalue(recording)
    requirements = page.verdict_of(found).of_kind["fast"]
    assert len(requirements) == 5
    missed = [f"{entry.asked}: {entry.figure}" for entry in requirements if not entry.is_met]
    # Some speedups around 2 of 16 ranks on two cores are further off: the page says so.
    assert all(entry.startswith("speedups within") for entry in missed)
    differences = [
        (case, abs(difference))
        for one in found.predicted
        if one.setting.kind == "fast"
        for case, difference in zip(one.validation.judged, one.speedup_differences, strict=True)
    ]
    close = [difference <= page.SPEEDUP_POINTS for case, difference in differences if case.transport != "gloo"]
    assert sum(close) >= 0.95 * len(close)
    assert all(difference <= page.SPEEDUP_POINTS for case, difference in differences if case.ranks < 16)
    assert max(difference for case, difference in differences if case.transport != "gloo") <= 0.06


def test_real_runs_are_predicted_as_well_as_is_asked_but_for_some_speedups(benchmark, study):
    """Those are off by less, in the mean, than repeats differ by."""
    _, page, _ = benchmark
    missed = [entry.asked for entry in page.verdict_of(study).of_kind["real"] if not entry.is_met]
    assert all(asked.startswith("speedups within") for asked in missed), missed
    found = [one for one in study.predicted if one.setting.kind == "real"]
    differences = [abs(difference) for one in found for difference in one.speedup_differences]
    spreads = page._speedup_spreads(study, "real").values()
    assert sum(differences) / len(differences) < sum(spreads) / len(spreads)


def test_noisy_real_runs_are_predicted_as_well_as_the_machine_repeats_itself(benchmark, again):
    """Two cores that others use too: what is left of the errors is noise."""
    _, page, _ = benchmark
    cases = again.judged("real")
    errors = [case.error for case in cases]
    noise = sum(page.noise_share(case) for case in cases) / len(cases)
    assert noise > page.MEAN_ERROR
    assert sum(map(abs, errors)) / len(errors) <= 2 * noise
    assert abs(sum(errors) / len(errors)) <= noise
