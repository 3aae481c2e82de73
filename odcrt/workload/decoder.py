"""A compact decoder in plain PyTorch, built from the same `ModelShape` that the simulator computes with.

It exists to spend the time, and move the bytes, of a decoder of that shape: Qwen2, Qwen3, Llama and Mistral differ in
the shape's flags only. Refinements that change neither (scaled rotary frequencies, sliding windows) are left out.

The root (`Decoder`) holds embedding, last norm and head, and computes the loss within its own `forward`; each element
of `blocks` is to become an FSDP unit, and the root the last one. So every weight is used inside the forward of the unit
that gathers it. Recomputation happens inside a block's forward: the unit is gathered once for it and for its backward.

Invariants:
    a document's losses and gradients are the same alone and packed with others, whichever they are;
    a padding microbatch runs forward and backward, and leaves a gradient of zeros at every parameter;
    weights depend on the shape and the seed alone, neither on the device nor on how they are sharded.

Legend: T tokens of a microbatch, H hidden width, V vocabulary, A heads, K key and value heads, E width of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from odcrt.data.losses import chunked_head_loss
from odcrt.data.packing import PackedMicrobatch
from odcsim.errors import InputError
from odcsim.model_shape import ModelShape

__all__ = ["Block", "Decoder"]

_NORM_EPSILON = 1e-6
_WEIGHT_DEVIATION = 0.02


class Decoder(nn.Module):
    """A decoder whose output is the loss of every token.

    Attributes:
        shape: its sizes.
        embedding: first layer; its weights are the head's too where the shape ties them.
        blocks: the decoder blocks, each to be sharded as a unit of its own.
        norm: after the last block.
        head: None where it is tied to the embedding.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        checkpoint_blocks: bool = True,
        rope_theta: float = 10_000.0,
        loss_chunk_tokens: int = 1024,
    ) -> None:
        """Build the decoder and, unless it is on the meta device, `initialize(0)` it.

        Args:
            shape: its sizes.
            dtype: of the parameters; None: PyTorch's default.
            device: of the parameters; None: PyTorch's default, a surrounding `with torch.device(...)` included.
            checkpoint_blocks: whether a block's backward runs its forward again instead of keeping its activations.
            rope_theta: base of the rotary frequencies.
            loss_chunk_tokens: most tokens whose logits exist at a time.

        Raises:
            InputError: heads of odd width, which rotary positions cannot turn.
        """
        super().__init__()
        if shape.head_dim % 2:
            raise InputError("must be even: rotary positions turn pairs", key="head_dim", value=shape.head_dim)
        target = torch.device(device) if device is not None else torch.get_default_device()
        self.shape = shape
        self._rope_theta = rope_theta
        self._loss_chunk_tokens = loss_chunk_tokens
        # Without memory first: PyTorch's own initialization would take time and random numbers for nothing.
        with torch.device("meta"):
            self.embedding = nn.Embedding(shape.vocab, shape.hidden, dtype=dtype)
            self.blocks = nn.ModuleList(
                Block(shape, dtype=dtype, checkpointed=checkpoint_blocks) for _ in range(shape.layers)
            )
            self.norm = nn.RMSNorm(shape.hidden, eps=_NORM_EPSILON, dtype=dtype)
            self.head = None if shape.tied_embeddings else nn.Linear(shape.hidden, shape.vocab, bias=False, dtype=dtype)
        if target.type != "meta":
            self.to_empty(device=target)
            self.initialize(0)

    def initialize(self, seed: int) -> None:
        """Draw all weights anew: normal ones, smaller where they lead back to the residual stream; biases are 0.

        Parameters that are sharded already get their part of the same weights, without communication.

        Args:
            seed: fixes them, with the shape.
        """
        generator = torch.Generator().manual_seed(seed)
        residual_deviation = _WEIGHT_DEVIATION / math.sqrt(2 * self.shape.layers)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 1:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                    continue
                back_to_residual = name.endswith(("output.weight", "down.weight"))
                whole = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
                whole.normal_(std=residual_deviation if back_to_residual else _WEIGHT_DEVIATION, generator=generator)
                _fill(parameter, whole)

    def forward(self, packed: PackedMicrobatch) -> Tensor:
        """The loss of every token, shape [T], in at least float32; 0 where there is no label."""
        return chunked_head_loss(
            self._last_hidden(packed), self._head_weight(), packed, chunk_tokens=self._loss_chunk_tokens
        )

    def logits(self, packed: PackedMicrobatch) -> Tensor:
        """The logits of every token, shape [T, V]. Not for a sharded decoder: only `forward` gathers the root."""
        return functional.linear(self._last_hidden(packed), self._head_weight())

    def _head_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def _last_hidden(self, packed: PackedMicrobatch) -> Tensor:
        hidden_TH: Tensor = self.embedding(packed.token_ids_T)
        cosine_T1E, sine_T1E = _rotary(
            packed.position_ids_T, head_dim=self.shape.head_dim, theta=self._rope_theta, dtype=hidden_TH.dtype
        )
        for block in self.blocks:
            hidden_TH = block(hidden_TH, cosine_T1E, sine_T1E, packed.document_lengths)
        normed_TH: Tensor = self.norm(hidden_TH)
        return normed_TH


