"""A rank's training loop: builds a case's model under its synchronization, runs its minibatches, and takes the times.

Run by the launcher in every rank: `python -m odcrt.workload.training FOLDER`, with what `odcrt.workload.job` describes
in the folder.

A minibatch is timed from a moment that all ranks agree on, to each rank's end of the optimizer's step. Data are made
and results are told in between. The first minibatch is run once before, as a warm-up that nobody counts.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from odcrt.fsdp.fsdp2 import Unit
from odcrt.fsdp.on_demand import OnDemand, on_demand
from odcrt.fsdp.per_unit import per_unit
from odcrt.fsdp.recording import watch_units
from odcrt.tracing.recorder import Recorder
from odcrt.tracing.spans import now_s
from odcrt.tracing.versions import available_processors
from odcrt.workload.accounts import TimeAccount
from odcrt.workload.job import (
    CaseJob,
    CaseMeasurement,
    Job,
    MinibatchTimes,
    PlannedMicrobatch,
    Queue,
    read_job,
    write_measurement,
    write_progress,
)
from odcrt.workload.memory_watch import MemoryWatch, give_back_at_once
from odcrt.workload.plain import PlainFsdp2
from odcrt.workload.runners import EmulatedRunner, RealRunner, Runner
from odcsim.errors import RunError
from odcsim.trace_format import ClockInfo

__all__ = ["main", "run_case"]

LEARNING_RATE = 1e-4
# How long ranks are given to learn of the moment at which a minibatch is to begin.
_START_LEAD_S = 0.02


class _Handle(Protocol):
    """What the loop needs of a way of synchronization."""

    units: list[Unit]

    def minibatch(self) -> AbstractContextManager[None]: ...

    def check_peers(self, *, within_s: float = 0.0) -> None: ...

    @property
    def counters(self) -> dict[str, int]: ...

    def close(self) -> None: ...


def main() -> None:
    """Run all cases of a job, as the rank that the environment says."""
    folder = Path(sys.argv[1])
    job = read_job(folder)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=job.deadline_s))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if not job.is_emulated:
        give_back_at_once()
    memory = MemoryWatch()
    for position, case in enumerate(job.cases):
        total = len(case.microbatches_NDM)

        def tell(done: int, position: int = position, total: int = total) -> None:
            if rank == 0:
                write_progress(folder, case=position, done=done, total=total)

        tell(0)
        write_measurement(folder, run_case(job, case, mesh, memory, tell), case=position, rank=rank)
    dist.barrier()
    dist.destroy_process_group()


def run_case(
    job: Job, case: CaseJob, mesh: DeviceMesh, memory: MemoryWatch, tell: Callable[[int], None]
) -> CaseMeasurement:
    """Run one case. Collective.

    Args:
        job: what the cases share.
        case: the case.
        mesh: all ranks, in one dimension.
        memory: of this process.
        tell: told of the number of minibatches done.

    Raises:
        RunError: a microbatch failed; the text says which, on which rank, and how large it was.
    """
    memory.restart()
    origin_s = _agreed_moment()
    clock = ClockInfo.shared(mesh.size(), origin_s=origin_s)
    minibatches, counters = [], [{"transfers": 0, "barriers": 0}] * 2
    training_bytes: list[int] = []
    with Recorder(case.record_folder, rank=dist.get_rank(), window=case.window, clock=clock) as recorder:
        account = TimeAccount(recorder, keeps_collectives=case.transport == "gloo")
        runner = EmulatedRunner(job, mesh, account) if job.is_emulated else RealRunner(job, mesh)
        handle = _handle(job, case, runner.model, account)
        tracker = watch_units(recorder, runner.model, handle.units)
        loop = _Loop(case, runner, handle, _optimizer(job, runner.model), account, recorder)
        loop.run(0, recorded_as=-1)
        for minibatch in range(len(case.microbatches_NDM)):
            if minibatch == case.window.start:
                counters[0] = dict(handle.counters)
            minibatches.append(loop.run(minibatch, recorded_as=minibatch))
            if minibatch in case.window and (running_peak_bytes := memory.running_peak_bytes()) is not None:
                training_bytes.append(running_peak_bytes)
            if minibatch + 1 == case.window.stop:
                counters[1] = dict(handle.counters)
            tell(minibatch + 1)
        peak_bytes = memory.peak_bytes(ranks=mesh.size())
        tracker.detach()
        handle.close()
    return CaseMeasurement(
        minibatches=tuple(minibatches),
        memory_bytes=peak_bytes,
        training_bytes=tuple(training_bytes),
        counters={name: counters[1][name] - counters[0][name] for name in counters[1]},
        origin_s=origin_s,
        host=socket.gethostname(),
        processors=available_processors(),
        spans=tuple(recorder.spans()) if case.record_folder is None else (),
    )


def _handle(job: Job, case: CaseJob, model: nn.Module, account: TimeAccount) -> _Handle:
    if case.sync == "odc":
        return on_demand(model, deadline_s=job.deadline_s, recorder=account)
    if case.transport == "collective":
        return per_unit(model, deadline_s=job.deadline_s, recorder=account)
    return PlainFsdp2(model, recorder=account)


def _optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    if job.training.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=True)
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, foreach=True)


def _agreed_moment() -> float:
    """A moment a little ahead, the same on all ranks. Collective."""
    latest = torch.tensor([now_s()], dtype=torch.float64)
    dist.all_reduce(latest, op=dist.ReduceOp.MAX)
    return float(latest) + _START_LEAD_S


class _Loop:
    """The minibatches of one case."""

    def __init__(
        self,
        case: CaseJob,
        runner: Runner,
        handle: _Handle,
        optimizer: torch.optim.Optimizer,
        account: TimeAccount,
        recorder: Recorder,
    ) -> None:
        self._case = case
        self._runner = runner
        self._handle = handle
        self._optimizer = optimizer
        self._account = account
        self._recorder = recorder
        self._rank = dist.get_rank()

    def run(self, minibatch: int, *, recorded_as: int) -> MinibatchTimes:
        """One minibatch. Collective.

        Raises:
            RunError: a microbatch failed, or another rank is lost; torch's own collectives would not say which.
        """
        try:
            return self._run(minibatch, recorded_as=recorded_as)
        except RunError:
            raise
        except Exception:
            self._handle.check_peers(within_s=1.0)
            raise

    def _run(self, minibatch: int, *, recorded_as: int) -> MinibatchTimes:
        account, recorder, runner = self._account, self._recorder, self._runner
        planned_D = self._case.microbatches_NDM[minibatch]
        queue = self._case.queues_N[minibatch] if self._case.queues_N else None
        everything = chain(*planned_D, () if queue is None else queue.microbatches)
        predicted = sum(planned.tokens - len(planned.samples) for planned in everything)
        planned_M = planned_D[self._rank]
        prepared_M = runner.prepare(planned_M, minibatch=minibatch, predicted=predicted)
        pulled: list[int] = []
        upcoming: Iterator[tuple[PlannedMicrobatch, Any]] = (
            zip(planned_M, prepared_M, strict=True)
            if queue is None
            else self._pull(queue, minibatch=minibatch, predicted=predicted, pulled=pulled)
        )
        account.clear()
        recorder.begin_minibatch(recorded_as)
        start_s = _agreed_moment()
        _sleep_until(start_s)
        computed_s, loss = {True: 0.0, False: 0.0}, 0.0
        with self._handle.minibatch():
            runner.begin()
            for position, (planned, prepared) in enumerate(upcoming):
                recorder.begin_microbatch(position, tokens=planned.tokens, squared_tokens=planned.squared_tokens)
                began_s, away_s = now_s(), account.away_s()
                with self._naming(minibatch, position, planned):
                    loss += runner.run(prepared)
                computed_s[bool(planned.samples)] += now_s() - began_s - (account.away_s() - away_s)
                recorder.end_microbatch()
        step_s = now_s()
        runner.before_step(predicted=predicted)
        self._optimizer.step()
        end_s = now_s()
        recorder.span("optimizer", -1, step_s, end_s)
        recorder.end_minibatch()
        self._optimizer.zero_grad()
        return MinibatchTimes(
            start_s=start_s,
            end_s=end_s,
            compute_s=computed_s[True],
            padding_s=computed_s[False],
            transfer_s=account.transfer_s,
            wait_s=account.wait_s,
            publish_s=account.publish_s,
            settle_s=account.settle_s,
            optimizer_s=end_s - step_s,
            collectives_s=tuple(account.collectives_s),
            loss=loss,
            pulled=tuple(pulled),
        )

    def _pull(
        self, queue: Queue, *, minibatch: int, predicted: int, pulled: list[int]
    ) -> Iterator[tuple[PlannedMicrobatch, Any]]:
        """Microbatches of a queue as this rank comes to run them; their positions are added to `pulled`.

        Data are made as they are pulled: nobody knows before who needs which.
        """
        assert isinstance(self._handle, OnDemand), "microbatches are pulled under odc alone"
        for turn, position in enumerate(self._handle.pull(len(queue.microbatches))):
            planned = queue.taken(position, rank=self._rank, turn=turn)
            (prepared,) = self._runner.prepare([planned], minibatch=minibatch, predicted=predicted)
            pulled.append(position)
            yield planned, prepared

    @contextmanager
    def _naming(self, minibatch: int, position: int, planned: PlannedMicrobatch) -> Iterator[None]:
        """Say of an error of this rank's own which microbatch it was."""
        try:
            yield
        except RunError:
            raise  # of another rank, mostly; it says so itself
        except Exception as error:
            raise RunError(
                f"{self._case.label}: rank {self._rank}, minibatch {minibatch}, microbatch {position}, "
                f"{planned.tokens} tokens: {type(error).__name__}: {error}"
            ) from error


def _sleep_until(moment_s: float) -> None:
    while (left_s := moment_s - now_s()) > 0:
        time.sleep(left_s)


if __name__ == "__main__":
    main()
