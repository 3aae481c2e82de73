"""Peak memory of a rank, part by part. docs/model.md lists the formulas ("Memory").

Counted are tensors that training holds at its peak, the backward of the largest microbatch. What no formula knows (the
device's context, communication buffers, fragmentation) comes off the capacity as a fixed share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from odcsim.costs.state import DTYPE_BYTES, OPTIMIZER_STATES
from odcsim.model_shape import ModelShape

__all__ = ["RESERVE_SHARE", "MemoryModel"]

# An assumption: share of a device's memory that context, buffers of the communication library and fragmentation take.
RESERVE_SHARE = 0.06

_FP32 = DTYPE_BYTES["fp32"]


@dataclass(frozen=True)
class MemoryModel:
    """What a rank holds.

    Attributes:
        shape: the decoder.
        ranks: D, over which parameters, gradients and optimizer state are sharded.
        param_bytes: of a gathered parameter.
        reduce_bytes: of a gradient being reduced.
        optimizer: `adamw` or `sgd`.
        recompute: whether only the input of every block is kept for backward.
        fused_loss: whether logits are never held whole.
    """

    shape: ModelShape
    ranks: int
    param_bytes: int
    reduce_bytes: int
    optimizer: Literal["adamw", "sgd"]
    recompute: bool
    fused_loss: bool

    def parts_bytes(self, *, tokens: float, on_demand: bool, published_bytes: int) -> dict[str, float]:
        """Bytes by part at the peak, for a largest microbatch of `tokens`.

        Args:
            tokens: of the largest microbatch.
            on_demand: whether ODC's published copy and accumulator are held.
            published_bytes: of a published parameter; 0 where the master parameters themselves are read.
        """
        shape = self.shape
        shard = shape.total_parameters / self.ranks
        block = shape.parameters_per_block
        parts = {
            "parameters": shard * _FP32,
            "gradients": shard * _FP32,
            "optimizer_state": shard * _FP32 * OPTIMIZER_STATES[self.optimizer],
            # The root stays gathered; of the blocks, the one that computes and the one being prefetched.
            "gathered_units": (shape.root_parameters + 2 * block) * self.param_bytes,
            # The gradient of the block whose backward runs, and the copy being reduced.
            "unsharded_gradients": block * (self.param_bytes + self.reduce_bytes),
            "activations": tokens * self._activation_bytes_per_token(),
            "logits": 0.0 if self.fused_loss else tokens * shape.vocab * (2 * self.param_bytes + _FP32),
        }
        if on_demand:
            parts["published_copy"] = shard * published_bytes
            parts["accumulator"] = shard * self.reduce_bytes
        return parts

    def _activation_bytes_per_token(self) -> float:
        """Saved for backward: every block's input, and inside the one (or all) blocks that hold their activations.

        Inside a gated block with fused attention, in elements per token: both norms' inputs and outputs (4 hidden, of
        which one is the block's input), q, k, v and the attention's output (2 q + 2 kv), gate, up, activation and
        product (4 ffn).
        """
        shape = self.shape
        inside = (
            3 * shape.hidden + 2 * shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim + 4 * shape.ffn
        )
        holding = 1 if self.recompute else shape.layers
        # Beside the blocks: the input of the final norm, its output, and the head's gradient of it.
        return self.param_bytes * (shape.layers * shape.hidden + holding * inside + 3 * shape.hidden)
