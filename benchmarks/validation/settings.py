"""What benchmarks/validate.py records: workloads, numbers of ranks, and which of them costs are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = [
    "CALIBRATION_POLICY",
    "CALIBRATION_SETTINGS",
    "KINDS",
    "SETTINGS",
    "TRACES",
    "Kind",
    "Setting",
]

FOLDER = Path(__file__).resolve().parent

Kind = Literal["emulated", "fast", "real"]

# How tables call a kind of compute.
KINDS: dict[Kind, str] = {"emulated": "emulated", "fast": "emulated, 4 times as fast", "real": "real"}

# How many times as fast as the A100 of the cost model emulated compute runs.
_PACES: dict[Kind, float] = {"emulated": 1.0, "fast": 4.0}

# Of each workload: its trace, and how its lengths are scaled for real and for emulated compute.
TRACES = {
    "agentic": ("swebench_verified_miniswe_gemini3pro", {"real": 0.05, "emulated": 1.0}),
    "reasoning": ("aime24_skyt1_32b_response", {"real": 0.06, "emulated": 1.0}),
    "chat": ("arena_hard_v2_o3mini_chat", {"real": 0.8, "emulated": 12.0}),
}


@dataclass(frozen=True)
class Setting:
    """One workload on so many ranks.

    Attributes:
        kind: of compute.
        ranks: D.
        trace: a key of `TRACES`.
        samples_per_rank: of a minibatch.
        slowed_rank: one whose compute takes longer, and its speed; None: all are alike.
        repeats: how often it is recorded.
        minibatches: recorded of each case; None: as many as the scenario file says.
        more_to_fit: how often the case on gloo that costs are fitted to is recorded beyond the repeats.
    """

    kind: Kind
    ranks: int
    trace: str
    samples_per_rank: int
    slowed_rank: tuple[int, float] | None = None
    repeats: int = 1
    minibatches: int | None = None
    more_to_fit: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        slowed = "" if self.slowed_rank is None else "-slowed-rank"
        return f"{self.kind}-{self.ranks}-{self.trace}-{self.samples_per_rank}{slowed}"

    @property
    def scenario(self) -> Path:
        """Its scenario file; `overrides` makes it this setting's."""
        return FOLDER / f"{self._workload}.yaml"

    @property
    def _workload(self) -> str:
        """What is run: emulated compute is the same workload at any pace."""
        return "real" if self.kind == "real" else "emulated"

    def overrides(self) -> list[str]:
        """What differs from the scenario file, as `--set` takes it."""
        trace, scales = TRACES[self.trace]
        paced = [f"compute.fitted.scale={1 / _PACES[self.kind]}"] if self.kind in _PACES else []
        counted = [] if self.minibatches is None else [f"workload.minibatches={self.minibatches}"]
        speeds = "" if self.slowed_rank is None else f"{self.slowed_rank[0]}: {self.slowed_rank[1]}"
        return [
            f"workload.lengths={{trace: ../../traces/lengths/{trace}.csv}}",
            f"workload.length_scale={scales[self._workload]}",
            f"workload.samples_per_rank={self.samples_per_rank}",
            f"cluster.gpus_per_node={self.ranks}",
            f"cluster.rank_speeds={{{speeds}}}",
            *paced,
            *counted,
        ]


# At the A100's own pace: a minibatch of each case, but for the one that costs are fitted to.
_EMULATED = (
    # What gloo takes on ranks that share processors varies by half from one collective to the next: a few dozen of them
    # tell its mean to a third alone.
    Setting("emulated", 4, "agentic", 4, repeats=2, more_to_fit=8),
    Setting("emulated", 16, "reasoning", 2, repeats=4, minibatches=1),
    Setting("emulated", 16, "agentic", 4, minibatches=1),
    Setting("emulated", 16, "chat", 4, minibatches=1),
    Setting("emulated", 8, "agentic", 2, minibatches=1),
    Setting("emulated", 8, "reasoning", 4, minibatches=1),
    Setting("emulated", 8, "chat", 4, minibatches=1),
    Setting("emulated", 4, "agentic", 2, minibatches=1),
    *(Setting("emulated", 4, trace, samples, minibatches=1) for trace in ("reasoning", "chat") for samples in (2, 4)),
    Setting("emulated", 4, "reasoning", 4, slowed_rank=(1, 0.7), minibatches=1),
)

_FAST = (
    Setting("fast", 4, "agentic", 4, repeats=2),
    Setting("fast", 4, "agentic", 2),
    *(Setting("fast", 4, trace, samples) for trace in ("reasoning", "chat") for samples in (2, 4)),
    Setting("fast", 4, "reasoning", 4, slowed_rank=(1, 0.7)),
    Setting("fast", 8, "agentic", 2),
    Setting("fast", 8, "reasoning", 4, repeats=2),
    Setting("fast", 8, "chat", 4),
    Setting("fast", 16, "agentic", 4, repeats=3),
    Setting("fast", 16, "reasoning", 2, repeats=3),
    Setting("fast", 16, "chat", 4, repeats=3),
)

_REAL = tuple(Setting("real", 2, trace, samples, repeats=2) for trace in TRACES for samples in (2, 4))

SETTINGS = (*_EMULATED, *_FAST, *_REAL)

# Costs are fitted to one case of one setting of each kind: what it ran over shared memory as FSDP and as ODC, and over
# gloo, whose costs no other run can tell.
CALIBRATION_SETTINGS: dict[Kind, Setting] = {
    "emulated": _EMULATED[0],
    "fast": _FAST[0],
    "real": _REAL[1],
}
CALIBRATION_POLICY = "lb-micro"
