"""On-demand communication against FSDP2's own on gloo: the same losses, gradients and weights, step by step.

All models start from one seed and see the same data, as many microbatches on every rank; each is trained by an
optimizer of its own, so a difference in any step would add up. Sizes are odd, see `toy_models`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402
from toy_models import Pipe, Toy, draw, local, loss_of, mesh_of, seeded, shard  # noqa: E402

import odcrt  # noqa: E402

pytestmark = pytest.mark.timeout(60)

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
BF16_ALL = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
FP16 = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)


def units_of(model):
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def shard_groups(model, *, mesh, policy):
    """The head and the last block as one unit, as FSDP2 takes a list of modules; and tied weights inside one unit."""
    fully_shard(model.blocks[0], mesh=mesh, mp_policy=policy)
    fully_shard([model.head, model.blocks[1]], mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def shard_tied(model, *, mesh, policy):
    """Embedding and head share their weight, and are one unit."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard([model.embedding, model.head], mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def shard_nested(model, *, mesh, policy):
    """A unit inside a unit inside the root; torch warns of what a linear layer returns, which nobody changes here."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .FSDPLinear. returned a view tensor")
    fully_shard(model.blocks[0].up, mesh=mesh, mp_policy=policy)
    return shard(model, mesh=mesh, policy=policy)


def shard_kept(model, *, mesh, policy):
    """Blocks stay gathered after forward."""
    return shard(model, mesh=mesh, policy=policy, reshard_after_forward=False)


def shard_root_alone(model, *, mesh, policy):
    """One unit: the root."""
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def frozen_toy(**options):
    """Some parameters of a unit frozen, all of another."""
    model = Toy(**options)
    model.embedding.weight.requires_grad_(requires_grad=False)
    model.blocks[0].down.weight.requires_grad_(requires_grad=False)
    model.blocks[0].gain.requires_grad_(requires_grad=False)
    model.blocks[1].requires_grad_(requires_grad=False)
    return model


def adapted_toy():
    """Adapters in fp32 over frozen weights in bfloat16, in one unit."""
    model = frozen_toy()
    model.blocks[0].down.to(torch.bfloat16)
    model.blocks[0].gain.data = model.blocks[0].gain.data.to(torch.bfloat16)
    return model


def divide_by_five(model):
    for unit in units_of(model):
        unit.set_gradient_divide_factor(5.0)


def sum_and_divide_by_five(model):
    divide_by_five(model)
    force_sums(model)


def force_sums(model):
    for unit in units_of(model):
        unit.set_force_sum_reduction_for_comms(enable=True)


def prefetch(model):
    """Explicit prefetching, forward and backward."""
    model.set_modules_to_forward_prefetch([model.blocks[0]])
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0]])


@dataclass(frozen=True)
class Case:
    """One setting that FSDP2 offers.

    Attributes:
        make: of the model.
        shard: how it becomes units.
        policy: mixed precision.
        prepare: after sharding, on both models.
        prepare_theirs: on FSDP2's own instead, where gloo cannot do what others can.
        options: of the model's forward.
        steps: of the optimizer.
        clip: gradient clipping to this norm.
        tolerance: of gradients against the largest of a parameter; of weights, absolute.
        keep: add the gradients of two minibatches before a step.
        ranks: how many there are; three divide none of the sizes.
        handles: what is compared with FSDP2's own.
    """

    make: Callable[..., nn.Module] = Toy
    shard: Callable[..., nn.Module] = shard
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    prepare: Callable[[nn.Module], None] = lambda _: None
    prepare_theirs: Callable[[nn.Module], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 3
    clip: float | None = None
    tolerance: float = 1e-5
    keep: bool = False
    ranks: tuple[int, ...] = (3,)
    handles: tuple[str, ...] = ("on demand",)


def checkpointed_toy():
    return Toy(checkpointed=True)


def tied_toy():
    return Toy(tied=True)


def bf16_toy():
    """Parameters that are bfloat16 throughout: FSDP2 keeps gradients in it as well."""
    return Toy().to(torch.bfloat16)


# What depends on the number of ranks is how rows are divided, and what gradients are divided by.
ALL_RANKS = (2, 3, 4)
HANDLES = ("on demand", "reproducible", "per unit")

CASES = {
    "fp32": Case(ranks=ALL_RANKS),
    "fp32, long": Case(steps=20),
    "bf16": Case(policy=BF16, tolerance=2e-2, handles=HANDLES),
    "clipped": Case(clip=0.05, handles=HANDLES),
    "checkpointed": Case(make=checkpointed_toy, handles=HANDLES),
    "clipped and checkpointed bf16": Case(
        make=checkpointed_toy, policy=BF16, clip=0.05, tolerance=2e-2, ranks=ALL_RANKS
    ),
    "clipped and checkpointed bf16, long": Case(
        steps=20, make=checkpointed_toy, policy=BF16, clip=0.05, tolerance=2e-2, ranks=(2,)
    ),
    "reduced in bf16": Case(policy=BF16_ALL, tolerance=4e-2, ranks=ALL_RANKS),
    "reduced in fp16": Case(policy=FP16, tolerance=1e-2, handles=HANDLES),
    "all bf16": Case(make=bf16_toy, tolerance=4e-2),
    "all parts used": Case(options={"extra": True}),
    "frozen": Case(make=frozen_toy, handles=HANDLES),
    "adapters over frozen bf16": Case(make=adapted_toy, policy=BF16_ALL, tolerance=4e-2),
    "root without parameters": Case(make=Pipe),
    "root alone": Case(shard=shard_root_alone),
    "tied in a group": Case(make=tied_toy, shard=shard_tied, handles=HANDLES),
    "tied in the root": Case(make=tied_toy),
    "grouped modules": Case(shard=shard_groups, handles=HANDLES),
    "nested": Case(shard=shard_nested),
    "kept after forward": Case(shard=shard_kept),
    "part of a group": Case(shard=shard_groups, options={"path": [0]}),
    "prefetched": Case(prepare=prefetch),
    "divided by five": Case(prepare=divide_by_five, prepare_theirs=sum_and_divide_by_five, ranks=ALL_RANKS),
    "summed": Case(prepare=force_sums, ranks=(2, 3)),
    "summed, divided by five": Case(prepare=sum_and_divide_by_five, handles=HANDLES),
    "summed, divided by five, bf16": Case(prepare=sum_and_divide_by_five, policy=BF16_ALL, tolerance=4e-2),
    "divided by five, fp16": Case(prepare=divide_by_five, policy=FP16, tolerance=1e-2),
    "added over minibatches": Case(keep=True, steps=4, handles=HANDLES),
}


def handle_of(model, name):
    if name == "per unit":
        return odcrt.per_unit(model, deadline_s=20)
    return odcrt.on_demand(model, deadline_s=20, reproducible=name == "reproducible")


def train_alike(name):
    """Train the model by FSDP2 itself and by each handle, and compare after every minibatch; weights at the end."""
    case, ranks = CASES[name], dist.get_world_size()
    theirs, *ours = (
        case.shard(seeded(case.make), mesh=mesh_of(ranks), policy=case.policy) for _ in (None, *case.handles)
    )
    (case.prepare_theirs or case.prepare)(theirs)
    for model in ours:
        case.prepare(model)
    handled = [(handle, model, handle_of(model, handle)) for handle, model in zip(case.handles, ours, strict=True)]
    optimizers = [
        torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2) for model in (theirs, *ours)
    ]
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(case.steps):
        data = [draw(generator) for _ in range(2)]
        losses = [_loss(theirs, tokens, case) for tokens in data]
        for handle, model, odc in handled:
            where = f"{handle}, step {step}"
            with odc.minibatch():
                for tokens, loss in zip(data, losses, strict=True):
                    _assert_close(_loss(model, tokens, case), loss, case.tolerance, f"{where}, loss")
            _compare_gradients(theirs, model, case.tolerance, where)
        if case.keep and step % 2 == 0:
            continue
        if case.clip is not None:
            expected, *found = (_clipped(model, case.clip) for model in (theirs, *ours))
            assert expected > case.clip
            for handle, norm in zip(case.handles, found, strict=True):
                _assert_close(norm, expected, case.tolerance, f"{handle}, step {step}, norm", atol=0.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for handle, model, odc in handled:
        for (key, left), right in zip(theirs.named_parameters(), model.parameters(), strict=True):
            _assert_close(local(right), local(left), 0.0, f"{handle}, {key}", atol=case.tolerance)
        odc.close()


def _clipped(model, norm):
    return local(clip_grad_norm_(model.parameters(), norm).full_tensor())


def _assert_close(found, expected, rtol, where, *, atol=None):
    torch.testing.assert_close(
        found, expected, rtol=rtol, atol=rtol if atol is None else atol, msg=lambda text: f"{where}: {text}"
    )


def _loss(model, tokens, case):
    loss = loss_of(model, tokens, **case.options)
    loss.backward()
    return loss.detach()


def _compare_gradients(theirs, ours, tolerance, where):
    largest = max(
        local(p.grad).abs().max().item() for p in theirs.parameters() if p.grad is not None and local(p.grad).numel()
    )
    for (key, left), right in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None), f"{where}, {key}: {left.grad} against {right.grad}"
        if left.grad is not None:
            assert right.grad.dtype == left.grad.dtype
            _assert_close(local(right.grad), local(left.grad), tolerance, f"{where}, {key}", atol=tolerance * largest)


@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for name, case in CASES.items() for ranks in case.ranks])
def test_every_handle_trains_like_fsdp2(name, ranks):
    run(train_alike, name, ranks=ranks)


class Total(nn.Module):
    """The sum of its weights: each has the gradient 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(7, 2))

    def forward(self, tokens):
        return self.weight.sum() + 0.0 * tokens.sum()


