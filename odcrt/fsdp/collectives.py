"""The communication objects that FSDP2 calls, over a transport: one pair for on-demand synchronization, one per unit.

FSDP2 hands an all-gather a buffer whose own slice is filled already, and a reduce-scatter the unsharded gradients of
the parameters that have one. It tells which these are by calling their post-accumulate-grad hooks, right after the
reduce-scatter has returned; so on-demand scatter-accumulate waits for those, and moves the data then.

Legend: D ranks; a unit's shard has n elements, its gathered parameters and unsharded gradients D x n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from odcrt.errors import LayoutMismatch, OutsideMinibatch, StaleRead
from odcrt.fsdp.buffers import BufferPool
from odcrt.fsdp.fsdp2 import AllGather, ReduceScatter, Unit, scale_of_reduction
from odcrt.fsdp.layout import ShardLayout
from odcrt.tracing.spans import SpanSink, now_s
from odcrt.transports import Transport
from odcrt.transports.collective import CollectiveTransport
from odcrt.transports.phases import LastSeen, Phase

__all__ = [
    "Exchange",
    "MeetingAllGather",
    "MeetingReduceScatter",
    "OnDemandAllGather",
    "OnDemandReduceScatter",
    "Probe",
    "UnitShard",
]


@dataclass(frozen=True, eq=False)
class UnitShard:
    """A unit with its layout in shared memory.

    Attributes:
        unit: the FSDP unit.
        index: position among the units that communicate: of its sequence numbers and locks.
        published: layout of all its parameters; a gather moves it.
        reduced: layout of its trainable parameters; gradients accumulate in it.
        param_dtype: of what is gathered.
        reduce_dtype: of the unsharded gradients that FSDP2 hands over for reduction.
        first_flag: position of its first trainable parameter among those of all units.
    """

    unit: Unit
    index: int
    published: ShardLayout
    reduced: ShardLayout
    param_dtype: torch.dtype
    reduce_dtype: torch.dtype
    first_flag: int

    @property
    def published_region(self) -> str:
        """Region of the published copy."""
        return f"published/{self.index}"

    @property
    def gradient_region(self) -> str:
        """Region of the accumulator."""
        return f"gradient/{self.index}"

    @property
    def accumulated_dtype(self) -> torch.dtype:
        """In which gradients accumulate: FSDP2 adds up microbatches in the parameters' own type, after reduction."""
        own = (self.reduced.parameters or self.published.parameters)[0].dtype
        return torch.promote_types(self.reduce_dtype, own)


@dataclass
class Exchange:
    """What the communication objects of all units share.

    Attributes:
        transport: to the other ranks.
        recorder: of spans.
        pool: of buffers.
        sequence: of the current minibatch, from 1; published shards and open accumulators carry it.
        is_open: whether a minibatch is running.
        minibatch: number of the current minibatch, from 0.
        microbatch: of this rank's current microbatch, from 0; -1 before the first.
        tokens: of the current microbatch; -1 where not known.
        phase: what this rank has told last that it is about to do.
        unit: the unit that it does it with; -1 if none.
        reproducible: whether every rank adds to a slot of its own, summed up in order of ranks at the end.
        transfers: one-sided transfers so far.
        barriers: barriers so far.
    """

    transport: Transport
    recorder: SpanSink
    pool: BufferPool = field(default_factory=BufferPool)
    sequence: int = 0
    is_open: bool = False
    microbatch: int = -1
    tokens: int = -1
    phase: Phase = Phase.STARTING
    unit: int = -1
    reproducible: bool = False
    transfers: int = 0
    barriers: int = 0

    @property
    def minibatch(self) -> int:
        """Number of the current minibatch, from 0."""
        return self.sequence - 1

    @property
    def last_told(self) -> LastSeen:
        """What this rank has told last."""
        return LastSeen(self.phase, self.unit, self.minibatch, self.microbatch, self.tokens)

    def note(self, phase: Phase, unit: int = -1) -> None:
        """Tell the others, and look whether one of them has failed."""
        self.phase, self.unit = phase, unit
        self.transport.note(phase, unit=unit, minibatch=self.minibatch, microbatch=self.microbatch, tokens=self.tokens)
        self.transport.check_peers()

    def barrier(self, phase: Phase) -> None:
        """Meet all ranks; the time waited becomes a span."""
        self.note(phase)
        start_s = now_s()
        self.transport.barrier(phase)
        self.barriers += 1
        self.recorder.span("wait", -1, start_s, now_s(), 0)

    def peers(self) -> list[int]:
        """The other ranks, each rank starting with its neighbour, so that not all read from one at once."""
        rank, size = self.transport.rank, self.transport.world_size
        return [(rank + step) % size for step in range(1, size)]

    def require_open(self, shard: UnitShard) -> None:
        """Refuse a transfer outside of a minibatch, where nothing is published."""
        if not self.is_open:
            raise OutsideMinibatch(
                f"unit {shard.unit.name} was used outside of `with odc.minibatch():`, where no parameters are published"
            )

    def require_all_ranks(self, shard: UnitShard, group: dist.ProcessGroup) -> None:
        """Refuse a transfer among some of the ranks."""
        if group.size() != self.transport.world_size:
            raise LayoutMismatch(
                f"unit {shard.unit.name}: FSDP2 asks for a transfer among {group.size()} of "
                f"{self.transport.world_size} ranks; reshard_after_forward must be True or False, not a number of ranks"
            )

    def require_sequence(self, region: str, shard: UnitShard, *, owner: int) -> None:
        """Refuse memory that does not belong to this minibatch."""
        found = int(self.transport.view(region, owner=owner)[shard.index])
        if found != self.sequence:
            raise StaleRead(
                f"{region} of unit {shard.unit.name} on rank {owner} is of minibatch {found - 1}, not {self.minibatch}"
            )


class _Communication:
    """One unit's part in the exchange; its buffers come from the pool."""

    def __init__(self, exchange: Exchange, shard: UnitShard) -> None:
        self._exchange = exchange
        self._shard = shard

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer of the pool."""
        return self._exchange.pool.take(math.prod(int(extent) for extent in size), dtype=dtype, device=device)


class Probe(AllGather):
    """Stands in for an all-gather once, to see the shard that FSDP2 hands over. Moves nothing."""

    def __init__(self) -> None:
        self.shard: torch.Tensor | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer of zeros: parameters made of it are never computed with."""
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Keep a copy of this rank's shard."""
        self.shard = input_tensor.clone()


class OnDemandAllGather(_Communication, AllGather):
    """A gather: reads the other ranks' published shards, whenever this rank is ready."""

    def __init__(self, exchange: Exchange, shard: UnitShard) -> None:
        super().__init__(exchange, shard)
        self._verified = 0  # sequence of the minibatch in which the layout was last compared

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Fill `output_tensor` (D x n), of which FSDP2 has filled this rank's slice, `input_tensor` (n)."""
        exchange, shard = self._exchange, self._shard
        exchange.require_open(shard)
        exchange.require_all_ranks(shard, group)
        self._verify(input_tensor)
        exchange.note(Phase.GATHER, shard.unit.number)
        start_s = now_s()
        slices_Dn = output_tensor.view(exchange.transport.world_size, -1)
        for owner in exchange.peers():
            exchange.require_sequence("published_sequence", shard, owner=owner)
            exchange.transport.read(slices_Dn[owner], shard.published_region, owner=owner)
            # An owner that published anew meanwhile has overwritten what was being read.
            exchange.require_sequence("published_sequence", shard, owner=owner)
        exchange.transfers += 1
        moved_bytes = (exchange.transport.world_size - 1) * input_tensor.numel() * input_tensor.element_size()
        exchange.recorder.span("gather", shard.unit.number, start_s, now_s(), moved_bytes)
        exchange.note(Phase.COMPUTE, shard.unit.number)

    def _verify(self, handed_over: torch.Tensor) -> None:
        """Compare what FSDP2 hands over with what this rank published, the first time in a minibatch.

        That catches a layout understood wrongly, and parameters changed after they were published. Comparing costs a
        D-th of a gather; after the first minibatches one unit a minibatch is compared, in turns.
        """
        exchange, shard = self._exchange, self._shard
        if self._verified == exchange.sequence:
            return
        self._verified = exchange.sequence
        units = exchange.transport.view("published_sequence").numel()
        if exchange.sequence > 2 and exchange.sequence % units != shard.index:
            return
        published = exchange.transport.view(shard.published_region)
        if not same_bytes(handed_over, published):
            raise LayoutMismatch(
                f"unit {shard.unit.name}: FSDP2 gathers {handed_over.numel()} elements of {handed_over.dtype} that are "
                f"not the {published.numel()} of {published.dtype} published at the start of the minibatch; parameters "
                "must not change inside minibatch()"
            )


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two 1-D tensors hold the same bits; a NaN equals itself."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


