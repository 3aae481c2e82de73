"""The tracker on FSDP2 itself: hooks, order of transfers and recomputation as torch has them.

One process plays a rank of two: torch's fake process group lets FSDP2 believe in the other. Compute and transfers take
the time that they say on a clock of the test's own, so that every second can be accounted for.
"""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from odcrt.fsdp.fsdp2 import AllGather, ReduceScatter  # noqa: E402
from odcrt.tracing.compute_tracker import ComputeTracker  # noqa: E402
from odcrt.tracing.recorder import Recorder  # noqa: E402

WORLD = 2
TRANSFER_S = 100.0


class Clock:
    def __init__(self):
        self.at_s = 0.0

    def __call__(self):
        return self.at_s


class TakesTime(torch.autograd.Function):
    """Identity that takes `forward_s`, and twice that backward."""

    @staticmethod
    def forward(ctx, values, clock, forward_s):
        ctx.clock, ctx.backward_s = clock, 2 * forward_s
        clock.at_s += forward_s
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.at_s += ctx.backward_s
        return gradient.clone(), None, None


class Block(nn.Module):
    """Takes 10 u in unit u. What is saved for backward comes last: recomputation stops there, by an exception."""

    def __init__(self, clock, unit, *, returns):
        super().__init__()
        self.clock, self.unit, self.returns = clock, unit, returns
        self.linear = nn.Linear(4, 4)

    def forward(self, values):
        values = torch.tanh(self.linear(TakesTime.apply(values, self.clock, 10.0 * self.unit)))
        return self.returns(values)


class Checkpointed(nn.Module):
    """A block whose inside is recomputed; FSDP2's unit is this module."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, values):
        return checkpoint(self.block, values, use_reentrant=False)


class CheckpointedAround(Block):
    """A block that is recomputed from the outside, its hooks included, as the layers of transformers are."""

    def __call__(self, values):
        return checkpoint(super().__call__, values, use_reentrant=False)


class Model(nn.Module):
    """A decoder's outline: embedding takes 1, head 5."""

    def __init__(self, clock, blocks):
        super().__init__()
        self.clock = clock
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(4, 7)

    def forward(self, tokens):
        values = TakesTime.apply(self.embedding(tokens), self.clock, 1.0)
        for block in self.blocks:
            values = block(values)
            while not isinstance(values, torch.Tensor):
                values = values["values"] if isinstance(values, dict) else values[-1]
        return TakesTime.apply(self.head(values), self.clock, 5.0)


class Gather(AllGather):
    def __init__(self, clock, recorder, unit, *, copies_s=0.0):
        self.clock, self.recorder, self.unit, self.copies_s = clock, recorder, unit, copies_s

    def allocate(self, size, *, dtype, device):
        self.clock.at_s += self.copies_s  # stands for all that FSDP2 does before a transfer
        return torch.zeros(size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, **_rest):
        start_s = self.clock.at_s
        self.clock.at_s += TRANSFER_S
        output_tensor.copy_(input_tensor.repeat(WORLD))
        self.recorder.span("gather", self.unit, start_s, self.clock.at_s)


class Reduce(Gather, ReduceScatter):
    def __call__(self, **_transfer):
        start_s = self.clock.at_s
        self.clock.at_s += TRANSFER_S
        self.recorder.span("scatter_accumulate", self.unit, start_s, self.clock.at_s)


@pytest.fixture
def mesh():
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    yield init_device_mesh("cpu", (WORLD,))
    dist.destroy_process_group()


class Rank:
    def __init__(self, mesh, blocks, *, kind=Block, returns=lambda values: values, reshards=True, copies_s=0.0):
        self.clock = Clock()
        self.recorder = Recorder(None, rank=0, window=range(9), timer=self.clock)
        units = [
            Checkpointed(Block(self.clock, unit, returns=returns))
            if kind is Checkpointed
            else kind(self.clock, unit, returns=returns)
            for unit in range(1, blocks + 1)
        ]
        self.model = Model(self.clock, units)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshards)
        fully_shard(self.model, mesh=mesh)
        self.units = list(enumerate([self.model, *self.model.blocks]))
        for unit, module in self.units:
            module.set_custom_all_gather(Gather(self.clock, self.recorder, unit, copies_s=copies_s))
            module.set_custom_reduce_scatter(Reduce(self.clock, self.recorder, unit))
        self.tracker = ComputeTracker(self.recorder)
        self.tracker.attach(self.units)

    def microbatch(self, number=0):
        self.recorder.begin_microbatch(number, tokens=3, squared_tokens=9)
        self.model(torch.tensor([1, 2, 3])).sum().backward()
        self.recorder.end_microbatch()

    def seconds(self):
        totals = Counter()
        for span in self.recorder.spans():
            totals[span.name, span.unit] += span.duration_s
        return dict(totals)


