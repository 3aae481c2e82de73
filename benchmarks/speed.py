"""Speed and scale, as ratios measured in one run.

Usage: python benchmarks/speed.py

Prints, one figure a line: start-up and quickstart; the recurrence engine against the events engine; the events engine
against bare SimPy timeouts; a cluster of 8192 ranks; and how the cost grows with accumulation. Machines are noisy: each
time is the best of several.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from event_rate import CASES, measure

from odcsim.engines import find_engine
from odcsim.schedule import Schedule, Work, decoder_visits

ROOT = Path(__file__).resolve().parent.parent
ODCSIM = [sys.executable, "-c", "from odcsim.cli import main; main()"]
# A scenario of 8192 ranks and 65 units, run in a process of its own so that its peak memory can be told.
LARGE = """
name: large
model: {layers: 64, hidden: 5120, heads: 40, kv_heads: 8, head_dim: 128, ffn: 27648, vocab: 152064}
cluster: {gpu: h100-80g-sxm, gpus_per_node: 8, nodes: 1024}
workload:
  lengths: {lognormal: {mean: 16000, sigma: 0.7, max: 65536}}
  samples_per_rank: 4
  max_tokens: 65536
  minibatches: 10
cases: [{sync: fsdp, policy: local-sort}, {sync: odc, policy: local-sort}]
"""


def best_s(function: Callable[[], object], *, runs: int = 3) -> float:
    """Shortest of several runs, in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def command_s(*arguments: str, runs: int = 3) -> float:
    """Wall time of an odcsim command, in seconds."""
    return best_s(lambda: subprocess.run([*ODCSIM, *arguments], check=True, capture_output=True), runs=runs)


def decoder_case(*, sync: str, ranks: int, layers: int, microbatches: int, minibatches: int) -> tuple[Work, Schedule]:
    """Random work of a decoder, and a schedule with transfers."""
    visits = decoder_visits(layers)
    generator = np.random.default_rng(0)
    factors = generator.exponential(1.0, size=(minibatches, ranks, microbatches, 2))
    coefficients = np.array([[1.0 if visit.phase == "forward" else 3.0 for visit in visits], [0.1] * len(visits)])
    counts = np.full((minibatches, ranks), microbatches, dtype=np.int64)
    schedule = Schedule(
        sync=sync,  # type: ignore[arg-type]
        overlap="prefetch",
        visits=visits,
        gather_s_V=np.array([0.05 * visit.gathers for visit in visits]),
        reduce_s_V=np.array([0.1 * visit.reduces for visit in visits]),
    )
    return Work(counts, factors, coefficients), schedule


def engines_ratio(sync: str) -> None:
    """Time of a minibatch under both engines at 256 ranks, 33 units, 4 microbatches."""
    recurrence, events = find_engine("recurrence"), find_engine("events")
    many = decoder_case(sync=sync, ranks=256, layers=32, microbatches=4, minibatches=20)
    one = (many[0].minibatch(0), many[1])
    fast_s = best_s(lambda: recurrence(*many)) / 20
    slow_s = best_s(lambda: events(*one))
    print(
        f"engines, {sync}, 256 ranks x 33 units x 4 microbatches: recurrence {fast_s * 1e3:.2f} ms a minibatch, "
        f"events {slow_s * 1e3:.0f} ms: {slow_s / fast_s:.0f}x"
    )


def event_rates() -> None:
    """Events a second of the events engine against bare SimPy timeouts."""
    for case in CASES:
        found = measure(case, ranks=256, layers=32, microbatches=4, repeats=5)
        links = ", shared links" if case.shares_links else ""
        print(
            f"events engine, {case.sync}, overlap {case.overlap}{links}: {found.ratio:.2f}x the rate of bare timeouts"
        )


def accumulation() -> None:
    """Time per microbatch as a rank accumulates more of them."""
    recurrence = find_engine("recurrence")
    per_microbatch = {}
    for microbatches in (4, 16, 64):
        case = decoder_case(sync="fsdp", ranks=256, layers=32, microbatches=microbatches, minibatches=4)
        per_microbatch[microbatches] = best_s(lambda case=case: recurrence(*case)) / microbatches  # type: ignore[misc]
    told = ", ".join(f"{count}: {value * 1e3:.2f} ms" for count, value in per_microbatch.items())
    growth = per_microbatch[64] / per_microbatch[4]
    print(f"accumulation, recurrence, time a microbatch ({told}); 64 over 4: {growth:.2f}x")


def large() -> None:
    """8192 ranks, 65 units, 4 samples a rank, 10 minibatches, local-sort, both syncs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.yaml"
        path.write_text(LARGE, encoding="utf-8")
        code = (
            "import sys, resource, json, time; from pathlib import Path; from odcsim import load_scenario, simulate; "
            "start = time.perf_counter(); path = Path(sys.argv[1]); "
            "simulate(load_scenario(path), base_folder=path.parent, engine='recurrence'); "
            "print(json.dumps([time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
        seconds, kibibytes = json.loads(done.stdout)
        print(
            f"8192 ranks, 65 units, 4 samples a rank, 10 minibatches x 2: {seconds:.1f} s, {kibibytes / 2**20:.2f} GiB"
        )


def main() -> None:
    """Print every figure."""
    print(f"start-up: odcsim --help {command_s('--help', runs=5):.2f} s (python alone: {python_s():.2f} s)")
    with tempfile.TemporaryDirectory() as folder:
        seconds = command_s("run", str(ROOT / "scenarios" / "quickstart.yaml"), "--out", folder)
    print(f"quickstart, table, JSON and page: {seconds:.2f} s")
    for sync in ("fsdp", "odc"):
        engines_ratio(sync)
    event_rates()
    accumulation()
    large()
    print(f"peak memory of this benchmark: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def python_s() -> float:
    """Start of an interpreter that does nothing, in seconds."""
    return best_s(lambda: subprocess.run([sys.executable, "-c", ""], check=True), runs=5)


if __name__ == "__main__":
    main()