@dataclass
class _Reduction:
    """A reduce-scatter that FSDP2 has asked for, until it is known which parameters it holds."""

    gradients: torch.Tensor  # D x n of the parameters in it
    answer: torch.Tensor  # n: what FSDP2 takes for the reduced shard
    scale: float
    parameters: list[nn.Parameter] = field(default_factory=list)
    numel: int = 0


class OnDemandReduceScatter(_Communication, ReduceScatter):
    """A scatter-accumulate: adds this rank's gradients to their owners' accumulators, whenever it is ready.

    FSDP2 is answered with ones. It divides them by what it would divide the reduced gradients by, which tells the
    factor, and makes them the parameters' gradients, which are taken away again: the real ones are there after settle.
    """

    def __init__(self, exchange: Exchange, shard: UnitShard) -> None:
        super().__init__(exchange, shard)
        self._pending: _Reduction | None = None
        self._answer_is_next = False
        self._place_of = {id(parameter): place for place, parameter in enumerate(shard.reduced.parameters)}

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer of the pool: first for the unsharded gradients, then for the answer.

        The answer is in fp32 whatever FSDP2 reduces in: what a factor of a third leaves of a one is exact enough then.
        """
        self._answer_is_next = not self._answer_is_next
        return super().allocate(size, dtype=dtype if self._answer_is_next else torch.float32, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Note the gradients `input_tensor` (D x n), and answer with ones `output_tensor` (n)."""
        self._exchange.require_open(self._shard)
        self.require_complete()
        output_tensor.fill_(1.0)
        scale = scale_of_reduction(op, self._exchange.transport.world_size)
        self._pending = _Reduction(input_tensor, output_tensor, scale)

    def require_complete(self) -> None:
        """Refuse to go on where the gradients of the last reduction have not been told apart."""
        if self._pending is not None:
            raise LayoutMismatch(
                f"unit {self._shard.unit.name}: FSDP2 has reduced gradients of parameters that did not require any "
                "when on-demand communication was installed; close() it before requires_grad changes, and install it "
                "anew"
            )

    def parameter_reduced(self, parameter: nn.Parameter) -> None:
        """Hook: FSDP2 has made the next part of the answer the gradient of `parameter`."""
        pending, layout = self._pending, self._shard.reduced
        if pending is None:
            return
        parameter.grad = None
        pending.parameters.append(parameter)
        pending.numel += layout.sizes[self._place_of[id(parameter)]]
        if pending.numel == pending.answer.numel():
            self._pending = None
            self._scatter(pending)

    def _scatter(self, reduction: _Reduction) -> None:
        exchange, shard = self._exchange, self._shard
        transport, layout = exchange.transport, shard.reduced
        exchange.note(Phase.SCATTER_ACCUMULATE, shard.unit.number)
        start_s = now_s()
        scale = reduction.scale * float(reduction.answer[0])
        slices_Dn = reduction.gradients.view(transport.world_size, -1)
        base = transport.rank * layout.numel if exchange.reproducible else 0
        places = [self._place_of[id(parameter)] for parameter in reduction.parameters]
        is_whole = places == list(range(len(layout.parameters)))
        for owner in [*exchange.peers(), transport.rank]:
            exchange.require_sequence("open_sequence", shard, owner=owner)
            used = transport.view("used", owner=owner)
            if is_whole:
                transport.accumulate(slices_Dn[owner], shard.gradient_region, owner=owner, offset=base, scale=scale)
                used[shard.first_flag : shard.first_flag + len(layout.parameters)] = 1
                continue
            first = 0
            for place in places:
                values = slices_Dn[owner, first : first + layout.sizes[place]]
                transport.accumulate(
                    values, shard.gradient_region, owner=owner, offset=base + layout.offsets[place], scale=scale
                )
                used[shard.first_flag + place] = 1
                first += layout.sizes[place]
        exchange.transfers += 1
        moved_bytes = (transport.world_size - 1) * slices_Dn.shape[1] * slices_Dn.element_size()
        exchange.recorder.span("scatter_accumulate", shard.unit.number, start_s, now_s(), moved_bytes)
        exchange.note(Phase.COMPUTE, shard.unit.number)


