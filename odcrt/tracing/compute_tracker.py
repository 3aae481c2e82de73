"""Forward and backward spans of FSDP units, from what can be watched of them. Times by the recorder's clock.

FSDP2 on the CPU does one thing after another: what lies between transfers is compute (and the copies that FSDP2 makes
around transfers). What is known of the moments in between are *marks*: a unit's forward is entered or left, the
gradient of its output arrives, and the transfers and waits that the recorder is told of. They cut time into stretches.

Forward: from the root's forward being entered until it is left. A stretch belongs to the innermost unit entered.

Backward: from then until the microbatch ends. A stretch belongs to the first of these that there is:

1. the unit whose backward is known to run: the gradient of its output has arrived, or its forward was entered once
   more (recomputation of checkpointed activations, which is part of its backward), and its scatter-accumulate has not
   come yet;
2. the unit of the scatter-accumulate that ends the stretch;
3. the root, before the first scatter-accumulate: the loss and the head;
4. the next unit of which 1 or 2 tells.

A wait does not end a stretch, but interrupts it: the transfer after it decides. What is left when the microbatch ends
belongs to the unit known to run, or to the one of the last scatter-accumulate; without either there was no backward,
and nothing is kept.

On the CPU, FSDP2's order for root 0 and blocks 1 and 2 is this, where a block's pre-backward already gathers the block
before it, and copies of a gathered unit precede its own work:

    enter 0, gather 0, (embedding), enter 1, gather 1, (block 1), leave 1, enter 2, gather 2, (block 2), leave 2,
    (head, loss), leave 0
    gather 2, (loss, head), gather 1, gradient of 2 arrives, (block 2), scatter-accumulate 2,
    gradient of 1 arrives, (block 1), scatter-accumulate 1, (embedding), scatter-accumulate 0
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from odcrt.tracing.recorder import Recorder
from odcsim.engines.timeline import SpanName
from odcsim.schedule import ROOT_UNIT

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle

__all__ = ["ComputeTracker"]


class ComputeTracker:
    """Turns marks into forward and backward spans of one recorder, whose observer it becomes.

    The recorder must be told of spans in the order of time. A mark costs next to nothing while nothing is recorded.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._handles: list[RemovableHandle] = []
        self._forget()
        recorder.observer = self

    def _forget(self) -> None:
        # Where the stretch that is going on began; None while nothing is computed.
        self._since_s: float | None = None
        self._entered: list[int] = []
        self._in_backward = False
        # Of backward: the owner of stretches, whether that is known (rule 1) or assumed (rule 3), and pieces of the
        # present stretch that were interrupted.
        self._owner: int | None = None
        self._known = False
        self._pieces: list[tuple[float, float]] = []
        self._latest_reduced: int | None = None

    def attach(self, units: Iterable[tuple[int, nn.Module]]) -> None:
        """Watch a model, by public hooks; call it after `fully_shard`, whose hooks these then enclose.

        Args:
            units: numbers of FSDP units with their modules, the root's among them (also if it has no parameters of its
                own); a unit of several modules appears several times.
        """
        for unit, module in units:
            self._handles += (
                module.register_forward_pre_hook(self._entering(unit), prepend=True),
                # Recomputation may stop in the middle of a forward, by an exception.
                module.register_forward_hook(self._leaving(unit), always_call=True),
            )

    def detach(self) -> None:
        """Take all hooks off, and leave the recorder alone."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._recorder.observer = None

    def _entering(self, unit: int) -> Any:  # noqa: ANN401 - a hook, of torch's own making
        def enter(_module: nn.Module, _arguments: object) -> None:
            self.forward_enter(unit)

        return enter

    def _leaving(self, unit: int) -> Any:  # noqa: ANN401 - a hook, of torch's own making
        def gradient_arrives(_gradient: object) -> None:
            self.backward_enter(unit)

        def leave(_module: nn.Module, _arguments: object, output: object) -> None:
            self.forward_exit(unit)
            # The root's backward is taken to run from the start: no need to be told.
            if unit != ROOT_UNIT and self._recorder.recording and not self._in_backward:
                differentiable = _first_differentiable(output)
                if differentiable is not None:
                    differentiable.register_hook(gradient_arrives)

        return leave

    def forward_enter(self, unit: int) -> None:
        """Mark: a unit's forward begins, or is entered again by recomputation."""
        if not self._recorder.recording:
            return
        now_s = self._recorder.now_s()
        if self._in_backward and unit != ROOT_UNIT:
            self._runs(unit, now_s)
            return
        if self._entered:
            self._keep("forward", self._entered[-1], now_s)
        else:
            self._forget()  # whatever came before this forward
        self._entered.append(unit)
        self._since_s = now_s

    def forward_exit(self, unit: int) -> None:
        """Mark: a unit's forward is over; one that was entered by recomputation goes on with its backward."""
        if not self._recorder.recording or unit not in self._entered:
            return
        now_s = self._recorder.now_s()
        self._keep("forward", self._entered[-1], now_s)
        while self._entered.pop() != unit:
            pass  # forwards inside of this one, which nobody saw end
        self._since_s = now_s
        if not self._entered and unit == ROOT_UNIT:
            self._in_backward = True
            self._owner, self._known = ROOT_UNIT, False

    def backward_enter(self, unit: int) -> None:
        """Mark: the gradient of a unit's output has arrived."""
        if self._recorder.recording and self._in_backward:
            self._runs(unit, self._recorder.now_s())

    def _runs(self, unit: int, now_s: float) -> None:
        """The unit's backward is known to run."""
        if self._owner is None:
            # Rule 4: the stretch since the last scatter-accumulate was this unit's already.
            self._keep_pieces(unit)
        elif self._owner != unit:
            self._interrupt(now_s)
            self._keep_pieces(self._owner)
            self._since_s = now_s
        self._owner, self._known = unit, True

    def interval(self, name: SpanName, unit: int, start_s: float, end_s: float) -> None:
        """Mark: something that is not compute, from `start_s` to `end_s`; told by the recorder."""
        if self._since_s is None:
            return
        if self._in_backward:
            self._interrupt(start_s)
            if name == "scatter_accumulate":
                owner = self._owner if self._known and self._owner is not None else unit
                self._keep_pieces(owner)
                self._latest_reduced = unit
                if owner == unit:
                    self._owner, self._known = None, False
            elif name != "wait" and self._owner is not None:
                self._keep_pieces(self._owner)
        elif self._entered:
            self._keep("forward", self._entered[-1], start_s)
        self._since_s = end_s

    def begin_microbatch(self) -> None:
        """Told by the recorder."""
        self._forget()

    def end_microbatch(self) -> None:
        """Told by the recorder: backward is over."""
        owner = self._owner if self._known else self._latest_reduced
        if self._in_backward and owner is not None:
            self._interrupt(self._recorder.now_s())
            self._keep_pieces(owner)
        self._forget()

    def _keep(self, name: SpanName, unit: int, end_s: float) -> None:
        if self._since_s is not None and end_s > self._since_s:
            self._recorder.keep(name, unit, self._since_s, end_s)

    def _interrupt(self, end_s: float) -> None:
        if self._since_s is not None and end_s > self._since_s:
            self._pieces.append((self._since_s, end_s))

    def _keep_pieces(self, unit: int) -> None:
        for start_s, end_s in self._pieces:
            self._recorder.keep("backward", unit, start_s, end_s)
        self._pieces.clear()


def _first_differentiable(output: object) -> Any:  # noqa: ANN401 - a tensor, without importing torch for it
    """The first tensor with a gradient in a module's output; None if there is none, or it is hidden in other types."""
    if getattr(output, "requires_grad", False) and hasattr(output, "register_hook"):
        return output
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((found for part in parts if (found := _first_differentiable(part)) is not None), None)
