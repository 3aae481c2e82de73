"""What is measured: traces, sizes, seeds, and what a sample costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.lengths.source import LengthSource, load_source
from odcsim.lengths.spec import LengthSpec

__all__ = ["COST", "SEEDS", "SIZES", "TRACES", "Size", "draw_costs_S", "draw_lengths_S"]

FOLDER = Path(__file__).resolve().parents[2] / "traces" / "lengths"

TRACES = (
    "swebench_verified_miniswe_gemini3pro",
    "aime24_skyt1_32b_response",
    "qmsum_train_sft",
    "arena_hard_v2_o3mini_chat",
    "gsm8k_train_sft",
    "math100x8_qwen25math_response",
    "azure_llm_2023_conv_total",
    "synthetic_longalign_10k_qwen",
    "synthetic_swesmith_lognormal",
)
SEEDS = range(5)

# Seconds on an A100, a 1.5B model with full recomputation, as published with the ODC paper (arXiv 2601.19362).
COST = TokenCost(quadratic=1.982122 / 32000**2, linear=2.611821 / 32000, constant=0.666759)


@dataclass(frozen=True)
class Size:
    """Samples to be split into parts.

    Attributes:
        samples: of a minibatch.
        parts: to split it into.
        limit_ms: what one split may take; None: not limited.
    """

    samples: int
    parts: int
    limit_ms: float | None = None

    def __str__(self) -> str:
        return f"{self.samples} samples, {self.parts} parts"


SIZES = (
    Size(32, 8),
    Size(64, 8, limit_ms=2),
    Size(256, 16),
    Size(512, 32),
    Size(1024, 64),
    Size(4096, 128, limit_ms=15),
    Size(8192, 256, limit_ms=20),
)


@cache
def _source(trace: str) -> LengthSource:
    return load_source(LengthSpec(trace=f"{trace}.csv"), base_folder=FOLDER)


def draw_lengths_S(trace: str, *, samples: int, seed: int) -> IntArray:
    """The lengths of one minibatch, in tokens."""
    lengths_S: IntArray = _source(trace).draw(1, samples, seed)[0]
    return lengths_S


def draw_costs_S(trace: str, *, samples: int, seed: int) -> FloatArray:
    """Seconds that each sample of one minibatch takes."""
    return COST.sample_costs_S(draw_lengths_S(trace, samples=samples, seed=seed))
