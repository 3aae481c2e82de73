"""Peak memory of a rank, part by part. docs/model.md lists the formulas ("Memory").

Counted are the tensors that training holds at its peak, which is one of a few moments: the backward of a block of the
largest microbatch, the reduction of the root's gradients at a microbatch's end (when activations are gone), and under
ODC the optimizer's step, for gradients are in the accumulator until then. What no formula knows (the device's context,
communication buffers, fragmentation) comes off the capacity as a fixed share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from odcsim.costs.state import DTYPE_BYTES, OPTIMIZER_STATES
from odcsim.model_shape import ModelShape

__all__ = ["RESERVE_SHARE", "MemoryModel", "gradient_shard_bytes"]

# An assumption: share of a device's memory that context, buffers of the communication library and fragmentation take.
RESERVE_SHARE = 0.06

_FP32 = DTYPE_BYTES["fp32"]


def gradient_shard_bytes(parameters: float, *, ranks: int) -> float:
    """A rank's share of the gradients of that many parameters, as FSDP2 keeps it from microbatch to microbatch."""
    return parameters / ranks * _FP32


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

    def parts_bytes(
        self, *, tokens: float, on_demand: bool, published_bytes: int, gather_bytes: int
    ) -> dict[str, float]:
        """Bytes by part at the peak, for a largest microbatch of `tokens`.

        Args:
            tokens: of the largest microbatch.
            on_demand: whether gradients are in ODC's accumulator, and its published copy is held.
            published_bytes: of a published parameter; 0 where the master parameters themselves are read.
            gather_bytes: of a parameter as it is gathered; more than `param_bytes` where master parameters are read.
        """
        shard = self.shape.total_parameters / self.ranks
        gradients = gradient_shard_bytes(self.shape.total_parameters, ranks=self.ranks)
        moments = [self._block_backward_bytes(tokens, gather_bytes), self._root_reduction_bytes()]
        if on_demand:
            moments.append({**dict.fromkeys(moments[0], 0.0), "gradients": gradients})
        else:
            moments = [{**moment, "gradients": gradients} for moment in moments]
        parts = {
            "parameters": shard * _FP32,
            "gradients": 0.0,
            "optimizer_state": shard * _FP32 * OPTIMIZER_STATES[self.optimizer],
            **max(moments, key=lambda moment: sum(moment.values())),
        }
        if on_demand:
            parts["published_copy"] = shard * published_bytes
            # Gradients add up in the type of the parameters, or that of the reduction if it is wider.
            parts["accumulator"] = shard * max(self.reduce_bytes, _FP32)
        return parts

    def _block_backward_bytes(self, tokens: float, gather_bytes: int) -> dict[str, float]:
        """What is held beside the shard while a block's backward ends, in a microbatch of `tokens`."""
        shape, block = self.shape, self.shape.parameters_per_block
        return {
            # The root stays gathered; of the blocks, the one that computes, and the one being prefetched as gathered.
            "gathered_units": (shape.root_parameters + block) * self.param_bytes + block * gather_bytes,
            # The block's gradient and the copy being reduced; the head's gradient waits for the root's reduction.
            "unsharded_gradients": block * (self.param_bytes + self.reduce_bytes)
            + shape.vocab * shape.hidden * self.param_bytes,
            "activations": tokens * self._activation_bytes_per_token(),
            "logits": 0.0 if self.fused_loss else tokens * shape.vocab * (2 * self.param_bytes + _FP32),
        }

    def _root_reduction_bytes(self) -> dict[str, float]:
        """What is held beside the shard while the root's gradients are reduced, after a microbatch's last backward."""
        root = self.shape.root_parameters
        return {
            "gathered_units": root * self.param_bytes,
            "unsharded_gradients": root * (self.param_bytes + self.reduce_bytes),
            "activations": 0.0,
            "logits": 0.0,
        }

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
