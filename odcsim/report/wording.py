"""Numbers and sentences that the page and the table share: how figures are written, the headline, what metrics mean.

Texts are plain and not escaped; labels in them come from the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from odcsim.results import CaseResult, RunResult
from odcsim.units import format_bytes, format_count, format_seconds

__all__ = [
    "METRICS",
    "Headline",
    "Metric",
    "best_case",
    "context",
    "fine_percent",
    "headline",
    "interval_text",
    "lookup",
    "memory_text",
    "percent",
    "plural",
    "rate",
    "signed_percent",
    "source_text",
    "speedup_text",
]


@dataclass(frozen=True)
class Metric:
    """A figure of the comparison: its heading, and what it means."""

    heading: str
    meaning: str


METRICS = {
    "mean": Metric("mean", "Mean time of a minibatch (one optimizer step over all ranks), over all minibatches."),
    "p95": Metric("p95", "95th percentile of the minibatch time: one minibatch in twenty takes longer."),
    "speedup": Metric(
        "speedup",
        "Mean minibatch time of the baseline (the first case) over this case's. In brackets its 95% interval, a paired "
        "bootstrap over minibatches: how far another draw of as many minibatches may lie, not how wrong the cost model "
        "is.",
    ),
    "samples": Metric("samples/s/rank", "Samples trained on per second, divided by the number of ranks."),
    "tokens": Metric("tokens/s", "Tokens trained on per second, over all ranks; without those dropped or cut off."),
    "utilization": Metric("utilization", "Share of rank-time (ranks x minibatch time) spent computing."),
    "bubble": Metric(
        "bubble rate",
        "Share of rank-time spent waiting for other ranks. Exposed communication is counted apart.",
    ),
    "mfu": Metric(
        "MFU",
        "Model FLOPs utilization: FLOPs of the model's forward and backward, without recomputation, over peak FLOP/s x "
        "time.",
    ),
    "memory": Metric(
        "peak memory",
        "Peak memory of a rank: by formula in a simulation, as the process held it in a measured run. It fits if it "
        "stays within the device's memory less a reserve for context, buffers and fragmentation.",
    ),
    "bound": Metric(
        "x bound",
        "Mean minibatch time over the mean of a lower bound that no plan can beat on these samples under the same "
        "sync: 1.00 cannot be improved by balancing. That of FSDP, where ranks wait for each other at every "
        "microbatch, is the higher one.",
    ),
}


def percent(share: float) -> str:
    """A share of one as a percentage: "27.3%"."""
    return f"{100 * share:.1f}%"


def fine_percent(share: float) -> str:
    """A share of one as a percentage, with more digits where it is small: "27.3%", "0.04%"."""
    digits = 2 if 0.000_05 <= abs(share) < 0.000_95 else 1
    return f"{100 * share:.{digits}f}%"


def signed_percent(share: float) -> str:
    """A share of one as a percentage with its sign: "+3.1%"."""
    return f"{100 * share:+.1f}%"


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 minibatch", "1,200 minibatches" (regular plurals, -es after ch and x)."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def rate(per_second: float) -> str:
    """A rate in three digits: "0.142", "12.4", "54.1K"."""
    return format_count(per_second)


def interval_text(case: CaseResult) -> str:
    """The 95% interval of the speedup: "[1.27, 1.31]", or nothing for a single minibatch."""
    if case.speedup_ci95 is None:
        return ""
    low, high = case.speedup_ci95
    return f"[{low:.2f}, {high:.2f}]"


def speedup_text(case: CaseResult, *, baseline: CaseResult) -> str:
    """The speedup with its interval: "1.29 [1.27, 1.31]"; "baseline" for the baseline itself."""
    if case is baseline:
        return "baseline"
    return f"{case.speedup:.2f} {interval_text(case)}".rstrip()


def memory_text(case: CaseResult) -> str:
    """Peak memory, and by how much it is over where it does not fit: "61.2 GB", "83.1 GB, OVER by 7.9 GB"."""
    peak = format_bytes(case.memory.peak_bytes)
    return peak if case.memory.fits else f"{peak}, OVER by {format_bytes(case.memory.over_bytes)}"


def best_case(result: RunResult) -> CaseResult:
    """The fastest case that fits in memory, or the fastest of all where none fits; the first of equals."""
    fitting = [case for case in result.cases if case.memory.fits]
    return max(fitting or result.cases, key=lambda case: case.speedup)


@dataclass(frozen=True)
class Headline:
    """The answer of a run.

    Attributes:
        lead: one sentence with the numbers that count.
        support: what explains it; may be empty.
        notes: what must be known beside it.
    """

    lead: str
    support: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Everything, as one paragraph."""
        return " ".join(part for part in (self.lead, self.support, *self.notes) if part)


