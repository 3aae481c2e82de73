"""What every handle around a model does: count microbatches, surround them, and pass errors on to the other ranks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from odcrt.errors import PeerFailed
from odcrt.fsdp.collectives import Exchange
from odcrt.fsdp.fsdp2 import Unit, restore_default_communication
from odcrt.fsdp.recording import HandleRecording
from odcrt.tracing.spans import now_s
from odcrt.transports.phases import Phase
from odcsim.errors import InputError

__all__ = ["Handle", "require_no_handle"]

# Models under a handle that is not closed: a second one would take the first one's place unnoticed.
_taken: WeakSet[nn.Module] = WeakSet()


def require_no_handle(model: nn.Module) -> None:
    """Refuse a model that has a handle already.

    Raises:
        InputError: it has.
    """
    if model in _taken:
        raise InputError("the model is under another handle already; close() that one first")


class Handle(ABC):
    """Communication installed on a model. `minibatch()` surrounds the microbatches of one optimizer step."""

    def __init__(
        self,
        model: nn.Module,
        units: list[Unit],
        exchange: Exchange | None,
        recording: HandleRecording | None = None,
    ) -> None:
        self.model = model
        self.units = units
        self._exchange = exchange  # None for a world of one rank, which has nobody to talk to
        self._hooks: list[RemovableHandle] = []
        self._is_closed = False
        self._recording = recording
        _taken.add(model)
        if exchange is not None:
            # Before FSDP2's own hook, which gathers the root.
            self._hooks.append(model.register_forward_pre_hook(self._microbatch_starts, prepend=True, with_kwargs=True))

    @contextmanager
    def minibatch(self) -> Iterator[None]:
        """All microbatches of one optimizer step, as many as this rank has; or an evaluation, under `no_grad`.

        Raises:
            RunError: another rank is lost, late, or has failed; the text names it and what it did last.
        """
        exchange = self._exchange
        if exchange is None:
            yield
            return
        if exchange.is_open:
            raise RuntimeError("minibatch() inside minibatch(); end the first one before")
        if self._is_closed:
            raise RuntimeError("minibatch() after close()")
        exchange.sequence += 1
        exchange.microbatch = exchange.tokens = -1
        try:
            if self._recording is not None:
                self._recording.begin_minibatch(exchange.minibatch)
            self._begin(exchange)
            exchange.is_open = True
            yield
            if self._recording is not None:
                self._recording.end_microbatches()
            self._end(exchange)
            exchange.transport.note(Phase.BETWEEN_MINIBATCHES, minibatch=exchange.minibatch)
        except BaseException as error:
            # What another rank has reported is known to all; reported again it would hide who was first.
            if not isinstance(error, PeerFailed):
                exchange.transport.fail(f"{type(error).__name__}: {error}")
            error.add_note(f"on rank {exchange.transport.rank}: {exchange.last_told}")
            raise
        finally:
            exchange.is_open = False

    @abstractmethod
    def _begin(self, exchange: Exchange) -> None:
        """What comes before the first microbatch."""

    @abstractmethod
    def _end(self, exchange: Exchange) -> None:
        """What comes after the last microbatch."""

    def check_peers(self, *, within_s: float = 0.0) -> None:
        """Raise if another rank is lost or has failed.

        A collective of torch's own fails with a text that names nobody when a rank is gone; asked then, this tells who.

        Args:
            within_s: how long to look: a process takes a moment to end.

        Raises:
            RunError: names the rank and what it did last.
        """
        if self._exchange is None or self._is_closed:
            return
        end_s = now_s() + within_s
        while True:
            self._exchange.transport.check_lives()
            if now_s() >= end_s:
                return
            time.sleep(0.02)

    def close(self) -> None:
        """Give the model back to FSDP2's own communication, and let go of shared memory. Safe to call twice."""
        if self._is_closed:
            return
        if self._exchange is not None and self._exchange.is_open:
            raise RuntimeError("close() inside minibatch(); end that one before")
        self._is_closed = True
        _taken.discard(self.model)
        for hook in self._hooks:
            hook.remove()
        if self._recording is not None:
            self._recording.close()
        if self._exchange is not None:
            for unit in self.units:
                restore_default_communication(unit)
            self._exchange.transport.note(Phase.CLOSED)
            self._exchange.transport.close()

    @property
    def counters(self) -> dict[str, int]:
        """Transfers and barriers of this rank so far."""
        if self._exchange is None:
            return {"transfers": 0, "barriers": 0}
        return {"transfers": self._exchange.transfers, "barriers": self._exchange.barriers}

    def _microbatch_starts(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if not exchange.is_open:
            self._runs_outside()
            return
        exchange.microbatch += 1
        exchange.tokens = _count_tokens((*args, *kwargs.values()))
        if self._recording is not None:
            self._recording.begin_microbatch(exchange.microbatch, exchange.tokens)

    @abstractmethod
    def _runs_outside(self) -> None:
        """The model is about to be run outside of a minibatch; FSDP2 has done nothing about it yet."""


def _count_tokens(inputs: tuple[Any, ...]) -> int:
    """Tokens of a microbatch: the largest integer tensor among the model's inputs or their fields; -1 if none."""
    found = -1
    for value in inputs:
        parts = [getattr(value, part.name) for part in fields(value)] if is_dataclass(value) else [value]
        for part in parts:
            if isinstance(part, torch.Tensor) and not part.is_floating_point():
                found = max(found, part.numel())
    return found
