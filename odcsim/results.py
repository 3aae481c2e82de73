"""Results of a run: what the table, the JSON document and the report are made of. docs/metrics.md defines every
figure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.engines.timeline import Span

__all__ = ["RESULT_SCHEMA", "CaseResult", "Conservation", "MemoryResult", "RunResult", "TimeFractions"]

RESULT_SCHEMA = "odcsim.result/1"


@dataclass(frozen=True)
class TimeFractions:
    """Shares of rank-time (D x minibatch time); they sum to 1."""

    compute: float
    exposed_communication: float
    synchronization: float
    optimizer: float
    other: float

    def to_document(self) -> dict[str, float]:
        """As in the result document."""
        return {
            "compute": self.compute,
            "exposed_communication": self.exposed_communication,
            "synchronization": self.synchronization,
            "optimizer": self.optimizer,
            "other": self.other,
        }


@dataclass(frozen=True)
class MemoryResult:
    """Peak memory of a rank, in bytes.

    Attributes:
        parts_bytes: by part; their sum is the peak.
        capacity_bytes: of the device, less what it keeps in reserve.
        largest_microbatch_tokens: tokens of the largest microbatch, which sets the activations.
        advice: what would make it fit; empty if it does.
    """

    parts_bytes: dict[str, float]
    capacity_bytes: float
    largest_microbatch_tokens: int
    advice: str = ""

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the rank with the largest microbatch."""
        return round(sum(self.parts_bytes.values()))

    @property
    def over_bytes(self) -> int:
        """By how much the peak exceeds the capacity; 0 if it fits."""
        return max(0, self.peak_bytes - round(self.capacity_bytes))

    @property
    def fits(self) -> bool:
        """Whether the peak stays within the capacity."""
        return self.over_bytes == 0

    def to_document(self) -> dict[str, Any]:
        """As in the result document."""
        return {
            "parts_bytes": {part: round(size) for part, size in self.parts_bytes.items()},
            "capacity_bytes": round(self.capacity_bytes),
            "over_bytes": self.over_bytes,
            "largest_microbatch_tokens": self.largest_microbatch_tokens,
            "advice": self.advice,
        }


@dataclass(frozen=True)
class Conservation:
    """Where the drawn samples and tokens went: in = run + dropped (+ truncated, for tokens)."""

    samples: int
    dropped_samples: int
    tokens: int
    dropped_tokens: int
    truncated_tokens: int

    @property
    def run_tokens(self) -> int:
        """Tokens that were trained on."""
        return self.tokens - self.dropped_tokens - self.truncated_tokens

    @property
    def run_samples(self) -> int:
        """Samples that were trained on."""
        return self.samples - self.dropped_samples

    def to_document(self) -> dict[str, int]:
        """As in the result document."""
        return {
            "samples": self.samples,
            "dropped_samples": self.dropped_samples,
            "tokens": self.tokens,
            "dropped_tokens": self.dropped_tokens,
            "truncated_tokens": self.truncated_tokens,
            "run_tokens": self.run_tokens,
        }


@dataclass(frozen=True)
class CaseResult:
    """One case of a scenario, over all its minibatches.

    Attributes:
        label: for tables and charts.
        sync, policy, overlap, pad: the case.
        minibatch_s_N: seconds of every minibatch.
        lower_bound_s_N: what no plan can beat under the case's sync, for the same minibatches.
        fractions: where rank-time went.
        conservation: where samples and tokens went.
        mean_microbatches_per_rank: over ranks and minibatches, padding included.
        padding_share: share of microbatches that are padding.
        mfu: model FLOPs utilization.
        memory: peak memory.
        speedup: the first case's mean minibatch time over this one's.
        speedup_ci95: paired bootstrap over minibatches; None for a single minibatch.
        ranks: D.
        spans: of the first minibatch.
    """

    label: str
    sync: str
    policy: str
    overlap: str
    pad: bool
    minibatch_s_N: FloatArray
    lower_bound_s_N: FloatArray
    fractions: TimeFractions
    conservation: Conservation
    mean_microbatches_per_rank: float
    padding_share: float
    mfu: float
    memory: MemoryResult
    speedup: float
    speedup_ci95: tuple[float, float] | None
    ranks: int
    spans: tuple[Span, ...] = ()

    @property
    def seconds_per_minibatch(self) -> dict[str, float]:
        """Mean, median and 95th percentile of the minibatch time."""
        times = self.minibatch_s_N
        return {
            "mean": float(times.mean()),
            "p50": float(np.quantile(times, 0.5)),
            "p95": float(np.quantile(times, 0.95)),
        }

    @property
    def samples_per_second(self) -> float:
        """Samples trained on per second."""
        return self.conservation.run_samples / float(self.minibatch_s_N.sum())

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second."""
        return self.conservation.run_tokens / float(self.minibatch_s_N.sum())

    @property
    def utilization(self) -> float:
        """Share of rank-time spent computing."""
        return self.fractions.compute

    @property
    def bubble_rate(self) -> float:
        """Share of rank-time spent waiting for other ranks."""
        return self.fractions.synchronization

    @property
    def lower_bound_ratio(self) -> float:
        """Mean minibatch time over the mean of the lower bound."""
        return float(self.minibatch_s_N.mean() / self.lower_bound_s_N.mean())

    def to_document(self) -> dict[str, Any]:
        """As in the result document."""
        return {
            "name": self.label,
            "sync": self.sync,
            "policy": self.policy,
            "overlap": self.overlap,
            "pad": self.pad,
            "minibatches": len(self.minibatch_s_N),
            "seconds_per_minibatch": self.seconds_per_minibatch,
            "samples_per_second": self.samples_per_second,
            "samples_per_second_per_rank": self.samples_per_second / self.ranks,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "utilization": self.utilization,
            "bubble_rate": self.bubble_rate,
            "time_fractions": self.fractions.to_document(),
            "microbatches_per_rank": self.mean_microbatches_per_rank,
            "padding_share": self.padding_share,
            "conservation": self.conservation.to_document(),
            "peak_memory_bytes": self.memory.peak_bytes,
            "fits": self.memory.fits,
            "memory": self.memory.to_document(),
            "speedup": self.speedup,
            "speedup_ci95": None if self.speedup_ci95 is None else list(self.speedup_ci95),
            "lower_bound_ratio": self.lower_bound_ratio,
        }


@dataclass(frozen=True)
class RunResult:
    """All cases of a scenario.

    Attributes:
        name: the scenario's.
        scenario: the scenario as it was understood, with the model's shape, the device's figures and the length source.
        engine: `recurrence`, `events` or `measured`.
        lengths: statistics of the sampled lengths, in tokens.
        cases: in the order of the scenario; the first is the baseline.
        warnings: settings that had no effect, and the like.
        sampled_lengths: lengths of the samples drawn (a part of them where there are very many), for a histogram.
    """

    name: str
    scenario: dict[str, Any]
    engine: str
    lengths: dict[str, Any]
    cases: tuple[CaseResult, ...]
    warnings: tuple[str, ...] = ()
    sampled_lengths: IntArray | None = field(default=None, repr=False)

    def to_document(self) -> dict[str, Any]:
        """The result document (`odcsim.result/1`)."""
        return {
            "schema": RESULT_SCHEMA,
            "scenario": self.scenario,
            "engine": self.engine,
            "lengths": self.lengths,
            "warnings": list(self.warnings),
            "cases": [case.to_document() for case in self.cases],
        }
