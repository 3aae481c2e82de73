"""How far off are predictions? Record runs on this machine, calibrate on one case, predict all the others.

Usage: python benchmarks/validate.py                        record, predict, write docs/validation.md, traces/measured/
       python benchmarks/validate.py --recorded             predict from the traces that are there, and write the page
       python benchmarks/validate.py --traces D --only real record settings whose names begin so to a folder D, predict

Recording takes nearly three hours (--only real half an hour), and wants a machine with two idle cores. Settings and
cases: benchmarks/validation/ and benchmarks/validation/settings.py. Needs torch, but not for --recorded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from validation.compare import Study, study  # noqa: E402 - found beside this file
from validation.page import picture, render, verdict_of  # noqa: E402
from validation.settings import CALIBRATION_POLICY, CALIBRATION_SETTINGS, SETTINGS, Setting  # noqa: E402

from odcsim.files import write_atomically, write_together  # noqa: E402

TRACES = ROOT / "traces" / "measured"
AGAIN = ROOT / "traces" / "measured_again"
PAGE = ROOT / "docs" / "validation.md"
PICTURE = ROOT / "docs" / "figures" / "validation.svg"
ODCRT = [sys.executable, "-c", "from odcrt.cli import main; main()"]


def launches(settings: Sequence[Setting]) -> Iterator[tuple[Setting, str, int]]:
    """What is recorded, in order: repeats of a setting lie far apart, so that a machine's slow spells fall on all."""
    for repeat in range(max(setting.repeats + setting.more_to_fit for setting in settings)):
        for setting in settings:
            if repeat < setting.repeats:
                yield setting, "shared-memory", repeat
            if repeat < setting.repeats + setting.more_to_fit:
                yield setting, "gloo", repeat


def record(setting: Setting, transport: str, repeat: int, traces: Path) -> None:
    """Run the cases of a setting over one transport, and keep their traces."""
    folder = traces / setting.name / f"{transport}-{repeat}"
    settings = [*setting.overrides()]
    if transport == "gloo":
        policies = ("local-sort", "lb-micro") if repeat < setting.repeats else (CALIBRATION_POLICY,)
        cases = ", ".join(f"{{sync: fsdp, policy: {policy}}}" for policy in policies)
        settings += ["runtime.transport=gloo", f"cases=[{cases}]"]
    with TemporaryDirectory() as scratch:
        command = [*ODCRT, "launch", str(setting.scenario), "--json", "--out", scratch, "--record", f"{scratch}/traces"]
        command += [part for override in settings for part in ("--set", override)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise SystemExit(f"{setting.name} over {transport} failed with exit code {done.returncode}:\n{done.stderr}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(f"{scratch}/traces", folder)
    cases = json.loads(done.stdout)["cases"]
    told = ", ".join(f"{case['seconds_per_minibatch']['mean']:.2f}" for case in cases)
    print(f"{setting.name} over {transport}, repeat {repeat}: {told} s", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Predicted against measured, over a grid of runs on this machine.")
    parser.add_argument("--recorded", action="store_true", help="use the traces that are there")
    parser.add_argument("--traces", type=Path, help="where traces are, or go; the page stays as it is")
    parser.add_argument("--only", default="", help="settings whose names begin so; the page stays as it is")
    arguments = parser.parse_args()
    settings = [setting for setting in SETTINGS if setting.name.startswith(arguments.only)]
    if not settings:
        parser.error(f"--only: {arguments.only!r}: no setting begins so: {', '.join(each.name for each in SETTINGS)}")
    traces: Path = arguments.traces or TRACES
    if not arguments.recorded:
        for setting, transport, repeat in launches(settings):
            record(setting, transport, repeat, traces)
    uncovered = {CALIBRATION_SETTINGS[setting.kind].name for setting in settings} - {one.name for one in settings}
    if uncovered:
        print(f"nothing is predicted: costs are fitted to {', '.join(sorted(uncovered))}")
        return
    found = study(traces, settings)
    for line in verdict_of(found).lines:
        print(line)
    if arguments.traces is None and settings == list(SETTINGS):
        keep(found)


def keep(found: Study) -> None:
    """Write the page, its picture and the calibrated costs."""
    write_together({PAGE: render(found, study(AGAIN, only_verdict=True)), PICTURE: picture(found)})
    for name, text in found.costs_texts.items():
        write_atomically(TRACES / f"costs-{name}.yaml", text)


if __name__ == "__main__":
    main()
