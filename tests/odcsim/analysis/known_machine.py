"""A machine whose costs are known, and the runs that it leaves behind: what a calibration has to find again.

It runs the plans of a scenario's cases visit by visit, as the runtime does on CPUs (transfers and compute take turns),
in FSDP2's order, and takes exactly as long as a `CalibratedCosts` says, times a jitter. With a lag, ranks
leave a collective one after another, in an order that chance has. It shares no code with the engines, nor with the
laws by which a file of costs is applied. One node. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from known_costs import known_costs

from odcsim.costs.calibrated import CalibratedCosts, visit_kind
from odcsim.minibatches import draw_lengths, draw_slowdowns, plan_of_case
from odcsim.resolve import resolve
from odcsim.scenario import parse_scenario
from odcsim.schedule import decoder_visits
from odcsim.trace_format import (
    ClockInfo,
    PlannedLengths,
    RankMemory,
    RecordedRun,
    RunInfo,
    TraceSpan,
    planned_lengths,
    read_run_info,
    write_run,
)

LENGTHS = {"lognormal": {"mean": 3000, "sigma": 1.0, "max": 8192}}
PADDED = {"sync": "fsdp", "policy": "lb-mini", "pad": True}
FSDP, ODC = {"sync": "fsdp", "policy": "lb-micro"}, {"sync": "odc", "policy": "lb-mini"}
# Of the small scenario, for the machine.
CHANGES = {"workload.lengths": LENGTHS, "workload.minibatches": 8, "overlap": "none", "cases": [FSDP, ODC, PADDED]}


def exactly():
    """The jitter of a machine that has none."""
    return 1.0


def normal_jitter(seed, *, deviation=0.05, outliers=0.0):
    """Multiplies durations by what is drawn around 1; a share of `outliers` takes 20 times as long."""
    generator = np.random.Generator(np.random.PCG64(seed))

    def draw():
        value = max(0.2, 1 + deviation * generator.standard_normal())
        return value * 20 if outliers and generator.random() < outliers else value

    return draw


def lognormal_jitter(seed, *, sigma):
    """Skewed, with a mean of 1."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return lambda: float(np.exp(sigma * generator.standard_normal() - sigma**2 / 2))


def counted_memory(*, process, base, per_token, shared, gradients=0):
    """Memory as an operating system counts it: the fullest microbatch so far decides; later ones have gradients."""

    def count(plans):
        ranks = []
        for rank in range(len(plans[0])):
            held = [
                [per_token * sum(lengths) + gradients * (place > 0) for place, lengths in enumerate(plan[rank])]
                for plan in plans
            ]
            fullest = np.maximum.accumulate([max(of_minibatch, default=0) for of_minibatch in held])
            ranks.append(RankMemory(process, shared, tuple((base + fullest).tolist())))
        return tuple(ranks)

    return count


