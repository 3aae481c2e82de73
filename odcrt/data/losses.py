"""Losses normalized over the whole minibatch, and token losses of packed microbatches.

A minibatch's loss is one number over all ranks and microbatches; each microbatch contributes a part of it:

    token_mean     sum over labels of the loss / labels in the minibatch
    sequence_mean  sum over documents of (mean over the document's labels) / documents in the minibatch
    constant       sum over labels of the loss / a given constant (Dr. GRPO, arXiv 2503.20783)

The divisor is the minibatch's, never the microbatch's, so that the gradient is that of one big batch for every split of
the samples into microbatches and ranks; a mean over microbatches of means is not. FSDP divides the gradients that it
sums over ranks by the number of ranks, so the loss is multiplied by that number first.

Losses are computed in float32, or in float64 where their input is float64.

Legend: T tokens of a microbatch, V vocabulary, H hidden width, C tokens of a chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from odcrt.data.packing import IGNORED_LABEL, PackedMicrobatch
from odcsim.errors import InputError
from odcsim.suggest import unknown_name

__all__ = ["LossKind", "LossScale", "chunked_head_loss", "count_over_ranks", "packed_cross_entropy"]

LossKind = Literal["token_mean", "sequence_mean", "constant"]

# A chunk's logits take 4 x vocabulary bytes a token: 0.6 GB at 151,936.
_CHUNK_TOKENS = 1024


@dataclass(frozen=True)
class LossScale:
    """What turns token losses of a microbatch into its part of the minibatch's loss. Made by `of_minibatch`.

    Attributes:
        kind: see the module.
        divisor: labels or documents of the minibatch over all ranks, or the constant. 0: nothing is learned from this
            minibatch, and every part is 0.
        gradient_divisor: what the summed gradients will be divided by.
    """

    kind: LossKind
    divisor: float
    gradient_divisor: float

    @classmethod
    def of_minibatch(
        cls,
        kind: LossKind,
        *,
        world_size: int,
        global_tokens: int | None = None,
        global_sequences: int | None = None,
        constant: float | None = None,
        gradient_divisor: float | None = None,
    ) -> LossScale:
        """The scale of every microbatch of one minibatch. Counts that the kind does not need are left aside.

        Args:
            kind: see the module.
            world_size: ranks that gradients are averaged over, replicas included.
            global_tokens: for `token_mean`: labels in the minibatch that a loss is computed for
                (`PackedMicrobatch.loss_tokens`), over all ranks; see `count_over_ranks`.
            global_sequences: for `sequence_mean`: documents in the minibatch, over all ranks. Whether one without any
                label counts is the caller's choice; `PackedMicrobatch.loss_documents` leaves such ones out.
            constant: for `constant`.
            gradient_divisor: what gradients are divided by once they are summed over ranks. None: `world_size`, as
                FSDP2 does by default; 1 for a plain sum; otherwise what `set_gradient_divide_factor` was given.

        Raises:
            InputError: an unknown kind, what the kind needs is missing, or a number out of range.
        """
        if kind not in get_args(LossKind):
            raise unknown_name("loss normalization", kind, get_args(LossKind), key="kind")
        key, divisor = {
            "token_mean": ("global_tokens", global_tokens),
            "sequence_mean": ("global_sequences", global_sequences),
            "constant": ("constant", constant),
        }[kind]
        if divisor is None:
            raise InputError(f"missing; a {kind} loss is divided by it", key=key)
        if not math.isfinite(divisor) or divisor < 0 or (kind == "constant" and divisor == 0):
            allowed = "more than 0" if kind == "constant" else "0 or more"
            raise InputError(f"must be finite and {allowed}", key=key, value=divisor)
        if world_size < 1:
            raise InputError("must be at least 1", key="world_size", value=world_size)
        if gradient_divisor is None:
            gradient_divisor = world_size
        if not math.isfinite(gradient_divisor) or gradient_divisor <= 0:
            raise InputError("must be finite and more than 0", key="gradient_divisor", value=gradient_divisor)
        return cls(kind=kind, divisor=divisor, gradient_divisor=gradient_divisor)

    @property
    def factor(self) -> float:
        """What the sum over a microbatch is multiplied by."""
        return self.gradient_divisor / self.divisor if self.divisor else 0.0

    def scaled_loss(self, token_losses_T: Tensor, packed: PackedMicrobatch) -> Tensor:
        """The microbatch's part of the loss, to call `backward` on.

        The minibatch's loss, for the log, is the sum of these over all microbatches and ranks, divided by
        `gradient_divisor`.

        Args:
            token_losses_T: loss at every position; those without a label are left out, whatever stands there.
            packed: the microbatch; a padding one gives a 0 that can be run backward all the same.
        """
        has_loss_T = packed.labels_T != IGNORED_LABEL
        losses_T = torch.where(has_loss_T, _at_least_float32(token_losses_T), 0.0)
        if self.kind == "sequence_mean":
            document_T = packed.document_ids_T
            documents = len(packed.document_lengths)
            labels_D = torch.zeros(documents, dtype=torch.int64, device=document_T.device)
            labels_D.index_add_(0, document_T, has_loss_T.to(torch.int64))
            losses_T = losses_T / labels_D.clamp(min=1)[document_T]
        return losses_T.sum() * self.factor


def count_over_ranks(
    *counts: int, group: dist.ProcessGroup | None = None, device: torch.device | str | None = None
) -> tuple[int, ...]:
    """Sum counts (labels, documents) over the ranks; without a process group there is one rank only.

    A collective: every rank calls it with as many counts, once before the minibatch. Not inside of `minibatch()`, where
    ranks do not meet.

    Args:
        counts: this rank's.
        group: the ranks; None: all.
        device: where the sum is taken. None: the current GPU if the group speaks NCCL alone, the CPU otherwise.
    """
    if not dist.is_initialized():
        return counts
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
    totals = torch.tensor(counts, dtype=torch.int64, device=device)
    dist.all_reduce(totals, group=group)
    return tuple(int(total) for total in totals.tolist())


def packed_cross_entropy(logits_TV: Tensor, packed: PackedMicrobatch) -> Tensor:
    """The negative log-likelihood of every label, shape [T]; 0 where there is none."""
    _check_rows("logits_TV", logits_TV, packed)
    return functional.cross_entropy(
        _at_least_float32(logits_TV), packed.labels_T, ignore_index=IGNORED_LABEL, reduction="none"
    )


def chunked_head_loss(
    hidden_TH: Tensor, head_weight_VH: Tensor, packed: PackedMicrobatch, *, chunk_tokens: int = _CHUNK_TOKENS
) -> Tensor:
    """`packed_cross_entropy(hidden_TH @ head_weight_VH.T, packed)`, with the logits of one chunk of tokens at a time.

    Backward computes each chunk's logits again (one more matrix product of the head than the plain way) and adds up the
    weights' gradient in float32. It can be run backward once, not differentiated twice.

    Args:
        hidden_TH: output of the last norm.
        head_weight_VH: the head's whole weights, gathered; of the same type as `hidden_TH`.
        packed: the microbatch; may be padding.
        chunk_tokens: most tokens whose logits exist at a time, at least 1.

    Raises:
        InputError: shapes or types that do not fit each other, or `chunk_tokens` out of range.
    """
    if chunk_tokens < 1:
        raise InputError("must be at least 1", key="chunk_tokens", value=chunk_tokens)
    _check_rows("hidden_TH", hidden_TH, packed)
    if hidden_TH.dtype != head_weight_VH.dtype:
        raise InputError(
            f"must be the {hidden_TH.dtype} of the hidden states", key="head_weight_VH", value=head_weight_VH.dtype
        )
    losses_T: Tensor = _HeadLoss.apply(hidden_TH, head_weight_VH, packed.labels_T, chunk_tokens)  # type: ignore[no-untyped-call]
    return losses_T


class _HeadLoss(torch.autograd.Function):
    """Cross-entropy of a linear head; keeps the logsumexp of every token instead of its logits."""

    @staticmethod
    def forward(ctx: Any, hidden_TH: Tensor, weight_VH: Tensor, labels_T: Tensor, chunk_tokens: int) -> Tensor:  # noqa: ANN401 - PyTorch's context takes any attribute
        type_ = _loss_type(hidden_TH)
        logsumexp_T = hidden_TH.new_empty(hidden_TH.shape[:1], dtype=type_)
        losses_T = torch.empty_like(logsumexp_T)
        # A surrounding autocast would act on forward and not on backward, which must see the same logits.
        with torch.autocast(hidden_TH.device.type, enabled=False):
            for chunk in _chunks(hidden_TH.shape[0], chunk_tokens):
                logits_CV = functional.linear(hidden_TH[chunk], weight_VH).to(type_)
                labels_C1 = labels_T[chunk, None]
                logsumexp_T[chunk] = logits_CV.logsumexp(dim=-1)
                chosen_C = logits_CV.gather(1, labels_C1.clamp(min=0)).squeeze(1)
                losses_T[chunk] = logsumexp_T[chunk] - chosen_C
        ctx.save_for_backward(hidden_TH, weight_VH, labels_T, logsumexp_T)
        ctx.chunk_tokens = chunk_tokens
        return losses_T.masked_fill_(labels_T == IGNORED_LABEL, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope_T: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # noqa: ANN401
        hidden_TH, weight_VH, labels_T, logsumexp_T = ctx.saved_tensors
        slope_T = slope_T.masked_fill(labels_T == IGNORED_LABEL, 0.0)
        hidden_gradient_TH = torch.empty_like(hidden_TH) if ctx.needs_input_grad[0] else None
        weight_gradient_VH = torch.zeros_like(weight_VH, dtype=slope_T.dtype) if ctx.needs_input_grad[1] else None
        with torch.autocast(hidden_TH.device.type, enabled=False):
            for chunk in _chunks(hidden_TH.shape[0], ctx.chunk_tokens):
                logits_CV = functional.linear(hidden_TH[chunk], weight_VH).to(slope_T.dtype)
                # The derivative by the logits is softmax less one at the label; softmax comes from the logsumexp.
                slope_CV = logits_CV.sub_(logsumexp_T[chunk, None]).exp_()
                labels_C1 = labels_T[chunk, None].clamp(min=0)
                slope_CV.scatter_add_(1, labels_C1, slope_CV.new_full((1, 1), -1.0).expand_as(labels_C1))
                slope_CV = slope_CV.mul_(slope_T[chunk, None]).to(hidden_TH.dtype)
                if hidden_gradient_TH is not None:
                    torch.mm(slope_CV, weight_VH, out=hidden_gradient_TH[chunk])
                if weight_gradient_VH is not None:
                    weight_gradient_VH += slope_CV.T @ hidden_TH[chunk]
        if weight_gradient_VH is not None:
            weight_gradient_VH = weight_gradient_VH.to(weight_VH.dtype)
        return hidden_gradient_TH, weight_gradient_VH, None, None


def _chunks(tokens: int, chunk_tokens: int) -> list[slice]:
    return [slice(first, min(first + chunk_tokens, tokens)) for first in range(0, tokens, chunk_tokens)]


def _loss_type(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(_loss_type(tensor))


def _check_rows(name: str, rows: Tensor, packed: PackedMicrobatch) -> None:
    if rows.ndim != 2 or rows.shape[0] != packed.tokens:
        raise InputError(
            f"must be one row for each of the microbatch's {packed.tokens} tokens", key=name, value=list(rows.shape)
        )
