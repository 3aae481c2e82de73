"""Packed microbatches: several documents in one row of tokens, without padding.

A document is one sample as it is run. Documents follow each other; attention and predictions never cross from one into
the next, which `document_lengths` tells the attention and `labels_T` the loss.

Invariants, asserted when a microbatch is made:
    positions restart at 0 with every document;
    `labels_T[t]` is the token that position t is to predict: token t + 1 of the same document, or `IGNORED_LABEL`;
    so the last token of a document never has a label;
    a microbatch without tokens is padding: a rank runs it to meet the others' collectives, and learns nothing.

Legend: T tokens of the microbatch, X whatever a model puts behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypedDict

import torch
from torch import Tensor

from odcsim.errors import InputError

__all__ = ["IGNORED_LABEL", "ModelInputs", "PackedMicrobatch", "pack"]

IGNORED_LABEL = -100
"""A label that no loss is computed for; the value that PyTorch and Hugging Face use."""

_WHOLE_NUMBERS = frozenset({torch.uint8, torch.uint16, torch.int8, torch.int16, torch.int32, torch.int64})


class ModelInputs(TypedDict, total=False):
    """Keyword arguments of a Hugging Face causal language model; `attention_mask` only if one was asked for."""

    input_ids: Tensor
    position_ids: Tensor
    use_cache: bool
    attention_mask: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class PackedMicrobatch:
    """Documents that one rank runs forward and backward together. Made by `pack`.

    Attributes:
        token_ids_T: int64.
        position_ids_T: int64; the place of each token in its document.
        document_lengths: tokens of each document, at least 1, adding up to T.
        labels_T: int64; the token to predict at each position, or `IGNORED_LABEL`. Already shifted: the loss compares
            `labels_T[t]` with the logits at t.
    """

    token_ids_T: Tensor
    position_ids_T: Tensor
    document_lengths: tuple[int, ...]
    labels_T: Tensor

    def __post_init__(self) -> None:
        assert all(length >= 1 for length in self.document_lengths), f"document lengths {self.document_lengths}"
        shape = (sum(self.document_lengths),)
        for name in ("token_ids_T", "position_ids_T", "labels_T"):
            tensor: Tensor = getattr(self, name)
            assert tensor.shape == shape, f"{name} has shape {tuple(tensor.shape)}, not {shape}"
            assert tensor.dtype == torch.int64, f"{name} has type {tensor.dtype}, not torch.int64"

    @property
    def tokens(self) -> int:
        """Tokens of all documents: T."""
        return self.token_ids_T.numel()

    @property
    def squared_tokens(self) -> int:
        """Sum of the documents' squared lengths, which their attention takes time in proportion to."""
        return sum(length**2 for length in self.document_lengths)

    @property
    def is_padding(self) -> bool:
        """Whether there is nothing in it."""
        return not self.document_lengths

    @cached_property
    def loss_tokens_of_documents(self) -> tuple[int, ...]:
        """Labels of each document that a loss is computed for. Waits for the device where the labels are on one."""
        has_loss_T = (self.labels_T != IGNORED_LABEL).cpu()
        return tuple(int(document.sum()) for document in torch.split(has_loss_T, list(self.document_lengths)))

    @property
    def loss_tokens(self) -> int:
        """Labels that a loss is computed for."""
        return sum(self.loss_tokens_of_documents)

    @property
    def loss_documents(self) -> int:
        """Documents with at least one label that a loss is computed for."""
        return sum(1 for count in self.loss_tokens_of_documents if count)

    @property
    def document_ids_T(self) -> Tensor:
        """The document of each token, counted from 0; int64."""
        device = self.token_ids_T.device
        lengths = torch.tensor(self.document_lengths, dtype=torch.int64, device=device)
        # With its size told, the device need not be waited for.
        return torch.repeat_interleave(lengths, output_size=self.tokens)

    @property
    def cu_seqlens(self) -> Tensor:
        """Where documents begin, and T at the end; int32, as kernels for sequences of varying length take it."""
        ends = torch.tensor((0, *self.document_lengths), dtype=torch.int32, device=self.token_ids_T.device)
        return ends.cumsum(0, dtype=torch.int32)

    def block_causal_mask_TT(self, dtype: torch.dtype = torch.bool) -> Tensor:
        """Which position (column) each position (row) may attend to: those of its document up to itself.

        Args:
            dtype: `torch.bool`: true where attention is allowed; a floating type: 0 there and minus infinity elsewhere,
                to be added to the scores. It takes memory in proportion to T squared.
        """
        document_T = self.document_ids_T
        earlier_TT = torch.ones(self.tokens, self.tokens, dtype=torch.bool, device=document_T.device).tril_()
        allowed_TT = earlier_TT & (document_T[:, None] == document_T[None, :])
        if dtype == torch.bool:
            return allowed_TT
        return torch.zeros_like(allowed_TT, dtype=dtype).masked_fill_(~allowed_TT, -torch.inf)

    def to_model_inputs(self, *, mask_dtype: torch.dtype | None = None) -> ModelInputs:
        """Keyword arguments for a Hugging Face causal language model: a batch of one row.

        The cache is switched off: with it on, as it is by default, recent versions of transformers do not look for
        documents in the positions, and attention runs across them. Such models also refuse a row without tokens, so a
        padding microbatch becomes one token that `from_model_output` takes away again.

        Args:
            mask_dtype: None leaves masking to the model, which finds documents by their positions (flash attention,
                and recent versions otherwise); a floating type, the model's own, adds a block-diagonal causal mask that
                the attention implementations `eager` and `sdpa` take.
        """
        if self.is_padding:
            return pack([[0]]).to(self.token_ids_T.device).to_model_inputs(mask_dtype=mask_dtype)
        inputs = ModelInputs(input_ids=self.token_ids_T[None], position_ids=self.position_ids_T[None], use_cache=False)
        if mask_dtype is not None:
            inputs["attention_mask"] = self.block_causal_mask_TT(mask_dtype)[None, None]
        return inputs

    def from_model_output(self, output_1TX: Tensor) -> Tensor:
        """What a model answered to `to_model_inputs` (logits, say), without the dimension of the batch: [T, ...]."""
        assert output_1TX.shape[:2] == (1, max(self.tokens, 1)), f"output of shape {tuple(output_1TX.shape)}"
        return output_1TX[0, : self.tokens]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedMicrobatch:
        """The same microbatch on another device."""
        return replace(
            self,
            token_ids_T=self.token_ids_T.to(device, non_blocking=non_blocking),
            position_ids_T=self.position_ids_T.to(device, non_blocking=non_blocking),
            labels_T=self.labels_T.to(device, non_blocking=non_blocking),
        )


