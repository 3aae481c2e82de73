"""Small models for the runtime's tests, their data, and the gradients that one process alone would compute.

Sizes are odd on purpose: rows that no number of ranks divides, parameters with fewer rows than there are ranks.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

VOCABULARY = 11


class Block(nn.Module):
    """A residual block; `rest` is used when asked for with `extra`, and `gain` has fewer rows than there are ranks."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)
        self.rest = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x, *, extra=False):
        y = x + self.gain * self.down(torch.tanh(self.up(x)))
        return y + self.rest(y) if extra else y


class Toy(nn.Module):
    """An embedding, blocks and a head, like a decoder.

    Args of forward:
        tokens: whole numbers below `VOCABULARY`.
        path: the blocks to run, in order; each once by default.
        extra: whether blocks use their extra part.
    """

    def __init__(self, *, blocks=2, width=5, hidden=7, tied=False, checkpointed=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList([Block(width, hidden) for _ in range(blocks)])
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def forward(self, tokens, *, path=None, extra=False):
        x = self.embedding(tokens)
        for number in range(len(self.blocks)) if path is None else path:
            block = self.blocks[number]
            x = checkpoint(block, x, extra=extra, use_reentrant=False) if self.checkpointed else block(x, extra=extra)
        return self.head(x)


class Pipe(nn.Module):
    """Blocks alone: as a root it has no parameters of its own."""

    def __init__(self, *, blocks=2, width=VOCABULARY, hidden=7):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, hidden) for _ in range(blocks)])

    def forward(self, tokens):
        x = nn.functional.one_hot(tokens, self.blocks[0].up.in_features).to(self.blocks[0].up.weight.dtype)
        for block in self.blocks:
            x = block(x)
        return x


def seeded(make, seed=0, **options):
    """A model with parameters drawn from a seed, the same on every rank."""
    torch.manual_seed(seed)
    return make(**options)


def mesh_of(ranks):
    """All ranks in one dimension."""
    return init_device_mesh("cpu", (ranks,))


def shard(model, *, mesh, policy=None, **options):
    """`fully_shard` the blocks and then the model."""
    policy = policy or MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, **options)
    return fully_shard(model, mesh=mesh, mp_policy=policy, **options)


def sharded(ranks, *, make=Toy, seed=0, policy=None, **options):
    """A new model on all ranks, sharded over them."""
    return shard(seeded(make, seed, **options), mesh=mesh_of(ranks), policy=policy)


def draw(generator, *, samples=2, length=3):
    """Tokens of one microbatch."""
    return torch.randint(0, VOCABULARY, (samples, length), generator=generator)


def loss_of(model, tokens, **options):
    """The loss of one microbatch: next-token-like, so that every parameter used has a gradient."""
    logits = model(tokens, **options).float()
    return (logits - 0.1 * tokens.unsqueeze(-1)).square().mean()


def local(tensor):
    """This rank's part of a sharded tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_of(whole, *, rank, ranks):
    """The rows of a tensor that a rank owns."""
    rows = -(-whole.shape[0] // ranks)
    return whole[rank * rows : (rank + 1) * rows]


def alone(model):
    """A copy of the model that is not sharded; to be made before sharding."""
    assert not isinstance(model, FSDPModule), "copy first"
    return copy.deepcopy(model)


def gradients_alone(model, microbatches, *, divide_by):
    """What all microbatches of all ranks together leave as gradients, by name; None where nothing was used.

    Args:
        model: not sharded.
        microbatches: (tokens, options of the model) of every rank, in any order.
        divide_by: FSDP2 takes the mean over ranks of the sums over their microbatches.
    """
    model.zero_grad()
    for tokens, options in microbatches:
        loss_of(model, tokens, **options).backward()
    return {name: None if p.grad is None else p.grad / divide_by for name, p in model.named_parameters()}


def compare_gradients(model, expected, *, rank, ranks, rtol=1e-5, atol=1e-6):
    """Assert that this rank's gradients are its parts of the expected ones."""
    for name, parameter in model.named_parameters():
        want, found = expected[name], parameter.grad
        if want is None:
            assert found is None, f"{name} has a gradient, but nobody used it"
            continue
        assert found is not None, f"{name} has no gradient"
        want = part_of(want, rank=rank, ranks=ranks)
        torch.testing.assert_close(
            local(found), want, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )
