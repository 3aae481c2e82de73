"""Predicted beside published, for every result in scenarios/published/experiments.yaml.

Usage: python benchmarks/published.py [--out docs/published.md]

Prints a table, and writes it to docs/published.md. Speedups are over each scenario's first case.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from odcsim import RunResult, load_scenario, simulate
from odcsim.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "scenarios" / "published"
FITTED = """\
Three constants are fitted to the port's points: `compute.fitted.scale` (0.33: how long the A100's fit takes on an
MI300X; the catalog's efficiencies of that device follow from it), `on_demand.minibatch_overhead` (0.15 s) and
`cluster.one_sided.inter_node_efficiency` (0.225). Nothing is fitted to the paper's results."""
MISSING = """\
## What the model leaves out

- The data. LongAlign's own lengths are not shipped: the trace is a reconstruction from published quantiles, and the
  tail of a length distribution decides how much there is to gain.
- Something in the collectives. At packing ratio 8 a rank runs all its samples in one microbatch: in the model FSDP
  then waits no more than ODC does, and the 5% published for LB-Micro is not explained. The 14B's LB-Micro (28%
  published) is missed in the same direction.
- The port's 14B takes half as long again as predicted (see the seconds): its efficiency is taken from the 1.5B's runs.
  The predicted share of communication is therefore too large, and the gain at 128 samples too small.
- The port's step from 8 to 16 samples on one node is steeper than predicted.
- GRPO's other phases (generation, reward) are not modelled; the AIME row is the training phase alone, on assumed
  lengths.
"""


@dataclass(frozen=True)
class Row:
    """One published case and our prediction of it."""

    experiment: str
    point: str
    case: str
    predicted: float
    interval: tuple[float, float]
    published: float | None
    predicted_s: float
    published_s: float | None
    source: str

    @property
    def error(self) -> float | None:
        """Predicted over published, less one."""
        return None if self.published is None else self.predicted / self.published - 1


@dataclass(frozen=True)
class Experiment:
    """A sweep: its rows, and what was published about its trend."""

    identifier: str
    title: str
    trend: str | None
    rows: tuple[Row, ...]


def run_point(scenario: str, overrides: Sequence[str]) -> RunResult:
    """Simulate a scenario of scenarios/published with some keys changed."""
    path = FOLDER / scenario
    return simulate(load_scenario(path, overrides=overrides), base_folder=path.parent, file=path)


def run_experiment(entry: dict[str, Any], sources: dict[str, str]) -> Experiment:
    """Simulate every point of an experiment."""
    rows = []
    for point in entry["points"]:
        result = run_point(entry["scenario"], point["set"])
        seconds = point.get("seconds", [None] * len(result.cases))
        for case, published, published_s in zip(result.cases, [None, *point["published"]], seconds, strict=True):
            rows.append(
                Row(
                    experiment=entry["title"],
                    point=point["label"],
                    case=case.label,
                    predicted=case.speedup,
                    interval=case.speedup_ci95 or (case.speedup, case.speedup),
                    published=published,
                    predicted_s=case.seconds_per_minibatch["mean"],
                    published_s=published_s,
                    source=sources[point.get("source", entry["source"])],
                )
            )
    return Experiment(entry["id"], entry["title"], entry["trend"], tuple(rows))


def run_all() -> list[Experiment]:
    """Simulate everything in experiments.yaml."""
    document = yaml.safe_load((FOLDER / "experiments.yaml").read_text(encoding="utf-8"))
    return [run_experiment(entry, document["sources"]) for entry in document["experiments"]]


def port_errors(experiments: Sequence[Experiment]) -> list[float]:
    """Relative errors over the port's `nopad` points: ODC's second case, in both of its experiments."""
    return [
        abs(row.error)
        for experiment in experiments
        if experiment.identifier.startswith("port-")
        for row in experiment.rows
        if row.error is not None and "padded" not in row.case
    ]


def _cell(row: Row) -> list[str]:
    error = "" if row.error is None else f"{row.error:+.1%}"
    published_s = "" if row.published_s is None else f"{row.published_s:g}"
    published = "" if row.published is None else f"{row.published:.3f}"
    low, high = row.interval
    return [
        row.point,
        row.case,
        f"{row.predicted:.3f}",
        f"{low:.3f} to {high:.3f}",
        published,
        error,
        f"{row.predicted_s:.2f}",
        published_s,
    ]


def to_markdown(experiments: Sequence[Experiment]) -> str:
    """The page docs/published.md."""
    lines = [
        "# Predicted beside published",
        "",
        "Written by `python benchmarks/published.py`. Speedups are over the first row of each point.",
        "The interval is the 95% paired bootstrap over the simulated minibatches: it holds the draw of lengths, not",
        "the error of the model.",
        "",
        FITTED,
        "",
    ]
    for experiment in experiments:
        lines += [f"## {experiment.title}", ""]
        sources = "; ".join(dict.fromkeys(row.source for row in experiment.rows if row.published is not None))
        lines += [f"Source: {sources}.", ""]
        if experiment.trend:
            lines += [f"Published trend: {experiment.trend}.", ""]
        lines += [
            "| point | case | predicted | interval | published | error | s/minibatch | published s |",
            "|---|---|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [f"| {' | '.join(_cell(row))} |" for row in experiment.rows]
        lines.append("")
    errors = port_errors(experiments)
    lines += [
        f"Mean absolute error over the port's {len(errors)} unpadded points: {statistics.mean(errors):.1%}; "
        f"worst {max(errors):.1%}.",
        "",
        MISSING,
    ]
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Predicted beside published, for every row.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "published.md", help="page to write")
    arguments = parser.parse_args()
    experiments = run_all()
    page = to_markdown(experiments)
    write_atomically(arguments.out, page)
    print(page)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
