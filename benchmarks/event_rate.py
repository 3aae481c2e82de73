"""How many SimPy events a second the events engine gets through, against bare SimPy timeouts in the same run.

The bare rate is the ceiling of anything built on SimPy: as many processes as there are ranks, each of which does
nothing but yield timeouts. The engine has to reach half of it, with all that its processes decide between two events.
Events are counted as SimPy pops them off its queue; an event that wakes many ranks counts once.

Both are measured in turns, in processor time, and the best of each is compared, so that what else the machine does
weighs on neither.

    python benchmarks/event_rate.py [--ranks 256] [--layers 32] [--microbatches 4] [--repeats 7] [--json]

Exits with 1 if a case stays below half of the bare rate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from time import process_time

import numpy as np
from simpy import Environment, Event

from odcsim.engines.events.minibatch import run_microbatches
from odcsim.schedule import Overlap, Schedule, SharedLinks, Sync, Work, decoder_visits

REQUIRED_RATIO = 0.5
GPUS_PER_NODE = 8


class CountingEnvironment(Environment):
    """Counts the events that it processes."""

    def __init__(self) -> None:
        super().__init__()
        self.events = 0

    def step(self) -> None:
        """Process one event."""
        self.events += 1
        super().step()


@dataclass(frozen=True)
class Case:
    """A way to synchronize, as the engine is run in it."""

    sync: Sync
    overlap: Overlap
    shares_links: bool = False


CASES = (
    Case("odc", "prefetch"),
    Case("odc", "gather-only"),
    Case("odc", "none"),
    Case("odc", "prefetch", shares_links=True),
    Case("fsdp", "prefetch"),
    Case("fsdp", "gather-only"),
    Case("fsdp", "none"),
)


@dataclass(frozen=True)
class Measured:
    """One case against bare timeouts."""

    sync: str
    overlap: str
    shares_links: bool
    visits: int
    events: int
    seconds: float
    events_per_second: float
    bare_events_per_second: float
    ratio: float


def make_schedule(case: Case, *, ranks: int, layers: int) -> Schedule:
    """Transfers that take about a third of the mean compute of their visit."""
    visits = decoder_visits(layers)
    node_of_rank = tuple(rank // GPUS_PER_NODE for rank in range(ranks))
    return Schedule(
        sync=case.sync,
        overlap=case.overlap,
        visits=visits,
        gather_s_V=np.array([0.3 * visit.gathers for visit in visits]),
        reduce_s_V=np.array([0.45 * visit.reduces for visit in visits]),
        shared_links=SharedLinks(node_of_rank, full_rate_transfers=GPUS_PER_NODE / 2) if case.shares_links else None,
    )


def make_work(*, ranks: int, microbatches: int, visits: int) -> Work:
    """One minibatch of uneven microbatches."""
    random = np.random.default_rng(0)
    return Work(
        counts_ND=np.full((1, ranks), microbatches),
        factors_NDMF=random.lognormal(mean=-0.3, sigma=0.75, size=(1, ranks, microbatches, 1)),
        coefficients_FV=random.uniform(0.5, 1.5, size=(1, visits)),
    )


def run_bare_timeouts(env: Environment, delays_by_process: list[list[float]]) -> None:
    """Nothing but timeouts."""

    def process(delays: list[float]) -> Generator[Event, None, None]:
        timeout = env.timeout
        for delay in delays:
            yield timeout(delay)

    for delays in delays_by_process:
        env.process(process(delays))
    env.run()


def timed(run: Callable[[Environment], object]) -> float:
    """Seconds of processor time that `run` takes in a new environment."""
    env = Environment()
    start = process_time()
    run(env)
    return process_time() - start


def counted(run: Callable[[Environment], object]) -> int:
    """Events that `run` takes; counting slows down, so it is never timed."""
    env = CountingEnvironment()
    run(env)
    return env.events


def measure(case: Case, *, ranks: int, layers: int, microbatches: int, repeats: int) -> Measured:
    """Run a case and bare timeouts in turns."""
    schedule = make_schedule(case, ranks=ranks, layers=layers)
    work = make_work(ranks=ranks, microbatches=microbatches, visits=len(schedule.visits))

    delays = np.random.default_rng(0).uniform(0.5, 1.5, size=(ranks, microbatches * len(schedule.visits))).tolist()

    def engine(env: Environment) -> None:
        run_microbatches(work, schedule, env=env)

    def bare(env: Environment) -> None:
        run_bare_timeouts(env, delays)

    seconds, bare_seconds = np.array([(timed(engine), timed(bare)) for _ in range(repeats)]).min(axis=0).tolist()
    events = counted(engine)
    rate, bare_rate = events / seconds, counted(bare) / bare_seconds
    return Measured(
        sync=case.sync,
        overlap=case.overlap,
        shares_links=case.shares_links,
        visits=ranks * microbatches * len(schedule.visits),
        events=events,
        seconds=seconds,
        events_per_second=rate,
        bare_events_per_second=bare_rate,
        ratio=rate / bare_rate,
    )


def main() -> int:
    """Measure all cases; 0 if all are fast enough."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--layers", type=int, default=32, help="decoder blocks; the root is one unit more")
    parser.add_argument("--microbatches", type=int, default=4, help="of each rank")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    args = parser.parse_args()
    size = {"ranks": args.ranks, "layers": args.layers, "microbatches": args.microbatches}
    results = [measure(case, **size, repeats=args.repeats) for case in CASES]
    if args.json:
        print(json.dumps({**size, "required_ratio": REQUIRED_RATIO, "cases": [asdict(result) for result in results]}))
    else:
        print(f"{args.ranks} ranks, {args.layers + 1} units, {args.microbatches} microbatches; one minibatch")
        print(
            f"{'sync':5} {'overlap':12} {'links':7} {'events':>8} {'s':>6} {'events/s':>9} {'bare/s':>9} {'ratio':>6}"
        )
        for result in results:
            links = "shared" if result.shares_links else "own"
            print(
                f"{result.sync:5} {result.overlap:12} {links:7} {result.events:8d} {result.seconds:6.3f} "
                f"{result.events_per_second:9.0f} {result.bare_events_per_second:9.0f} {result.ratio:6.2f}"
            )
    return int(any(result.ratio < REQUIRED_RATIO for result in results))


if __name__ == "__main__":
    sys.exit(main())
