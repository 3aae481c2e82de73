"""How far off are predictions? Record runs on this machine, calibrate on one case, predict all the others.

Usage: python benchmarks/validate.py                     record, predict, write docs/validation.md and traces/measured/
       python benchmarks/validate.py --at-pace           the same of traces/measured_at_pace/
       python benchmarks/validate.py --recorded          predict from the traces that are there, and write the page
       python benchmarks/validate.py --traces DIR        record to another folder; docs/validation.md stays as it is

Recording takes some 50 minutes, at pace some 60, and wants a machine with two idle cores. Settings and cases:
benchmarks/validation/ and benchmarks/validation/settings.py. Needs torch, but not for --recorded.
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
from validation.settings import AT_PACE_SETTINGS, SETTINGS, Setting  # noqa: E402

from odcsim.files import write_atomically, write_together  # noqa: E402

TRACES = ROOT / "traces" / "measured"
AGAIN = ROOT / "traces" / "measured_again"
AT_PACE = ROOT / "traces" / "measured_at_pace"
PAGE = ROOT / "docs" / "validation.md"
PICTURE = ROOT / "docs" / "figures" / "validation.svg"
ODCRT = [sys.executable, "-c", "from odcrt.cli import main; main()"]


def launches(settings: Sequence[Setting]) -> Iterator[tuple[Setting, str, int]]:
    """What is recorded, in order: repeats of a setting lie far apart, so that a machine's slow spells fall on all."""
    for repeat in range(max(setting.repeats for setting in settings)):
        for setting in settings:
            if repeat < setting.repeats:
                for transport in ("shared-memory", "gloo"):
                    yield setting, transport, repeat


def record(setting: Setting, transport: str, repeat: int, traces: Path) -> None:
    """Run the cases of a setting over one transport, and keep their traces."""
    folder = traces / setting.name / f"{transport}-{repeat}"
    settings = [*setting.overrides()]
    if transport == "gloo":
        cases = ", ".join(f"{{sync: fsdp, policy: {policy}}}" for policy in ("local-sort", "lb-micro"))
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
    parser.add_argument("--at-pace", action="store_true", help="record emulated compute at an A100's own pace")
    parser.add_argument("--traces", type=Path, help="where traces are, or go")
    parser.add_argument("--only", default="", help="record only settings whose name begins so")
    arguments = parser.parse_args()
    settings = AT_PACE_SETTINGS if arguments.at_pace else SETTINGS
    traces: Path = arguments.traces or (AT_PACE if arguments.at_pace else TRACES)
    if not arguments.recorded:
        for setting, transport, repeat in launches(settings):
            if setting.name.startswith(arguments.only):
                record(setting, transport, repeat, traces)
    found = study(traces, settings)
    verdict = verdict_of(found)
    for line in verdict.lines:
        print(line)
    if arguments.traces is None:
        keep(found if not arguments.at_pace else study(TRACES))


def keep(found: Study) -> None:
    """Write the page, its picture and the calibrated costs."""
    page = render(found, study(AGAIN), study(AT_PACE, AT_PACE_SETTINGS) if AT_PACE.is_dir() else None)
    write_together({PAGE: page, PICTURE: picture(found)})
    for name, text in found.costs_texts.items():
        write_atomically(TRACES / f"costs-{name}.yaml", text)


if __name__ == "__main__":
    main()