def headline(result: RunResult) -> Headline:
    """The answer first: which case wins, by how much, and what the baseline wastes."""
    baseline, best = result.cases[0], best_case(result)
    notes = tuple(_memory_notes(result, best))
    waste = f"GPUs spend {percent(baseline.bubble_rate)} of their time waiting for other ranks under the baseline"
    if len(result.cases) == 1:
        lead = (
            f"{baseline.label} takes {_mean(baseline)} a minibatch; its GPUs spend {percent(baseline.bubble_rate)} of "
            "their time waiting for other ranks."
        )
        return Headline(lead, notes=notes)
    if best is baseline:
        nearest = max(result.cases[1:], key=lambda case: case.speedup)
        others = "other case" if nearest.speedup <= 1 else "other case that fits in memory"
        lead = (
            f"No {others} beats the baseline, {baseline.label}: the fastest of them, {nearest.label}, has a speedup of "
            f"{_speedup_in_words(nearest)}."
        )
        return Headline(lead, f"{waste}.", notes)
    if _may_be_chance(best):
        lead = (
            f"{best.label} is the fastest, but within what chance explains: a speedup of {_speedup_in_words(best)} "
            f"over {baseline.label}."
        )
    else:
        lead = f"{best.label} is {_faster(best.speedup)} {baseline.label}: a speedup of {_speedup_in_words(best)}."
    return Headline(lead, f"{waste}, {percent(best.bubble_rate)} under {best.label}.", notes)


def _memory_notes(result: RunResult, best: CaseResult) -> list[str]:
    baseline, over = result.cases[0], [case for case in result.cases if not case.memory.fits]
    if len(over) == len(result.cases) > 1:
        least = min(over, key=lambda case: case.memory.over_bytes)
        return [f"No case fits in memory; {least.label} is the nearest to it, {_over(least)}."]
    notes = []
    if baseline in over:
        which = "It" if len(result.cases) == 1 else "The baseline"
        notes.append(f"{which} does not fit in memory, {_over(baseline)}: its time is what it would be if it did.")
    faster = max((case for case in over if case is not baseline), key=lambda case: case.speedup, default=best)
    if faster.speedup > best.speedup:
        notes.append(
            f"{faster.label} would be faster still (speedup {faster.speedup:.2f}), but does not fit in memory, "
            f"{_over(faster)}."
        )
    return notes


def _over(case: CaseResult) -> str:
    return f"over by {format_bytes(case.memory.over_bytes)}"


def _mean(case: CaseResult) -> str:
    return format_seconds(case.seconds_per_minibatch["mean"])


def _may_be_chance(case: CaseResult) -> bool:
    return case.speedup_ci95 is not None and case.speedup_ci95[0] <= 1 <= case.speedup_ci95[1]


def _speedup_in_words(case: CaseResult) -> str:
    if case.speedup_ci95 is None:
        return f"{case.speedup:.2f} (one minibatch, so no interval)"
    low, high = case.speedup_ci95
    return f"{case.speedup:.2f} (95% interval {low:.2f} to {high:.2f})"