def pack(
    samples: Sequence[Tensor | Sequence[int]],
    *,
    labels: Sequence[Tensor | Sequence[int]] | None = None,
    allow_empty: bool = False,
) -> PackedMicrobatch:
    """Put samples behind each other.

    Args:
        samples: token ids of each, at least one.
        labels: for each sample as many labels as it has tokens, each standing for the token at its own place (not
            shifted, as in Hugging Face data sets): the token's id, or `IGNORED_LABEL` for a token that is not to be
            learned, of a prompt, say. None: every token is learned. The first label of a sample has no effect: nothing
            predicts it.
        allow_empty: whether no samples at all are fine, and make a padding microbatch.

    Raises:
        InputError: no samples without `allow_empty`, a sample without tokens, labels that do not fit the samples, or
            anything but whole numbers in one row.
    """
    if not samples and not allow_empty:
        raise InputError(
            "no samples; a padding microbatch is allowed with allow_empty=True only", key="samples", value=[]
        )
    if labels is not None and len(labels) != len(samples):
        raise InputError(f"must be as many as the {len(samples)} samples", key="number of labels", value=len(labels))
    tokens = [_row(sample, key=f"samples[{index}]") for index, sample in enumerate(samples)]
    targets = tokens if labels is None else [_row(row, key=f"labels[{index}]") for index, row in enumerate(labels)]
    for index, (sample, target) in enumerate(zip(tokens, targets, strict=True)):
        if target.numel() != sample.numel():
            raise InputError(
                f"must be as many as the {sample.numel()} tokens of the sample",
                key=f"length of labels[{index}]",
                value=target.numel(),
            )
    lengths = tuple(sample.numel() for sample in tokens)
    labels_T = _joined(targets).roll(-1)
    labels_T[torch.tensor(lengths, dtype=torch.int64).cumsum(0) - 1] = IGNORED_LABEL
    return PackedMicrobatch(
        token_ids_T=_joined(tokens),
        position_ids_T=_joined([torch.arange(sample.numel(), device=sample.device) for sample in tokens]),
        document_lengths=lengths,
        labels_T=labels_T,
    )


def _row(values: Tensor | Sequence[int], *, key: str) -> Tensor:
    """The values as one row of int64."""
    try:
        row = values if isinstance(values, Tensor) else torch.tensor(values)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        raise InputError("must be whole numbers in one row", key=key, value=values) from None
    if row.numel() == 0:
        raise InputError("a sample must have at least 1 token", key=key, value=[])
    if row.ndim != 1 or row.dtype not in _WHOLE_NUMBERS:
        raise InputError("must be whole numbers in one row", key=key, value=f"shape {list(row.shape)} of {row.dtype}")
    return row.to(torch.int64)


def _joined(rows: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(rows)) if rows else torch.empty(0, dtype=torch.int64)
