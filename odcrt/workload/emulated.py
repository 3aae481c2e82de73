"""Emulated compute: a decoder that holds real parameters, moves real gradients, and sleeps where it would compute.

A rank's forward and backward of each unit take as long as the scenario's cost model says. Not every sleep is exact, and
FSDP2's own work between transfers takes time too; so sleeps end at moments counted from the start of the minibatch:

    start + modelled compute until then + time spent in transfers and waits until then

What was late once is made up for by the next sleep. A rank whose sleeps are all used up computes late, and shows as
such.

Gradients can be checked: over all microbatches of a minibatch, each element of every parameter has a mean gradient of 1
(of 0 if no sample was run), whatever the plan. A microbatch that was lost, or counted twice, shows in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from odcrt.tracing.spans import now_s
from odcsim.errors import RunError
from odcsim.model_shape import ModelShape
from odcsim.schedule import ROOT_UNIT, decoder_visits

__all__ = ["EmulatedDecoder", "EmulatedMicrobatch", "Pacer", "check_gradients"]

# bf16 keeps 8 bits: each microbatch's part is off by 0.4% at most, and its sum by some more if it is kept in bf16 too.
_TOLERANCE = 0.01
_TOLERANCE_OF_NARROW_SUMS = 0.1


class Pacer:
    """Lets modelled compute take its time.

    Args:
        away_s: tells the seconds spent in transfers and waits so far.
        clock: in seconds.
        sleep: for so many seconds, or a little longer.
    """

    def __init__(
        self,
        away_s: Callable[[], float],
        *,
        clock: Callable[[], float] = now_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._away_s = away_s
        self._clock = clock
        self._sleep = sleep
        self._start_s = self._computed_s = 0.0

    def begin(self) -> None:
        """Compute starts now, and owes nothing."""
        self._start_s = self._clock() - self._away_s()
        self._computed_s = 0.0

    def spend(self, duration_s: float) -> None:
        """Compute for `duration_s`: return when all that was spent since `begin` should be over."""
        self._computed_s += duration_s
        due_s = self._start_s + self._computed_s + self._away_s()
        while (left_s := due_s - self._clock()) > 0:
            self._sleep(left_s)


@dataclass(frozen=True, eq=False)
class EmulatedMicrobatch:
    """What a rank runs.

    Attributes:
        token_ids_T: as many as the microbatch has; they hold nothing.
        slope: mean gradient that it is to leave: the ranks' number x its share of the minibatch's tokens.
        time_s_V: seconds of compute of each visit.
    """

    token_ids_T: Tensor
    slope: float
    time_s_V: tuple[float, ...]

    @classmethod
    def of(cls, tokens: int, *, slope: float, time_s_V: Iterable[float]) -> EmulatedMicrobatch:
        """A microbatch of `tokens`, which take no memory."""
        return cls(torch.zeros((), dtype=torch.int64).expand(tokens), slope, tuple(time_s_V))


class EmulatedDecoder(nn.Module):
    """As many parameters in each FSDP unit as the decoder of that shape has, in one vector a unit.

    Attributes:
        blocks: each to be sharded as a unit of its own.
        weight: the root's.
    """

    def __init__(self, shape: ModelShape, pacer: Pacer, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            _EmulatedBlock(shape.parameters_per_block, pacer, device=device) for _ in range(shape.layers)
        )
        self.weight = nn.Parameter(torch.empty(shape.root_parameters, device=device))
        self._pacer = pacer
        visits = decoder_visits(shape.layers)
        places = {(visit.unit, visit.phase, visit.gathers, visit.reduces): v for v, visit in enumerate(visits)}
        self._embedding_forward = places[ROOT_UNIT, "forward", True, False]
        self._embedding_backward = places[ROOT_UNIT, "backward", False, True]
        self._head_forward = places[ROOT_UNIT, "forward", False, False]
        self._head_backward = places[ROOT_UNIT, "backward", False, False]
        self._block_places = [
            (places[unit, "forward", True, False], places[unit, "backward", True, True])
            for unit in range(1, shape.layers + 1)
        ]

    def initialize(self) -> None:
        """Give parameters a value: any will do."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.01)

    def forward(self, microbatch: EmulatedMicrobatch) -> Tensor:
        """A loss whose gradient is `microbatch.slope` at every element of every parameter."""
        times = microbatch.time_s_V
        # A tensor that needs a gradient makes FSDP2 see each block's backward where it is, and not at the end.
        passed = torch.zeros(1, requires_grad=True)
        passed = _spend(passed, None, self._pacer, times[self._embedding_forward], times[self._embedding_backward])
        for block, (forward, backward) in zip(self.blocks, self._block_places, strict=True):
            passed = block(passed, times[forward], times[backward])
        passed = _spend(passed, self.weight, self._pacer, times[self._head_forward], times[self._head_backward])
        return passed.sum() * microbatch.slope


class _EmulatedBlock(nn.Module):
    def __init__(self, parameters: int, pacer: Pacer, *, device: torch.device | str | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(parameters, device=device))
        self._pacer = pacer

    def forward(self, passed: Tensor, forward_s: float, backward_s: float) -> Tensor:
        return _spend(passed, self.weight, self._pacer, forward_s, backward_s)


def _spend(passed: Tensor, weight: Tensor | None, pacer: Pacer, forward_s: float, backward_s: float) -> Tensor:
    result: Tensor = _Spend.apply(passed, weight, pacer, forward_s, backward_s)  # type: ignore[no-untyped-call]
    return result


class _Spend(torch.autograd.Function):
    """Passes its input on, and the gradient back, each after a while; all of the weight gets that gradient too."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - PyTorch's context takes any attribute
        passed: Tensor,
        weight: Tensor | None,
        pacer: Pacer,
        forward_s: float,
        backward_s: float,
    ) -> Tensor:
        ctx.weight_like = None if weight is None else (weight.shape, weight.dtype)
        ctx.pacer, ctx.backward_s = pacer, backward_s
        pacer.spend(forward_s)
        return passed.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:  # noqa: ANN401
        gradient = None
        if ctx.weight_like is not None:
            shape, dtype = ctx.weight_like
            gradient = torch.full(shape, slope.item(), dtype=dtype)
        ctx.pacer.spend(ctx.backward_s)
        return slope, gradient, None, None, None


def check_gradients(model: nn.Module, *, expected: float, reduced_in_fp32: bool = True) -> None:
    """Compare this rank's gradients with what they must be once a minibatch is over.

    Args:
        model: an emulated decoder, sharded.
        expected: 1; 0 if no sample was run.
        reduced_in_fp32: whether contributions were added up in fp32.

    Raises:
        RunError: a parameter has no gradient, or another one.
    """
    tolerance = _TOLERANCE if reduced_in_fp32 else _TOLERANCE_OF_NARROW_SUMS
    for name, parameter in model.named_parameters():
        if not isinstance(parameter.grad, DTensor):
            raise RunError(f"parameter {name} has no gradient after a minibatch")
        gradient = parameter.grad.to_local()
        if gradient.numel() == 0:
            continue
        least, most = (float(value) for value in torch.aminmax(gradient))
        if not expected - tolerance <= least <= most <= expected + tolerance:
            raise RunError(
                f"parameter {name} has gradients from {least:g} to {most:g} after a minibatch, and not {expected:g}: "
                "contributions were lost, or counted twice"
            )
