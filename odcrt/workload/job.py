"""What the launcher hands to the ranks of a scenario, and what they hand back: plain data in files of one folder.

    job.pickle            the job, for all ranks
    case-C-rank-R.pickle  what rank R measured of case C
    progress              what rank 0 is at: case, minibatches done, minibatches of the case

Times are seconds of the clock that all processes of a host share (`odcrt.tracing.spans.now_s`), or durations by it.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from odcsim.arrays import FloatArray
from odcsim.model_shape import ModelShape
from odcsim.schedule import Sync
from odcsim.trace_format import RankMemory, TraceSpan

__all__ = [
    "CaseJob",
    "CaseMeasurement",
    "Job",
    "MinibatchTimes",
    "PlannedMicrobatch",
    "Queue",
    "TrainingSettings",
    "Transport",
    "read_job",
    "read_measurement",
    "read_progress",
    "write_job",
    "write_measurement",
    "write_progress",
]

Transport = Literal["shm", "collective", "gloo"]


@dataclass(frozen=True)
class PlannedMicrobatch:
    """One microbatch of a rank; without samples it is padding.

    Attributes:
        samples: positions in the minibatch, which fix their contents.
        lengths: tokens of each as it is run.
        stretch: how many times longer its compute is to take than on a rank of speed 1; used if compute is emulated.
    """

    samples: tuple[int, ...]
    lengths: tuple[int, ...]
    stretch: float = 1.0

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return sum(self.lengths)

    @property
    def squared_tokens(self) -> int:
        """Sum of the squared lengths."""
        return sum(length * length for length in self.lengths)


@dataclass(frozen=True, eq=False)
class Queue:
    """The microbatches of one minibatch that ranks pull.

    Attributes:
        microbatches: in the order in which they are pulled.
        stretch_DM: for each rank, how many times longer the compute of its m-th microbatch is to take; M is the length
            of the queue, all of which a rank may come to pull.
    """

    microbatches: tuple[PlannedMicrobatch, ...]
    stretch_DM: FloatArray

    def taken(self, position: int, *, rank: int, turn: int) -> PlannedMicrobatch:
        """The microbatch at a position, as a rank runs it after `turn` others."""
        return replace(self.microbatches[position], stretch=float(self.stretch_DM[rank, turn]))


@dataclass(frozen=True)
class TrainingSettings:
    """A scenario's section `training`, whose keys and values these are. Ranks start quicker without its schema.

    Attributes:
        recompute: whether blocks run again in their backward.
        fused_loss: whether the loss is fused with the head.
        param_dtype: in which parameters are gathered and computed with.
        reduce_dtype: in which gradients are reduced.
        optimizer: which.
    """

    recompute: Literal["full", "none"]
    fused_loss: bool
    param_dtype: Literal["bf16", "fp16", "fp32"]
    reduce_dtype: Literal["bf16", "fp16", "fp32"]
    optimizer: Literal["adamw", "sgd"]


@dataclass(frozen=True)
class CaseJob:
    """One case to run.

    Attributes:
        label: for messages.
        sync: `fsdp` or `odc`.
        transport: what moves the data: `shm` for odc; `collective` or `gloo` for fsdp.
        microbatches_NDM: for each minibatch and rank, its microbatches in order; none where they are pulled.
        queues_N: of each minibatch, if the case's microbatches are pulled; otherwise empty.
        record_folder: for traces; None keeps those of the first minibatch in memory, for the report.
        window: minibatches to record.
    """

    label: str
    sync: Sync
    transport: Transport
    microbatches_NDM: tuple[tuple[tuple[PlannedMicrobatch, ...], ...], ...]
    queues_N: tuple[Queue, ...]
    record_folder: Path | None
    window: range


@dataclass(frozen=True)
class Job:
    """All cases, and what they share.

    Attributes:
        shape: of the decoder.
        training: types, recomputation, loss, optimizer.
        is_emulated: whether compute is slept.
        coefficients_FV: seconds of a visit per squared token, token and microbatch; for emulated compute.
        seed: of weights and tokens.
        deadline_s: longest wait of ranks for each other.
        cases: in order.
    """

    shape: ModelShape
    training: TrainingSettings
    is_emulated: bool
    coefficients_FV: FloatArray
    seed: int
    deadline_s: float
    cases: tuple[CaseJob, ...]


@dataclass(frozen=True)
class MinibatchTimes:
    """One rank's minibatch. `end_s - start_s` is the sum of its parts and of what none of them holds.

    Attributes:
        start_s: the moment agreed upon by all ranks.
        end_s: when this rank's optimizer was done.
        compute_s: between transfers and waits, within microbatches that hold samples.
        padding_s: the same within padding microbatches.
        transfer_s: gathers and scatter-accumulates (or reduce-scatters); under gloo with the waits inside of them.
        wait_s: for other ranks.
        publish_s: `odc`: making the shard readable.
        settle_s: `odc`: taking the accumulated gradients.
        optimizer_s: clipping and step.
        collectives_s: under gloo, of every collective in order, which tells waits from transfers once ranks are
            compared; empty otherwise.
        loss: this rank's part of the minibatch's.
        pulled: positions in the minibatch's queue of the microbatches that it pulled, in the order of running.
    """

    start_s: float
    end_s: float
    compute_s: float
    padding_s: float
    transfer_s: float
    wait_s: float
    publish_s: float
    settle_s: float
    optimizer_s: float
    collectives_s: tuple[float, ...]
    loss: float
    pulled: tuple[int, ...] = ()


@dataclass(frozen=True)
class CaseMeasurement:
    """What one rank measured of one case.

    Attributes:
        minibatches: without the warm-up.
        memory_bytes: peak by part: "process", "training", "shared_memory".
        training_bytes: for each recorded minibatch, the running peak of "training" after it; empty where nobody tells.
        counters: transfers and barriers over the recorded minibatches.
        origin_s: the trace's zero.
        host: where the rank ran.
        processors: CPUs that it could run on; 0 where nobody tells.
        spans: of the first minibatch, if they were not recorded to a folder.
    """

    minibatches: tuple[MinibatchTimes, ...]
    memory_bytes: dict[str, float]
    training_bytes: tuple[int, ...]
    counters: dict[str, int]
    origin_s: float
    host: str
    processors: int
    spans: tuple[TraceSpan, ...]

    @property
    def rank_memory(self) -> RankMemory | None:
        """For run.json; None where nobody tells."""
        if not self.training_bytes:
            return None
        return RankMemory(
            process_bytes=round(self.memory_bytes["process"]),
            shared_memory_bytes=round(self.memory_bytes["shared_memory"]),
            training_bytes=self.training_bytes,
        )


def _write(path: Path, content: object) -> None:
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_bytes(pickle.dumps(content))
    temporary.replace(path)


def _read(path: Path) -> Any:  # noqa: ANN401 - what was written there
    return pickle.loads(path.read_bytes())  # noqa: S301 - written by this very run, into a folder of its own


def write_job(folder: Path, job: Job) -> None:
    """For the ranks."""
    _write(folder / "job.pickle", job)


def read_job(folder: Path) -> Job:
    """In a rank."""
    job = _read(folder / "job.pickle")
    assert isinstance(job, Job)
    return job


def write_measurement(folder: Path, measured: CaseMeasurement, *, case: int, rank: int) -> None:
    """In a rank, at the end of a case."""
    _write(folder / f"case-{case}-rank-{rank}.pickle", measured)


def read_measurement(folder: Path, *, case: int, rank: int) -> CaseMeasurement:
    """In the launcher, once the ranks have ended well."""
    measured = _read(folder / f"case-{case}-rank-{rank}.pickle")
    assert isinstance(measured, CaseMeasurement)
    return measured


def write_progress(folder: Path, *, case: int, done: int, total: int) -> None:
    """In rank 0, after every minibatch."""
    temporary = folder / "progress.part"
    temporary.write_text(f"{case} {done} {total}", encoding="ascii")
    temporary.replace(folder / "progress")


def read_progress(folder: Path) -> tuple[int, int, int] | None:
    """Case, minibatches done and minibatches of it; None before the first."""
    try:
        case, done, total = (folder / "progress").read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(case), int(done), int(total)
