"""FSDP2's own collectives, watched: what the other two ways of synchronization are compared with under `gloo`.

How long a collective takes includes the wait for the last rank: a library does not tell them apart. Comparing ranks
does (see `odcrt.workload.measure`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from odcrt.fsdp.fsdp2 import (
    DefaultAllGather,
    DefaultReduceScatter,
    Unit,
    list_units,
    restore_default_communication,
)
from odcrt.tracing.spans import SpanSink, now_s
from odcsim.engines.timeline import SpanName

__all__ = ["PlainFsdp2"]


class PlainFsdp2:
    """A model under FSDP2's own collectives, with the face of a handle.

    Args:
        model: `fully_shard`ed.
        recorder: told of every collective.
    """

    def __init__(self, model: nn.Module, *, recorder: SpanSink) -> None:
        self.units = list_units(model)
        self._watch = _Watch(recorder)
        for unit in self.units:
            unit.module.set_custom_all_gather(_WatchedAllGather(self._watch, unit))
            unit.module.set_custom_reduce_scatter(_WatchedReduceScatter(self._watch, unit))

    @contextmanager
    def minibatch(self) -> Iterator[None]:
        """All microbatches of one optimizer step."""
        yield

    @property
    def counters(self) -> dict[str, int]:
        """Transfers of this rank so far; each is a meeting too."""
        return {"transfers": self._watch.transfers, "barriers": self._watch.transfers}

    def check_peers(self, *, within_s: float = 0.0) -> None:
        """Nobody to ask: what ranks share here is torch's process group alone."""

    def close(self) -> None:
        """Stop watching."""
        for unit in self.units:
            restore_default_communication(unit)


class _Watch:
    def __init__(self, recorder: SpanSink) -> None:
        self._recorder = recorder
        self.transfers = 0

    def over(self, name: SpanName, unit: Unit, start_s: float, moved_bytes: int) -> None:
        self.transfers += 1
        self._recorder.span(name, unit.number, start_s, now_s(), moved_bytes)


class _WatchedAllGather(DefaultAllGather):
    def __init__(self, watch: _Watch, unit: Unit) -> None:
        self._watch = watch
        self._unit = unit

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: FBT001, FBT002 - as FSDP2 calls it
    ) -> dist.Work | None:
        # On the CPU, FSDP2 asks for no asynchronous collective: when the call returns, the data are there.
        start_s = now_s()
        work = super().__call__(output_tensor, input_tensor, group, async_op)
        self._watch.over("gather", self._unit, start_s, output_tensor.nbytes - input_tensor.nbytes)
        return work


class _WatchedReduceScatter(DefaultReduceScatter):
    def __init__(self, watch: _Watch, unit: Unit) -> None:
        self._watch = watch
        self._unit = unit

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,  # noqa: FBT001, FBT002 - as FSDP2 calls it
    ) -> dist.Work:
        start_s = now_s()
        work = super().__call__(output_tensor, input_tensor, group, op, async_op)
        self._watch.over("scatter_accumulate", self._unit, start_s, input_tensor.nbytes - output_tensor.nbytes)
        return work
