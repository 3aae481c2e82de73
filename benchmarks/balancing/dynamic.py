"""Microbatches that ranks pull as they go, where one rank is slow and no plan knows it.

One of eight ranks takes 1.5 times as long for everything, and plans balance tokens: they know neither that rank nor
what a microbatch costs. They are compared with the best plan that full knowledge makes: `independent`, told of the
ranks' speeds and of the costs of settings.py. Each rank in turn is the slow one.

Simulated, transfers and all, as the 1.5B model of the ODC paper's golden setting; the cap on a microbatch is the
trace's longest sequence, and 65536 tokens at most, which longer ones are cut to. Then for real, if asked for:
scenarios/runtime/dynamic-8.yaml, with compute slept (`cd benchmarks && python -m balancing.dynamic --runtime`; it needs
torch).

Required: with 8 samples a rank, in the mean over the traces whose samples take longer than an empty microbatch, pulling
is within 5% of the best plan; with any number, it is faster than plans that know as little. With 4 samples a rank, 5%
is not required: a rank that may turn out slow must not be given all at once, so some run two microbatches instead of
one, and the constant of one is more than 5% of so short a minibatch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from balancing.settings import COST, FOLDER
from odcsim.lengths import read_trace
from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate

__all__ = ["LIMIT", "RUNTIME_SCENARIO", "TRACES", "Comparison", "Setting", "measured", "sections", "simulated"]

RUNTIME_SCENARIO = FOLDER.parents[1] / "scenarios" / "runtime" / "dynamic-8.yaml"
ODCRT = [sys.executable, "-c", "from odcrt.cli import main; main()"]

# By the costs of settings.py a sample of 8,000 tokens takes as long as an empty microbatch.
TRACES = (
    "swebench_verified_miniswe_gemini3pro",
    "aime24_skyt1_32b_response",
    "qmsum_train_sft",
    "synthetic_longalign_10k_qwen",
    "synthetic_swesmith_lognormal",
)
SAMPLES_PER_RANK = (4, 8)
REQUIRED_AT = 8
LIMIT = 0.05
"""How much longer than the best plan pulling may take."""

RANKS, SLOW_SPEED = 8, 0.667
CUT_TOKENS = 65536
KNOWING = {"cost": "model", "known_speeds": True}
UNKNOWING = {"cost": "tokens"}


@dataclass(frozen=True)
class Setting:
    """A workload.

    Attributes:
        trace: of lengths, by its file's name.
        samples_per_rank: of a minibatch.
        slow_ranks: each of which is the slow one once.
        minibatches: that are simulated, each time the same.
    """

    trace: str
    samples_per_rank: int
    slow_ranks: tuple[int, ...] = tuple(range(RANKS))
    minibatches: int = 15


@dataclass(frozen=True)
class Comparison:
    """Seconds of a mean minibatch.

    Attributes:
        best_s: of `independent`, told of speeds and costs.
        others_s: of policies told of neither; `dynamic` is one.
    """

    best_s: float
    others_s: dict[str, float]

    def beyond(self, policy: str) -> float:
        """How much longer a policy takes than the best plan: 0.1 is a tenth."""
        return self.others_s[policy] / self.best_s - 1

    def __str__(self) -> str:
        beyond = ", ".join(f"{policy} {self.beyond(policy):+6.1%}" for policy in self.others_s)
        return f"best {self.best_s:6.2f} s; {beyond}"


def simulated(setting: Setting) -> Comparison:
    """One workload on the simulator."""
    times_s: dict[str, list[float]] = {"best": []}
    for slow_rank in setting.slow_ranks:
        times_s["best"] += _simulated_s(setting, ["independent"], slow_rank=slow_rank, planning=KNOWING)
        policies = ["dynamic", "independent", "lb-mini"]
        for policy, time_s in zip(
            policies, _simulated_s(setting, policies, slow_rank=slow_rank, planning=UNKNOWING), strict=True
        ):
            times_s.setdefault(policy, []).append(time_s)
    means_s = {name: mean(found_s) for name, found_s in times_s.items()}
    return Comparison(means_s.pop("best"), means_s)


def _simulated_s(setting: Setting, policies: Sequence[str], *, slow_rank: int, planning: dict[str, Any]) -> list[float]:
    cap_tokens = _cap_tokens_of(setting.trace)
    document = {
        "name": "dynamic",
        "model": "deepseek-r1-distill-qwen-1.5b",
        "cluster": {"gpu": "a100-80g-sxm", "gpus_per_node": RANKS, "rank_speeds": {slow_rank: SLOW_SPEED}},
        "workload": {
            "lengths": {"trace": f"{setting.trace}.csv"},
            "samples_per_rank": setting.samples_per_rank,
            "cut_tokens": cap_tokens,
            "max_tokens": cap_tokens,
            "minibatches": setting.minibatches,
        },
        "compute": {
            "fitted": {
                "quadratic": COST.quadratic,
                "linear": COST.linear,
                "constant": COST.constant,
                "per_tokens": 1,
            }
        },
        "planning": planning,
        "cases": [{"sync": "odc", "policy": policy} for policy in policies],
    }
    result = simulate(parse_scenario(document), base_folder=FOLDER)
    return [float(case.minibatch_s_N.mean()) for case in result.cases]


@cache
def _cap_tokens_of(trace: str) -> int:
    return min(int(read_trace(FOLDER / f"{trace}.csv").lengths_S.max()), CUT_TOKENS)


def measured(*, repeats: int = 2, overrides: Sequence[str] = ()) -> Comparison:
    """The runtime's scenario for real, planned with and without knowledge in turns.

    Args:
        repeats: how often each; the shortest counts.
        overrides: of the scenario's keys, as `--set` takes them.
    """
    best_s, others_s = [], []
    for _ in range(repeats):
        best_s += _measured_s(
            "planning={cost: model, known_speeds: true}", "cases=[{sync: odc, policy: independent}]", *overrides
        ).values()
        others_s.append(_measured_s(*overrides))
    return Comparison(min(best_s), {policy: min(found[policy] for found in others_s) for policy in others_s[0]})


def _measured_s(*overrides: str) -> dict[str, float]:
    """Seconds of a mean minibatch of every case, by policy."""
    options = [part for override in overrides for part in ("--set", override)]
    with TemporaryDirectory() as folder:
        command = [*ODCRT, "launch", str(RUNTIME_SCENARIO), "--json", "--out", folder, *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    cases = json.loads(done.stdout)["cases"]
    return {case["policy"]: case["seconds_per_minibatch"]["mean"] for case in cases}


def sections(*, runtime: bool = False) -> Iterator[str]:
    """Blocks of lines to print.

    Args:
        runtime: whether to run the scenario for real, too; that takes some minutes.
    """
    for samples_per_rank in SAMPLES_PER_RANK:
        found = {trace: simulated(Setting(trace, samples_per_rank)) for trace in TRACES}
        lines = [f"one of {RANKS} ranks slow, which no plan knows, {samples_per_rank} samples a rank, simulated:"]
        lines += [f"  {trace:36} {comparison}" for trace, comparison in found.items()]
        beyond = {
            policy: mean(comparison.beyond(policy) for comparison in found.values())
            for policy in next(iter(found.values())).others_s
        }
        lines.append("  in the mean: " + ", ".join(f"{policy} {share:+.1%}" for policy, share in beyond.items()))
        if samples_per_rank == REQUIRED_AT and beyond["dynamic"] > LIMIT:
            lines.append(f"MISSED: dynamic is to be within {LIMIT:.0%} of the best plan in the mean")
        if beyond["dynamic"] > min(beyond.values()):
            lines.append("MISSED: dynamic is to be faster than plans that know as little")
        yield "\n".join(lines)
    if runtime:
        comparison = measured()
        missed = "" if comparison.beyond("dynamic") <= LIMIT else f"\nMISSED: dynamic is to be within {LIMIT:.0%}"
        yield f"{RUNTIME_SCENARIO.name}, one of {RANKS} ranks slow, for real: {comparison}{missed}"


if __name__ == "__main__":
    for section in sections(runtime="--runtime" in sys.argv):
        print(section, end="\n\n", flush=True)