def _faster(speedup: float) -> str:
    if speedup >= 2:
        return f"{speedup:.3g} times as fast as"
    gain = 100 * (speedup - 1)
    return f"{gain:.0f}% faster than" if gain >= 9.95 else f"{gain:.1f}% faster than"


def lookup(document: object, *path: str) -> Any:  # noqa: ANN401 - whatever a document holds
    """What a nested mapping holds at `path`; None where it holds nothing, or no mapping on the way."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def context(result: RunResult) -> dict[str, str]:
    """What was simulated, in a few lines: the length source, the batch, the model, the cluster."""
    scenario = result.scenario
    ranks = result.cases[0].ranks
    lines = {
        "lengths": _lengths_line(result),
        "minibatch": _minibatch_line(result),
        "model": _model_line(lookup(scenario, "model")),
        "cluster": _cluster_line(lookup(scenario, "cluster"), ranks),
        "engine": _engine_line(result),
    }
    return {name: line for name, line in lines.items() if line}


def source_text(scenario: Mapping[str, Any]) -> str:
    """Where lengths come from, as one line, if the scenario says."""
    workload = lookup(scenario, "workload")
    for source in (lookup(workload, "source"), lookup(workload, "lengths", "source")):
        if isinstance(source, str):
            return source
        name = lookup(source, "summary") or lookup(source, "name")
        if isinstance(name, str):
            return name
    lengths = lookup(workload, "lengths")
    if isinstance(lengths, Mapping):
        return ", ".join(f"{kind} {value}" for kind, value in lengths.items() if isinstance(value, str | int | float))
    return ""


def _lengths_line(result: RunResult) -> str:
    facts = ", ".join(
        f"{name} {format_count(result.lengths[name])}"
        for name in ("mean", "p50", "p99", "max")
        if isinstance(result.lengths.get(name), int | float)
    )
    return "; ".join(part for part in (source_text(result.scenario), f"drawn: {facts} tokens" if facts else "") if part)


def _minibatch_line(result: RunResult) -> str:
    workload = lookup(result.scenario, "workload")
    per_rank, in_all = lookup(workload, "samples_per_rank"), lookup(workload, "samples_per_minibatch")
    parts = []
    if isinstance(per_rank, int):
        parts.append(f"{plural(per_rank, 'sample')} a rank")
    elif isinstance(in_all, int):
        parts.append(f"{plural(in_all, 'sample')} over all ranks")
    cap = lookup(workload, "max_tokens")
    if isinstance(cap, int):
        parts.append(f"microbatches of at most {cap:,} tokens")
    return ", ".join(parts)


def _model_line(model: object) -> str:
    if isinstance(model, str):
        return model
    name = lookup(model, "name")
    parameters = lookup(model, "total_parameters") or lookup(model, "parameters")
    parts = [str(name)] if name else []
    if isinstance(parameters, int | float):
        parts.append(f"{format_count(parameters)} parameters")
    return ", ".join(parts)


def _cluster_line(cluster: object, ranks: int) -> str:
    gpu = lookup(cluster, "gpu")
    name = gpu if isinstance(gpu, str) else lookup(gpu, "name")
    line = f"{plural(ranks, 'rank')}"
    nodes, per_node = lookup(cluster, "nodes"), lookup(cluster, "gpus_per_node")
    if isinstance(nodes, int) and isinstance(per_node, int):
        line += f" ({plural(nodes, 'node')} x {per_node})"
    return f"{line}, {name}" if name else line


def _engine_line(result: RunResult) -> str:
    minibatches = plural(len(result.cases[0].minibatch_s_N), "minibatch")
    seed = lookup(result.scenario, "workload", "seed")
    how = "measured" if result.engine == "measured" else f"simulated by the {result.engine} engine"
    return f"{minibatches} {how}" + (f", seed {seed}" if isinstance(seed, int) else "")
