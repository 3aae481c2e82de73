"""Recording of a user's own training loop: a handle tells what it does, and a run folder comes of it.

`odcrt launch --record DIR SCRIPT.py` sets variables (see `odcrt.tracing.window`); `on_demand` and `per_unit` look for
them. The script need not know. A script with several handles gets a folder each: DIR, DIR/handle-2, ...

A minibatch lasts until the next one begins, so that the optimizer's step between them belongs to it.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from odcrt.fsdp.fsdp2 import Unit
from odcrt.tracing.clocks import align_clocks
from odcrt.tracing.compute_tracker import ComputeTracker
from odcrt.tracing.recorder import Recorder
from odcrt.tracing.versions import available_processors, describe_versions
from odcrt.tracing.window import DEFAULT_WINDOW, RECORD_VARIABLE, WINDOW_VARIABLE, parse_window
from odcsim.engines.timeline import SpanName
from odcsim.schedule import ROOT_UNIT, Sync
from odcsim.trace_format import ClockInfo, RunInfo, write_run_info

__all__ = [
    "HandleRecording",
    "recording_from_environment",
    "watch_units",
]

# Handles of this process that are recorded, so far.
_handles_recorded = 0


def watch_units(recorder: Recorder, model: nn.Module, units: Sequence[Unit]) -> ComputeTracker:
    """Have a recorder told of the compute of every unit."""
    tracker = ComputeTracker(recorder)
    modules: list[tuple[int, Any]] = [(unit.number, unit.module) for unit in units]
    # The root frames a microbatch, also where it has no parameters of its own.
    tracker.attach(modules if modules and modules[0][0] == ROOT_UNIT else [(ROOT_UNIT, model), *modules])
    return tracker


def recording_from_environment(
    model: nn.Module, units: Sequence[Unit], *, sync: Sync, transport: str, group: dist.ProcessGroup | None
) -> HandleRecording | None:
    """The recording that the environment asks for, if it does. Collective where it does.

    Raises:
        InputError: the folder cannot be written to, or the window is none.
    """
    global _handles_recorded  # noqa: PLW0603 - folders are told apart by it
    folder = os.environ.get(RECORD_VARIABLE)
    if not folder:
        return None
    window_text = os.environ.get(WINDOW_VARIABLE)
    window = parse_window(window_text, key=WINDOW_VARIABLE) if window_text else DEFAULT_WINDOW
    _handles_recorded += 1
    place = Path(folder) if _handles_recorded == 1 else Path(folder) / f"handle-{_handles_recorded}"
    case = {"sync": sync, "policy": "script", "transport": transport, "compute": "real"}
    return HandleRecording(place, window, model, units, case=case, group=group)


class HandleRecording:
    """One rank's recording of what its handle does."""

    def __init__(
        self,
        folder: Path,
        window: range,
        model: nn.Module,
        units: Sequence[Unit],
        *,
        case: dict[str, str],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._folder, self._case = folder, case
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)

        def exchange(mine: Any) -> list[Any]:  # noqa: ANN401 - whatever is exchanged
            theirs: list[Any] = [None] * self._world_size
            dist.all_gather_object(theirs, mine, group=group)
            return theirs

        self._clock: ClockInfo = align_clocks(lambda: dist.barrier(group), exchange)
        self._hosts: list[str] = exchange(socket.gethostname())
        self._processors: list[int] = exchange(available_processors())
        self._recorder = Recorder(folder, rank=self._rank, window=window, clock=self._clock)
        self._tracker = watch_units(self._recorder, model, units)
        self._hooks: list[RemovableHandle] = [
            register_optimizer_step_pre_hook(self._optimizer_starts),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        self._optimizer_since_s = 0.0
        self._latest = -1
        self._is_closed = False
        atexit.register(self.close)

    def span(self, name: SpanName, unit: int, start_s: float, end_s: float, moved_bytes: int, /) -> None:
        """See `odcrt.tracing.spans.SpanSink`."""
        self._recorder.span(name, unit, start_s, end_s, moved_bytes)
        if name == "scatter_accumulate" and unit == ROOT_UNIT:
            # FSDP2 reduces the root's gradients last: what comes now is the user's.
            self._recorder.end_microbatch()

    def begin_minibatch(self, minibatch: int) -> None:
        """The handle's next minibatch."""
        if self._latest >= 0:
            self._recorder.end_minibatch()
        if minibatch == self._recorder.window.stop:
            self._recorder.close()
        self._latest = minibatch
        self._recorder.begin_minibatch(minibatch)

    def begin_microbatch(self, microbatch: int, tokens: int) -> None:
        """The model's forward is about to begin."""
        self._recorder.end_microbatch()
        self._recorder.begin_microbatch(microbatch, tokens=max(tokens, 0))

    def end_microbatches(self) -> None:
        """What follows ends the minibatch."""
        self._recorder.end_microbatch()

    def _optimizer_starts(self, *_ignored: object) -> None:
        self._optimizer_since_s = self._recorder.now_s()

    def _optimizer_ends(self, *_ignored: object) -> None:
        self._recorder.span("optimizer", -1, self._optimizer_since_s, self._recorder.now_s())

    def close(self) -> None:
        """Finish the trace; rank 0 tells what was run. Safe to call twice; also called when the process ends."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        for hook in self._hooks:
            hook.remove()
        self._tracker.detach()
        self._recorder.close()
        window = self._recorder.window
        recorded = range(window.start, min(window.stop, self._latest + 1))
        if self._rank == 0 and recorded:
            write_run_info(
                self._folder,
                RunInfo(
                    engine="measured",
                    scenario={},
                    case=self._case,
                    world_size=self._world_size,
                    hosts=tuple(self._hosts),
                    clock=self._clock,
                    versions=describe_versions(),
                    window=recorded,
                    processors=tuple(self._processors) if all(self._processors) else (),
                ),
            )