def expected(blocks, *, recomputes=False, regathers=True):
    backward = 3 if recomputes else 2
    return {
        ("forward", 0): 6.0,
        ("backward", 0): 12.0,
        **{("forward", unit): 10.0 * unit for unit in range(1, blocks + 1)},
        **{("backward", unit): backward * 10.0 * unit for unit in range(1, blocks + 1)},
        ("gather", 0): TRANSFER_S,
        **{("gather", unit): (1 + regathers) * TRANSFER_S for unit in range(1, blocks + 1)},
        **{("scatter_accumulate", unit): TRANSFER_S for unit in range(blocks + 1)},
    }


@pytest.mark.parametrize("kind", [Block, Checkpointed, CheckpointedAround])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_every_second_of_a_microbatch_has_its_owner(mesh, blocks, kind):
    rank = Rank(mesh, blocks, kind=kind)
    rank.recorder.begin_minibatch(0)
    rank.microbatch()
    assert rank.seconds() == expected(blocks, recomputes=kind is not Block)


@pytest.mark.parametrize(
    "returns",
    [
        lambda values: (None, values),
        lambda values: {"aside": 1, "values": values},
        lambda values: [torch.zeros(1), ({"values": values},)],
    ],
)
def test_a_block_may_return_more_than_a_tensor(mesh, returns):
    # With a single block, only the arrival of its gradient tells where the head's backward ends.
    rank = Rank(mesh, 1, returns=returns)
    rank.recorder.begin_minibatch(0)
    rank.microbatch()
    assert rank.seconds() == expected(1)


def test_copies_before_a_gather_belong_to_the_unit_that_needs_it(mesh):
    rank = Rank(mesh, 4, copies_s=0.25)
    rank.recorder.begin_minibatch(0)
    rank.microbatch()
    wanted = expected(4)
    for unit in range(5):
        wanted["forward", unit] += 0.25
    # FSDP2 gathers a unit ahead in backward: 4 and 3 while the head is running, 2 and 1 as their followers begin.
    wanted["backward", 0] += 0.5
    wanted["backward", 3] += 0.25
    wanted["backward", 2] += 0.25
    assert rank.seconds() == wanted


def test_units_that_stay_gathered_after_forward(mesh):
    rank = Rank(mesh, 3, reshards=False)
    rank.recorder.begin_minibatch(0)
    rank.microbatch()
    assert rank.seconds() == expected(3, regathers=False)


def test_microbatches_and_minibatches_are_kept_apart(mesh):
    rank = Rank(mesh, 2)
    for minibatch in range(2):
        rank.recorder.begin_minibatch(minibatch)
        for microbatch in range(2):
            rank.microbatch(microbatch)
        rank.recorder.end_minibatch()
    assert rank.seconds() == {key: 4 * time_s for key, time_s in expected(2).items()}
    blocks = [span for span in rank.recorder.spans() if (span.name, span.unit) == ("backward", 2)]
    assert [(span.minibatch, span.microbatch) for span in blocks] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_evaluation_leaves_forward_alone(mesh):
    rank = Rank(mesh, 2)
    rank.recorder.begin_minibatch(0)
    with torch.no_grad():
        rank.model(torch.tensor([1, 2]))
    rank.clock.at_s += 50.0
    rank.recorder.end_minibatch()
    assert {name for name, _ in rank.seconds()} == {"forward", "gather"}


def test_a_frozen_block_keeps_its_backward_though_it_reduces_nothing(mesh):
    rank = Rank(mesh, 3)
    for parameter in rank.model.blocks[1].parameters():
        parameter.requires_grad = False
    rank.recorder.begin_minibatch(0)
    rank.microbatch()
    wanted = expected(3)
    del wanted["scatter_accumulate", 2]
    assert rank.seconds() == wanted


def test_a_failing_forward_is_still_told_to_the_tracker(mesh):
    rank = Rank(mesh, 1)
    rank.recorder.begin_minibatch(0)
    with pytest.raises((IndexError, RuntimeError)):
        rank.model(torch.tensor([99]))
    assert rank.tracker._entered == []


def test_detached_hooks_are_gone_and_gradients_were_never_touched(mesh):
    rank = Rank(mesh, 2)
    plain = Rank(mesh, 2)
    plain.model.load_state_dict(rank.model.state_dict())
    plain.tracker.detach()
    assert plain.recorder.observer is None
    for each in (rank, plain):
        each.recorder.begin_minibatch(0)
        each.microbatch()
    assert {name for name, _ in plain.seconds()} == {"gather", "scatter_accumulate"}
    for watched, unwatched in zip(rank.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(watched.grad.to_local(), unwatched.grad.to_local())