@dataclass
class Machine:
    """One that takes as long as `costs` say.

    Attributes:
        costs: known.
        jitter: asked for a factor for every duration.
        transport: of collectives.
        memory: of the ranks, given the lengths of the recorded minibatches; not known by default.
        processors: told in run.json, if any.
    """

    costs: CalibratedCosts = field(default_factory=known_costs)
    jitter: Callable[[], float] = exactly
    transport: str = "collective"
    memory: Callable[[list[PlannedLengths]], tuple[RankMemory, ...]] | None = None
    processors: int | None = None

    def record(self, folder, document, *, case=0, window=None, start_s=0.0, plan=None, engine="measured"):
        """Run one case of a scenario and write the folder.

        Args:
            folder: of the run.
            document: the scenario; what it says of compute decides its plans alone.
            case: position.
            window: minibatches to record; all of them by default.
            start_s: when the first of these begins.
            plan: for a minibatch's number, its lengths by rank and microbatch, instead of the case's policy's.
            engine: for run.json.

        Returns:
            The run, as it would be read back.
        """
        resolved = resolve(parse_scenario(document), base_folder=Path(folder).parent)
        scenario, chosen = resolved.scenario, resolved.cases[case]
        ranks = scenario.cluster.ranks
        window = range(scenario.workload.minibatches) if window is None else window
        lengths_NS = draw_lengths(resolved)
        plans, spans_of_ranks, now_s = {}, [[] for _ in range(ranks)], start_s
        for minibatch in window:
            if plan is not None:
                plans[minibatch] = plan(minibatch)
            else:
                planned = plan_of_case(resolved, chosen, lengths_NS[minibatch], minibatch=minibatch)
                padded = planned.plan.padded() if chosen.case.pad else planned.plan
                plans[minibatch] = planned_lengths(padded, planned.lengths_S)
            most = max(map(len, plans[minibatch]), default=0)
            slow_DM = draw_slowdowns(resolved, minibatch=minibatch, microbatches=most) / resolved.speeds_D[:, None]
            one = _Minibatch(self, resolved, minibatch, plans[minibatch], slow_DM, now_s)
            now_s = one.run(chosen.case.sync)
            for spans, ran in zip(spans_of_ranks, one.spans_D, strict=True):
                spans.extend(sorted(ran, key=lambda span: span.start_s))
        info = RunInfo(
            engine=engine,
            scenario=resolved.to_document(),
            case={
                "name": chosen.label,
                "sync": chosen.case.sync,
                "policy": chosen.policy.name,
                "pad": chosen.case.pad,
                "overlap": "none",
                "transport": "shm" if chosen.case.sync == "odc" else self.transport,
                "compute": "emulated",
            },
            world_size=ranks,
            hosts=("here",) * ranks,
            clock=ClockInfo.shared(ranks),
            versions={"odcsim": "0"},
            window=window,
            plans=plans,
            processors=() if self.processors is None else (self.processors,) * ranks,
            memory=() if self.memory is None else self.memory([plans[minibatch] for minibatch in window]),
        )
        write_run(folder, info, spans_of_ranks)
        # Spans survive a file to the last bit: reading them again would take half of the tests' time.
        return RecordedRun(Path(folder), read_run_info(folder), tuple(map(tuple, spans_of_ranks)))