def many_gradients_of_one(sums, reproducible):
    """One element of the gradient after 300 microbatches on every rank, whose mean over ranks is 300."""
    model = fully_shard(Total(), mesh=mesh_of(dist.get_world_size()), mp_policy=BF16_ALL)
    if sums:
        force_sums(model)
    odc = odcrt.on_demand(model, deadline_s=20, reproducible=reproducible)
    with odc.minibatch():
        for _ in range(300):
            model(torch.zeros(1, 1)).backward()
    odc.close()
    return [value for row in local(model.weight.grad).tolist() for value in row]


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("sums", [False, True])
def test_reducing_in_bf16_loses_nothing_over_many_microbatches(sums, reproducible):
    """bfloat16 ends at 256 when ones are added up, and holds a third no closer than 0.2%."""
    found = run(many_gradients_of_one, sums=sums, reproducible=reproducible, ranks=3)
    assert [value for part in found for value in part] == pytest.approx([300.0] * 14, rel=1e-5)


def train_after_close():
    """FSDP2's own communication, on-demand, FSDP2's own, on-demand again: one model all along, one left to FSDP2."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    theirs, ours = (shard(seeded(Toy), mesh=mesh_of(ranks)) for _ in range(2))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (theirs, ours)]
    generator = torch.Generator().manual_seed(rank)
    for turn in ("theirs", "ours", "theirs", "ours"):
        odc = odcrt.on_demand(ours, deadline_s=20) if turn == "ours" else None
        for step in range(2):
            data = [draw(generator) for _ in range(2)]
            for tokens in data:
                loss_of(theirs, tokens).backward()
            with odc.minibatch() if odc else nullcontext():
                for tokens in data:
                    loss_of(ours, tokens).backward()
            _compare_gradients(theirs, ours, 1e-5, f"{turn}, step {step}")
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if odc:
            odc.close()
            odc.close()
    with pytest.raises(RuntimeError, match="after close"), odc.minibatch():
        pass
    assert odc.memory_bytes == {"published": 0, "accumulators": 0, "buffers": 0}


def test_fsdp2_goes_on_by_itself_after_close():
    run(train_after_close, ranks=2)