class MeetingAllGather(_Communication, AllGather):
    """FSDP's own all-gather over shared memory: all ranks meet, then each reads the others' shards."""

    def __init__(self, exchange: Exchange, shard: UnitShard, transport: CollectiveTransport) -> None:
        super().__init__(exchange, shard)
        self._transport = transport

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Fill `output_tensor` (D x n) from all ranks' `input_tensor` (n)."""
        exchange, transport, unit = self._exchange, self._transport, self._shard.unit
        exchange.require_all_ranks(self._shard, group)
        exchange.note(Phase.GATHER, unit.number)
        staged = transport.stage(input_tensor.numel(), dtype=input_tensor.dtype)
        staged.copy_(input_tensor)
        ready_s = now_s()
        transport.meet(Phase.GATHER, unit.number)
        start_s = now_s()
        slices_Dn = output_tensor.view(transport.world_size, -1)
        for owner in exchange.peers():
            slices_Dn[owner].copy_(transport.staged(input_tensor.numel(), dtype=input_tensor.dtype, owner=owner))
        exchange.transfers += 1
        exchange.barriers += 1
        moved_bytes = (transport.world_size - 1) * input_tensor.numel() * input_tensor.element_size()
        exchange.recorder.span("wait", unit.number, ready_s, start_s, 0)
        exchange.recorder.span("gather", unit.number, start_s, now_s(), moved_bytes)
        exchange.note(Phase.COMPUTE, unit.number)


class MeetingReduceScatter(_Communication, ReduceScatter):
    """FSDP's own reduce-scatter over shared memory: all ranks meet, then each sums up its slices of all gradients."""

    def __init__(self, exchange: Exchange, shard: UnitShard, transport: CollectiveTransport) -> None:
        super().__init__(exchange, shard)
        self._transport = transport
        self._output_is_next = False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer of the pool for the unsharded gradients; then fresh memory, which becomes the reduced ones."""
        self._output_is_next = not self._output_is_next
        if self._output_is_next:
            return super().allocate(size, dtype=dtype, device=device)
        return torch.empty(math.prod(int(extent) for extent in size), dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Fill `output_tensor` (n) with the sum over ranks of this rank's slice of `input_tensor` (D x n)."""
        exchange, transport, unit = self._exchange, self._transport, self._shard.unit
        exchange.note(Phase.SCATTER_ACCUMULATE, unit.number)
        numel, dtype = output_tensor.numel(), input_tensor.dtype
        staged = transport.stage(input_tensor.numel(), dtype=dtype)
        staged.copy_(input_tensor)
        ready_s = now_s()
        transport.meet(Phase.SCATTER_ACCUMULATE, unit.number)
        start_s = now_s()
        first = transport.rank * numel
        scale = scale_of_reduction(op, transport.world_size)
        torch.mul(input_tensor[first : first + numel], scale, out=output_tensor)
        for owner in exchange.peers():
            theirs = transport.staged(input_tensor.numel(), dtype=dtype, owner=owner)
            output_tensor.add_(theirs[first : first + numel], alpha=scale)
        exchange.transfers += 1
        exchange.barriers += 1
        exchange.recorder.span("wait", unit.number, ready_s, start_s, 0)
        moved_bytes = (transport.world_size - 1) * numel * input_tensor.element_size()
        exchange.recorder.span("scatter_accumulate", unit.number, start_s, now_s(), moved_bytes)
        exchange.note(Phase.COMPUTE, unit.number)