class _Minibatch:
    """One minibatch as it is run."""

    def __init__(self, machine, resolved, number, plan, slow_DM, start_s):
        self.machine, self.number, self.plan, self.slow_DM = machine, number, plan, slow_DM
        self.ranks = len(plan)
        self.model = resolved.model
        self.visits = decoder_visits(resolved.model.layers)
        self.reduce_bytes = resolved.memory.reduce_bytes
        self.gather_bytes = resolved.memory.param_bytes
        self.now_D = [start_s] * self.ranks
        self.spans_D = [[] for _ in range(self.ranks)]
        self.order = np.random.Generator(np.random.PCG64(number))

    def spend(self, rank, name, time_s, *, unit=-1, microbatch=-1, size_bytes=0):
        """A rank does something for so long."""
        until_s = self.now_D[rank] + time_s
        lengths = self.plan[rank][microbatch] if microbatch >= 0 else ()
        tokens = sum(lengths), sum(length * length for length in lengths)
        self.spans_D[rank].append(
            TraceSpan(name, unit, self.number, microbatch, self.now_D[rank], until_s, *tokens, size_bytes)
        )
        self.now_D[rank] = until_s

    def meet(self, beyond_s=0.0, **where):
        """All ranks wait for the last, and some time beyond."""
        met_s = max(self.now_D) + beyond_s
        for rank in range(self.ranks):
            if met_s > self.now_D[rank]:
                self.spend(rank, "wait", met_s - self.now_D[rank], **where)
                self.now_D[rank] = met_s

    def compute(self, rank, microbatch, visit):
        cost = getattr(self.machine.costs.compute, visit_kind(visit))
        lengths = self.plan[rank][microbatch]
        time_s = (
            cost.squared_tokens.value * sum(length**2 for length in lengths)
            + cost.tokens.value * sum(lengths)
            + cost.constant.value
        )
        time_s *= self.slow_DM[rank, microbatch] * self.machine.jitter()
        self.spend(rank, visit.phase, time_s, unit=visit.unit, microbatch=microbatch)

    def transfer(self, ranks, name, microbatch, visit, pair, steps):
        """One transfer. It takes all `ranks` as long, or, with a lag, one after another, in any order."""
        parameters = self.model.root_parameters if visit.unit == 0 else self.model.parameters_per_block
        whole_bytes = parameters * (self.gather_bytes if name == "gather" else self.reduce_bytes)
        moved_bytes, rest = divmod(whole_bytes * (self.ranks - 1), self.ranks)
        assert rest == 0, "bytes must come out whole, or costs cannot be found to the last digit"
        cost = getattr(pair, name)
        time_s = (steps * cost.latency.value + moved_bytes * cost.seconds_per_byte.value) * self.machine.jitter()
        lag_s = 0.0 if cost.lag is None or len(ranks) == 1 else cost.lag.value * time_s
        later_s = self.order.permutation(np.linspace(-lag_s, lag_s, len(ranks)))
        for rank, own_s in zip(ranks, (time_s + later_s).tolist(), strict=True):
            self.spend(rank, name, own_s, unit=visit.unit, microbatch=microbatch, size_bytes=moved_bytes)

    def run(self, sync):
        """Run it; returns when it ended."""
        steps, jitter, everybody = self.machine.costs.steps, self.machine.jitter, range(self.ranks)
        if sync == "odc":
            meeting_s = steps.meeting.value * (self.ranks - 1)
            for rank in everybody:
                self.spend(rank, "publish", steps.publish.value * jitter())
            self.meet(meeting_s * jitter())
            for rank in everybody:
                for microbatch in range(len(self.plan[rank])):
                    for visit in self.visits:
                        self.visit_alone(rank, microbatch, visit)
            self.meet(meeting_s * jitter())
            for rank in everybody:
                self.spend(rank, "settle", steps.settle.value * jitter())
        else:
            for microbatch in range(len(self.plan[0])):
                for visit, following in zip(self.visits, (*self.visits[1:], None), strict=True):
                    self.visit_together(microbatch, visit, following)
        for rank in everybody:
            self.spend(rank, "optimizer", steps.optimizer.value * jitter())
        return max(self.now_D)

    def visit_alone(self, rank, microbatch, visit):
        pair = self.machine.costs.one_sided
        if visit.gathers:
            self.transfer([rank], "gather", microbatch, visit, pair, 1)
        self.compute(rank, microbatch, visit)
        if visit.reduces:
            self.transfer([rank], "scatter_accumulate", microbatch, visit, pair, 1)

    def visit_together(self, microbatch, visit, following):
        pair, everybody = self.machine.costs.collectives[self.machine.transport], range(self.ranks)

        def collective(name, of):
            self.meet(unit=of.unit, microbatch=microbatch)
            self.transfer(everybody, name, microbatch, of, pair, self.ranks - 1)

        if visit.phase == "forward" and visit.gathers:
            collective("gather", visit)
        # In backward, FSDP2 gathers the next unit before it computes this one.
        if visit.phase == "backward" and following is not None and following.gathers:
            collective("gather", following)
        for rank in everybody:
            self.compute(rank, microbatch, visit)
        if visit.reduces:
            collective("scatter_accumulate", visit)


def times_of(run):
    """Times of a run's minibatches, by the clock on the wall."""
    return [
        max(span.end_s for spans in run.spans_of_ranks for span in spans if span.minibatch == minibatch)
        - min(span.start_s for spans in run.spans_of_ranks for span in spans if span.minibatch == minibatch)
        for minibatch in run.info.window
    ]


__all__ = [
    "CHANGES",
    "FSDP",
    "LENGTHS",
    "ODC",
    "PADDED",
    "Machine",
    "counted_memory",
    "exactly",
    "lognormal_jitter",
    "normal_jitter",
    "times_of",
]