class Block(nn.Module):
    """Attention and a gated FFN, each behind a norm and added to the residual stream."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype | None, checkpointed: bool) -> None:
        super().__init__()
        self._checkpointed = checkpointed
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=_NORM_EPSILON, dtype=dtype)
        self.attention = _Attention(shape, dtype=dtype)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=_NORM_EPSILON, dtype=dtype)
        self.ffn = _GatedFfn(shape, dtype=dtype)

    def forward(
        self, hidden_TH: Tensor, cosine_T1E: Tensor, sine_T1E: Tensor, document_lengths: tuple[int, ...]
    ) -> Tensor:
        """The residual stream after the block."""
        if not (self._checkpointed and torch.is_grad_enabled()):
            return self._run(hidden_TH, cosine_T1E, sine_T1E, document_lengths)
        result: Tensor = checkpoint(
            self._run,
            hidden_TH,
            cosine_T1E,
            sine_T1E,
            document_lengths,
            use_reentrant=False,
            preserve_rng_state=False,  # Nothing here is random.
        )
        return result

    def _run(
        self, hidden_TH: Tensor, cosine_T1E: Tensor, sine_T1E: Tensor, document_lengths: tuple[int, ...]
    ) -> Tensor:
        hidden_TH = hidden_TH + self.attention(self.attention_norm(hidden_TH), cosine_T1E, sine_T1E, document_lengths)
        result: Tensor = hidden_TH + self.ffn(self.ffn_norm(hidden_TH))
        return result


class _Attention(nn.Module):
    """Causal grouped-query attention within each document."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._head_dim = shape.head_dim
        self.query = nn.Linear(shape.hidden, shape.query_width, bias=shape.qkv_bias, dtype=dtype)
        self.key = nn.Linear(shape.hidden, shape.kv_width, bias=shape.qkv_bias, dtype=dtype)
        self.value = nn.Linear(shape.hidden, shape.kv_width, bias=shape.qkv_bias, dtype=dtype)
        self.output = nn.Linear(shape.query_width, shape.hidden, bias=shape.output_bias, dtype=dtype)
        self.query_norm = nn.RMSNorm(shape.head_dim, eps=_NORM_EPSILON, dtype=dtype) if shape.qk_norm else None
        self.key_norm = nn.RMSNorm(shape.head_dim, eps=_NORM_EPSILON, dtype=dtype) if shape.qk_norm else None

    def forward(
        self, normed_TH: Tensor, cosine_T1E: Tensor, sine_T1E: Tensor, document_lengths: tuple[int, ...]
    ) -> Tensor:
        query_TAE = self.query(normed_TH).unflatten(-1, (-1, self._head_dim))
        key_TKE = self.key(normed_TH).unflatten(-1, (-1, self._head_dim))
        value_TKE = self.value(normed_TH).unflatten(-1, (-1, self._head_dim))
        if self.query_norm is not None and self.key_norm is not None:
            query_TAE, key_TKE = self.query_norm(query_TAE), self.key_norm(key_TKE)
        query_TAE = _turned(query_TAE, cosine_T1E, sine_T1E)
        key_TKE = _turned(key_TKE, cosine_T1E, sine_T1E)
        # Without any document there is one of no tokens: parameters take part, and get gradients of zeros.
        lengths = list(document_lengths) or [0]
        attended_TAE = torch.cat(
            [
                _causal_attention(query, key, value)
                for query, key, value in zip(
                    torch.split(query_TAE, lengths),
                    torch.split(key_TKE, lengths),
                    torch.split(value_TKE, lengths),
                    strict=True,
                )
            ]
        )
        result: Tensor = self.output(attended_TAE.flatten(1))
        return result


class _GatedFfn(nn.Module):
    """SiLU(gate) x up, then down."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=shape.mlp_bias, dtype=dtype)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=shape.mlp_bias, dtype=dtype)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=shape.mlp_bias, dtype=dtype)

    def forward(self, normed_TH: Tensor) -> Tensor:
        result: Tensor = self.down(functional.silu(self.gate(normed_TH)) * self.up(normed_TH))
        return result


def _causal_attention(query_LAE: Tensor, key_LKE: Tensor, value_LKE: Tensor) -> Tensor:
    """Attention within one document of L tokens."""
    attended_1ALE = functional.scaled_dot_product_attention(
        query_LAE.transpose(0, 1)[None],
        key_LKE.transpose(0, 1)[None],
        value_LKE.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )
    return attended_1ALE[0].transpose(0, 1)


def _rotary(positions_T: Tensor, *, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle by which each pair of a head's features is turned (arXiv 2104.09864), [T, 1, E].

    Angles are computed in float32, as Hugging Face models do, whatever the model's type.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions_T.device) / head_dim
    frequencies = 1.0 / theta**exponents
    angles_TE = (positions_T.to(torch.float32)[:, None] * frequencies).repeat(1, 2)
    return angles_TE.cos()[:, None].to(dtype), angles_TE.sin()[:, None].to(dtype)


def _turned(heads_TAE: Tensor, cosine_T1E: Tensor, sine_T1E: Tensor) -> Tensor:
    """Heads with feature i and feature i + E/2 turned as a pair."""
    first, second = heads_TAE.chunk(2, dim=-1)
    return heads_TAE * cosine_T1E + torch.cat((-second, first), dim=-1) * sine_T1E


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy `whole` into a parameter, or this rank's part of it into a sharded one."""
    whole = whole.to(device=parameter.device, dtype=parameter.dtype)
    if isinstance(parameter, DTensor):
        # Every rank holds the whole already: no source rank, no communication.
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(whole)
