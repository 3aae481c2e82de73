"""On-demand communication around the user's own model, optimizer and loop.

    odc = odcrt.on_demand(model)              # after fully_shard, on all ranks
    for minibatch in loader:
        with odc.minibatch():                 # publish on enter, settle on exit
            for microbatch in minibatch:      # as many as this rank has
                loss(model(...)).backward()
        optimizer.step()
        optimizer.zero_grad()
    odc.close()

Inside `minibatch()` ranks do not wait for each other. Parameters are published once, in the type that FSDP2 gathers,
and must not change; gradients are there after it, the same that FSDP2 would have left. Both are sequence-numbered: what
was not published, or accumulated, for this minibatch is refused.

Ranks need not know beforehand which microbatches are theirs: `for position in odc.pull(len(microbatches))` hands each
of them to whichever rank is free first.

What a gradient is stays FSDP2's affair: the mean over ranks of the sums over their microbatches, unless
`set_gradient_divide_factor` says otherwise. A loss that is a mean over the whole minibatch, however it is split, is the
sum over a microbatch, divided by the minibatch's count of samples or tokens and times the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from odcrt.errors import OutsideMinibatch
from odcrt.fsdp.collectives import Exchange, OnDemandAllGather, OnDemandReduceScatter, UnitShard
from odcrt.fsdp.fsdp2 import (
    Unit,
    check_group,
    drop_gathered,
    groups_of,
    list_units,
    refuse_gradient_hooks,
    require_host_memory,
)
from odcrt.fsdp.handle import Handle, require_no_handle
from odcrt.fsdp.hidden_collectives import CollectiveWatch
from odcrt.fsdp.layout import local_part
from odcrt.fsdp.recording import HandleRecording, recording_from_environment
from odcrt.fsdp.shards import describe_shards
from odcrt.tracing.spans import NO_SPANS, SpanSink, now_s
from odcrt.transports import Region, Transport
from odcrt.transports.phases import Phase
from odcrt.transports.shm import ShmTransport
from odcsim.errors import InputError, RunError

__all__ = ["OnDemand", "on_demand"]


def on_demand(
    model: nn.Module,
    *,
    transport: Literal["shm"] | Transport = "shm",
    deadline_s: float = 60.0,
    reproducible: bool = False,
    recorder: SpanSink | None = None,
    group: dist.ProcessGroup | None = None,
) -> OnDemand:
    """Put on-demand communication under an FSDP2 model. Collective: all ranks of the group call it.

    Args:
        model: `fully_shard`ed, on a 1-D mesh of all ranks of the group.
        transport: `shm`, for ranks of one host, or one that has not allocated its memory yet.
        deadline_s: longest wait for other ranks; it must exceed the time that the busiest rank computes longer.
        reproducible: the same gradients to the last bit, whatever the timing. Takes an accumulator for every rank
            instead of one: as much memory as the unsharded gradients.
        recorder: of spans; left out, the environment decides whether spans are recorded (`odcrt launch --record`).
        group: the ranks; the default group if left out.

    Raises:
        InputError: a model or transport that cannot be served.
        RunError: ranks disagree about the model.
    """
    if isinstance(transport, str) and transport != "shm":
        raise InputError("unknown transport; allowed: shm (ranks of one host)", key="transport", value=transport)
    require_no_handle(model)
    units = list_units(model)
    check_group(units, group)
    refuse_gradient_hooks(units)
    if transport == "shm":
        require_host_memory(units)
    if dist.get_world_size(group) == 1:
        return OnDemand(model, units, [], None)
    chosen = ShmTransport(group, deadline_s=deadline_s) if isinstance(transport, str) else transport
    shards = describe_shards(units, world_size=chosen.world_size)
    recording = None if recorder else recording_from_environment(model, units, sync="odc", transport="shm", group=group)
    exchange = Exchange(chosen, recorder or recording or NO_SPANS, reproducible=reproducible)
    slots = chosen.world_size if reproducible else 1
    flags = sum(len(shard.reduced.parameters) for shard in shards)
    chosen.allocate(
        [
            Region("published_sequence", len(shards), torch.int64),
            Region("open_sequence", len(shards), torch.int64),
            Region("used", flags, torch.uint8),
            *(Region(shard.published_region, shard.published.numel, shard.param_dtype) for shard in shards),
            *(
                Region(
                    shard.gradient_region,
                    shard.reduced.numel * slots,
                    shard.accumulated_dtype,
                    locks=0 if reproducible else 1,
                )
                for shard in shards
            ),
        ]
    )
    return OnDemand(model, units, shards, exchange, recording)


class OnDemand(Handle):
    """On-demand communication installed on a model; made by `on_demand`."""

    def __init__(
        self,
        model: nn.Module,
        units: list[Unit],
        shards: list[UnitShard],
        exchange: Exchange | None,
        recording: HandleRecording | None = None,
    ) -> None:
        super().__init__(model, units, exchange, recording)
        self._shards = shards
        # Gradients that were there before a minibatch: settle adds to them, as FSDP2 would have.
        self._kept: dict[int, torch.Tensor] = {}
        self._collectives = CollectiveWatch(groups_of(units))
        # Of the queue that was pulled from last: its minibatch, and how many microbatches it had.
        self._queue_sequence = self._queue_count = 0
        self._reduce_scatters: list[OnDemandReduceScatter] = []
        if exchange is None:
            return
        for shard in shards:
            reduce_scatter = OnDemandReduceScatter(exchange, shard)
            shard.unit.module.set_custom_all_gather(OnDemandAllGather(exchange, shard))
            shard.unit.module.set_custom_reduce_scatter(reduce_scatter)
            self._reduce_scatters.append(reduce_scatter)
            self._hooks += [
                parameter.register_post_accumulate_grad_hook(reduce_scatter.parameter_reduced)  # type: ignore[no-untyped-call]
                for parameter in shard.reduced.parameters
            ]

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What this rank holds beyond FSDP2's own: published copy, accumulators, and buffers for transfers."""
        exchange = self._exchange
        if exchange is None or self._is_closed:
            return {"published": 0, "accumulators": 0, "buffers": 0}
        view = exchange.transport.view
        return {
            "published": sum(view(shard.published_region).nbytes for shard in self._shards),
            "accumulators": sum(view(shard.gradient_region).nbytes for shard in self._shards),
            "buffers": exchange.pool.held_bytes,
        }

    def pull(self, count: int) -> Iterator[int]:
        """Positions of a queue that all ranks share, each to one rank alone: what this rank is to run, one by one.

            for position in odc.pull(len(microbatches)):
                loss(model(microbatches[position])).backward()

        A position is taken when the loop asks for it, so a rank that is slow, or has had a long one, takes fewer. Put
        the longest first: what is left when the queue runs out is waited for at the end.

        Args:
            count: of the queue, the same on all ranks. Inside `minibatch()`, and once in it.

        Returns:
            Positions from 0, ascending, until the queue is used up. Those of all ranks together are all positions.

        Raises:
            InputError: `count` is no number of microbatches; or gradients are to be reproducible, which they cannot be
                where the timing decides who runs what.
            OutsideMinibatch: outside of `minibatch()`; also while iterating, once that has ended.
            RunError: while iterating: another rank is lost or has failed, or has a queue of another length. And at the
                end of the minibatch, if every rank has left its loop early: gradients would lack microbatches.
        """
        if type(count) is not int or count < 0:
            raise InputError("the length of a queue; allowed: a whole number from 0", key="count", value=count)
        exchange = self._exchange
        if exchange is None:
            return iter(range(count))
        if exchange.reproducible:
            raise InputError(
                "does not go with pull(): the timing decides who runs what; allowed: False",
                key="reproducible",
                value=True,
            )
        if not exchange.is_open:
            raise OutsideMinibatch("pull() outside of `with odc.minibatch():`; a queue is one minibatch's")
        if self._queue_sequence == exchange.sequence:
            raise RuntimeError("pull() twice in one minibatch(); put all of its microbatches into one queue")
        self._queue_sequence, self._queue_count = exchange.sequence, count
        return self._positions(exchange, exchange.sequence, count)

    @staticmethod
    def _positions(exchange: Exchange, sequence: int, count: int) -> Iterator[int]:
        while True:
            # Whoever iterates may have left the minibatch since.
            if (exchange.is_open, exchange.sequence) != (True, sequence):
                raise OutsideMinibatch(f"the queue of minibatch {sequence - 1} was pulled from after its end")
            exchange.note(Phase.PULL)
            position = exchange.transport.pull(sequence=sequence, count=count)
            exchange.note(Phase.COMPUTE)
            if position >= count:
                return
            yield position

    def _require_used_up(self, exchange: Exchange) -> None:
        """Refuse to end a minibatch whose queue nobody has pulled to its end; called once all ranks are done."""
        if self._queue_sequence != exchange.sequence:
            return
        pulled = exchange.transport.pulled(sequence=exchange.sequence)
        if pulled < self._queue_count:
            raise RunError(
                f"{pulled} of {self._queue_count} microbatches of the queue were pulled: every rank has left its loop "
                "over pull() before the end, so gradients lack the others"
            )

    @torch.no_grad()
    def _begin(self, exchange: Exchange) -> None:
        exchange.note(Phase.PUBLISH)
        start_s = now_s()
        published = exchange.transport.view("published_sequence")
        accepting = exchange.transport.view("open_sequence")
        moved_bytes = 0
        for shard in self._shards:
            memory = exchange.transport.view(shard.published_region)
            published[shard.index] = -exchange.sequence
            shard.published.write(memory)
            published[shard.index] = exchange.sequence
            accepting[shard.index] = exchange.sequence
            moved_bytes += memory.nbytes
            for parameter in shard.reduced.parameters:
                if parameter.grad is not None:
                    self._kept[id(parameter)] = parameter.grad
                    parameter.grad = None
        exchange.recorder.span("publish", -1, start_s, now_s(), moved_bytes)
        exchange.barrier(Phase.PUBLISH)
        exchange.note(Phase.COMPUTE)
        self._collectives.begin()

    @torch.no_grad()
    def _end(self, exchange: Exchange) -> None:
        for reduce_scatter in self._reduce_scatters:
            reduce_scatter.require_complete()
        self._collectives.end(exchange.minibatch)
        exchange.barrier(Phase.SETTLE)
        self._require_used_up(exchange)
        start_s = now_s()
        used = exchange.transport.view("used")
        for shard in self._shards:
            # What is gathered now would be stale the next time.
            drop_gathered(shard.unit)
            total = self._total(exchange, shard)
            for place, parameter in enumerate(shard.reduced.parameters):
                kept = self._kept.pop(id(parameter), None)
                if used[shard.first_flag + place]:
                    first = shard.reduced.offsets[place]
                    parameter.grad = _gradient(parameter, total[first:], kept)
                else:
                    parameter.grad = kept
            exchange.transport.view(shard.gradient_region).zero_()
        used.zero_()
        exchange.recorder.span("settle", -1, start_s, now_s(), 0)

    def _runs_outside(self) -> None:
        raise OutsideMinibatch(
            "the model was run outside of `with odc.minibatch():`, where no parameters are published; evaluation needs "
            "it as well, and close() ends on-demand communication"
        )

    def _total(self, exchange: Exchange, shard: UnitShard) -> torch.Tensor:
        """The accumulated gradients of a shard; over slots, in the order of ranks, if every rank had its own."""
        memory = exchange.transport.view(shard.gradient_region)
        if not exchange.reproducible:
            return memory
        slots_Dn = memory.view(exchange.transport.world_size, -1)
        total = slots_Dn[0].clone()
        for slot in slots_Dn[1:]:
            total += slot
        return total


def _gradient(parameter: nn.Parameter, total: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """The gradient of a sharded parameter, from where its chunk begins in the accumulator."""
    assert isinstance(parameter, DTensor)
    local = local_part(parameter)
    gradient = total[: local.numel()].view(local.shape).to(parameter.dtype, copy=True)
    if kept is not None:
        assert isinstance(kept, DTensor)
        gradient += kept.to_local()
    return DTensor.from_local(
        gradient,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
