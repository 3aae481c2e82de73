"""FSDP's own synchronization, ranks meeting for every unit, over the same shared memory as on-demand communication.

What is compared with it differs in synchronization alone: the loop is the same, and so are the copies.

    fsdp = odcrt.per_unit(model)
    for minibatch in loader:
        with fsdp.minibatch(microbatches=len(minibatch)):   # must be equal on all ranks, or all refuse
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn

from odcrt.fsdp.collectives import Exchange, MeetingAllGather, MeetingReduceScatter
from odcrt.fsdp.fsdp2 import check_group, drop_gathered, list_units, require_host_memory
from odcrt.fsdp.handle import Handle, require_no_handle
from odcrt.fsdp.recording import recording_from_environment
from odcrt.fsdp.shards import describe_shards
from odcrt.tracing.spans import NO_SPANS, SpanSink
from odcrt.transports.collective import CollectiveTransport
from odcrt.transports.phases import Phase
from odcsim.errors import InputError

__all__ = ["PerUnit", "per_unit"]


def per_unit(
    model: nn.Module,
    *,
    deadline_s: float = 60.0,
    recorder: SpanSink | None = None,
    group: dist.ProcessGroup | None = None,
) -> PerUnit:
    """Put FSDP's synchronization over shared memory under an FSDP2 model. Collective.

    Args:
        model: `fully_shard`ed, on a 1-D mesh of all ranks of the group.
        deadline_s: longest wait for other ranks.
        recorder: of spans; left out, the environment decides whether spans are recorded (`odcrt launch --record`).
        group: the ranks, of one host; the default group if left out.
    """
    require_no_handle(model)
    units = list_units(model)
    check_group(units, group)
    require_host_memory(units)
    world_size = dist.get_world_size(group)
    if world_size == 1:
        return PerUnit(model, units, None)
    shards = describe_shards(units, world_size=world_size)
    staging_bytes = max(
        *(shard.published.numel * shard.param_dtype.itemsize for shard in shards),
        *(world_size * shard.reduced.numel * shard.reduce_dtype.itemsize for shard in shards),
    )
    transport = CollectiveTransport(group, staging_bytes=staging_bytes, deadline_s=deadline_s)
    transport.open()
    recording = (
        None if recorder else recording_from_environment(model, units, sync="fsdp", transport="collective", group=group)
    )
    exchange = Exchange(transport, recorder or recording or NO_SPANS)
    for shard in shards:
        shard.unit.module.set_custom_all_gather(MeetingAllGather(exchange, shard, transport))
        shard.unit.module.set_custom_reduce_scatter(MeetingReduceScatter(exchange, shard, transport))
    return PerUnit(model, units, exchange, recording)


class PerUnit(Handle):
    """FSDP's synchronization installed on a model; made by `per_unit`."""

    @contextmanager
    def minibatch(self, *, microbatches: int | None = None) -> Iterator[None]:
        """All microbatches of one optimizer step.

        Args:
            microbatches: of this rank; if given, all ranks compare theirs before the first forward.

        Raises:
            InputError: ranks have different numbers of microbatches; raised on all of them, with the counts.
            RunError: another rank is lost, late, or has failed.
        """
        if microbatches is not None and self._exchange is not None:
            self._compare(self._exchange, microbatches)
        with super().minibatch():
            yield

    def _compare(self, exchange: Exchange, microbatches: int) -> None:
        transport = exchange.transport
        transport.view("microbatches")[0] = microbatches
        exchange.note(Phase.PUBLISH)
        transport.barrier(Phase.PUBLISH)
        counts = [int(transport.view("microbatches", owner=rank)[0]) for rank in range(transport.world_size)]
        # The next comparison writes again: all must have read by then.
        transport.barrier(Phase.PUBLISH)
        if len(set(counts)) > 1:
            raise InputError(
                "microbatches per rank, which must be equal under fsdp (collectives would wait for ever); use "
                "on-demand communication, or a policy with equal counts",
                key=f"minibatch {exchange.sequence}",
                value=counts,
            )

    def _runs_outside(self) -> None:
        """Ranks that meet for every unit may do so at any time."""

    def _begin(self, exchange: Exchange) -> None:
        exchange.note(Phase.COMPUTE)

    def _end(self, exchange: Exchange) -> None:
        exchange.note(Phase.SETTLE)
        for unit in self.units:
            drop_gathered(unit)
