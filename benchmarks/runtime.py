"""On-demand communication against FSDP, for real: two ranks, one core each, on the lengths of a shipped trace.

Usage: python benchmarks/runtime.py [--repeats 3] [--scenario benchmarks/runtime.yaml]

Prints ODC with LB-Mini against FSDP with LB-Micro, on gloo and on the `collective` transport (the same shared memory
that ODC uses), and the share of the theoretical limit that each reaches: the busiest rank's compute over the time of a
minibatch. The three take turns, so that a machine that slows down slows all of them; figures are medians. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from odcsim.trace_format import RecordedRun, read_run

ROOT = Path(__file__).resolve().parent.parent
ODCRT = [sys.executable, "-c", "from odcrt.cli import main; main()"]
FSDP = "[{sync: fsdp, policy: lb-micro}]"
ODC = "[{sync: odc, policy: lb-mini}]"


@dataclass(frozen=True)
class Measured:
    """One case, run once."""

    seconds_per_minibatch: float
    share_of_limit: float


def share_of_limit(run: RecordedRun, seconds_per_minibatch: float) -> float:
    """The busiest rank's compute over the minibatch's time, over all recorded minibatches."""
    compute_s: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for rank, spans in enumerate(run.spans_of_ranks):
        for span in spans:
            if span.name in {"forward", "backward"}:
                compute_s[span.minibatch][rank] += span.duration_s
    busiest_s = [max(of_ranks.values()) for of_ranks in compute_s.values()]
    return statistics.mean(busiest_s) / seconds_per_minibatch


def launch(scenario: Path, *, cases: str, transport: str) -> Measured:
    """Run one case of a scenario for real."""
    with TemporaryDirectory() as folder:
        settings = ["--set", f"cases={cases}", "--set", f"runtime.transport={transport}"]
        places = ["--out", folder, "--record", f"{folder}/traces"]
        command = [*ODCRT, "launch", str(scenario), "--json", *settings, *places]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        seconds = json.loads(done.stdout)["cases"][0]["seconds_per_minibatch"]["mean"]
        (traces,) = (Path(folder) / "traces").iterdir()
        return Measured(seconds, share_of_limit(read_run(traces), seconds))


def told(name: str, runs: Sequence[Measured]) -> float:
    """Print one case's median time; returns it."""
    times = [run.seconds_per_minibatch for run in runs]
    share = statistics.median(run.share_of_limit for run in runs)
    spread = f"{min(times) * 1e3:.0f} to {max(times) * 1e3:.0f}"
    print(
        f"{name:24} {statistics.median(times) * 1e3:6.0f} ms a minibatch ({spread}), {share:.3f} of the limit",
        flush=True,
    )
    return statistics.median(times)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="ODC against FSDP on two ranks, for real.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scenario", type=Path, default=ROOT / "benchmarks" / "runtime.yaml")
    arguments = parser.parse_args()
    runs: dict[str, list[Measured]] = defaultdict(list)
    for _ in range(arguments.repeats):
        runs["gloo"].append(launch(arguments.scenario, cases=FSDP, transport="gloo"))
        runs["collective"].append(launch(arguments.scenario, cases=FSDP, transport="collective"))
        runs["odc"].append(launch(arguments.scenario, cases=ODC, transport="shm"))
    gloo_s = told("FSDP lb-micro, gloo", runs["gloo"])
    collective_s = told("FSDP lb-micro, collective", runs["collective"])
    odc_s = told("ODC lb-mini, shm", runs["odc"])
    print(
        f"ODC against FSDP on gloo: {gloo_s / odc_s:.2f}x; against FSDP on the same memory: {collective_s / odc_s:.2f}x"
    )


if __name__ == "__main__":
    main()
