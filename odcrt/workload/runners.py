"""What is trained: the decoder, or emulated compute; its model, sharded, and how a microbatch runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from odcrt.data.losses import LossScale
from odcrt.data.packing import PackedMicrobatch, pack
from odcrt.workload.accounts import TimeAccount
from odcrt.workload.decoder import Decoder
from odcrt.workload.emulated import EmulatedDecoder, EmulatedMicrobatch, Pacer, check_gradients
from odcrt.workload.job import Job, PlannedMicrobatch

__all__ = ["LARGEST_NORM", "EmulatedRunner", "RealRunner", "Runner", "clip_gradients"]

LARGEST_NORM = 1.0
"""Gradients are clipped to this norm, over all parameters and ranks."""

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_LOSS_CHUNK_TOKENS = 1024


class Runner(Protocol):
    """What is trained."""

    @property
    def model(self) -> nn.Module:
        """Sharded."""
        ...

    def prepare(self, microbatches: Sequence[PlannedMicrobatch], *, minibatch: int, predicted: int) -> list[Any]:
        """The microbatches as `run` takes them; `predicted` tokens of the minibatch have a loss, over all ranks."""
        ...

    def begin(self) -> None:
        """The first microbatch is about to run."""
        ...

    def run(self, prepared: Any) -> float:  # noqa: ANN401 - whatever `prepare` made
        """One microbatch forward and backward; its part of the minibatch's loss."""
        ...

    def before_step(self, *, predicted: int) -> None:
        """What comes between the last microbatch and the optimizer."""
        ...


def _sharded(model: nn.Module, blocks: nn.ModuleList, mesh: DeviceMesh, job: Job) -> None:
    training = job.training
    policy = MixedPrecisionPolicy(
        param_dtype=_DTYPES[training.param_dtype],
        reduce_dtype=_DTYPES[training.reduce_dtype],
        cast_forward_inputs=not job.is_emulated,
    )
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


class RealRunner:
    """The decoder, on random tokens that depend on the seed, the minibatch and the sample alone."""

    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        training = job.training
        self.model: Decoder = Decoder(
            job.shape,
            dtype=torch.float32,
            device="meta",
            checkpoint_blocks=training.recompute == "full",
            loss_chunk_tokens=_LOSS_CHUNK_TOKENS if training.fused_loss else sys.maxsize,
        )
        _sharded(self.model, self.model.blocks, mesh, job)
        self.model.to_empty(device="cpu")
        self.model.initialize(job.seed)
        self._seed = job.seed
        self._vocab = job.shape.vocab
        self._world_size = mesh.size()
        self._parameters = list(self.model.parameters())

    def prepare(
        self, microbatches: Sequence[PlannedMicrobatch], *, minibatch: int, predicted: int
    ) -> list[tuple[PackedMicrobatch, LossScale]]:
        """See `Runner`."""
        scale = LossScale.of_minibatch("token_mean", world_size=self._world_size, global_tokens=predicted)
        packed = [
            pack(
                [
                    self._tokens(minibatch, sample, length)
                    for sample, length in zip(planned.samples, planned.lengths, strict=True)
                ],
                allow_empty=True,
            )
            for planned in microbatches
        ]
        return [(microbatch, scale) for microbatch in packed]

    def _tokens(self, minibatch: int, sample: int, length: int) -> Tensor:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, minibatch, sample])))
        return torch.from_numpy(generator.integers(0, self._vocab, size=length, dtype=np.int64))

    def begin(self) -> None:
        """See `Runner`."""

    def run(self, prepared: tuple[PackedMicrobatch, LossScale]) -> float:
        """See `Runner`."""
        packed, scale = prepared
        loss = scale.scaled_loss(self.model(packed), packed)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()) / scale.gradient_divisor

    def before_step(self, *, predicted: int) -> None:  # noqa: ARG002 - see Runner
        """Clip gradients."""
        clip_gradients(self._parameters, largest_norm=LARGEST_NORM)


class EmulatedRunner:
    """Real parameters and transfers, slept compute, and gradients that can be checked."""

    def __init__(self, job: Job, mesh: DeviceMesh, account: TimeAccount) -> None:
        self._pacer = Pacer(account.away_s)
        self.model: EmulatedDecoder = EmulatedDecoder(job.shape, self._pacer, device="meta")
        _sharded(self.model, self.model.blocks, mesh, job)
        self.model.to_empty(device="cpu")
        self.model.initialize()
        self._coefficients_FV = job.coefficients_FV
        self._world_size = mesh.size()
        self._reduced_in_fp32 = job.training.reduce_dtype == "fp32"

    def prepare(
        self,
        microbatches: Sequence[PlannedMicrobatch],
        *,
        minibatch: int,  # noqa: ARG002 - see Runner
        predicted: int,
    ) -> list[EmulatedMicrobatch]:
        """See `Runner`."""
        prepared = []
        for planned in microbatches:
            factors_F = np.array([planned.squared_tokens, planned.tokens, 1.0]) * planned.stretch
            # Labels are all tokens but the first of each sample, which add up to `predicted`.
            labels = planned.tokens - len(planned.samples)
            prepared.append(
                EmulatedMicrobatch.of(
                    planned.tokens,
                    slope=self._world_size * labels / predicted if predicted else 0.0,
                    time_s_V=(factors_F @ self._coefficients_FV).tolist(),
                )
            )
        return prepared

    def begin(self) -> None:
        """See `Runner`."""
        self._pacer.begin()

    def run(self, prepared: EmulatedMicrobatch) -> float:
        """See `Runner`."""
        self.model(prepared).backward()
        return prepared.slope / self._world_size

    def before_step(self, *, predicted: int) -> None:
        """Check gradients."""
        check_gradients(self.model, expected=1.0 if predicted else 0.0, reduced_in_fp32=self._reduced_in_fp32)


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], *, largest_norm: float) -> float:
    """Scale gradients down to a norm over all parameters and ranks. Collective, whether or not a rank has gradients.

    Returns:
        The norm before.
    """
    gradients = [found.grad.to_local() for found in parameters if isinstance(found.grad, DTensor)]
    squared = torch.zeros(1, dtype=torch.float64)
    for norm in torch._foreach_norm(gradients) if gradients else ():  # noqa: SLF001 - PyTorch has no public name for it
        squared += norm.to(torch.float64) ** 2
    dist.all_reduce(squared)
    total = math.sqrt(float(squared))
    if total > largest_norm:
        torch._foreach_mul_(gradients, largest_norm / total)
    return total
