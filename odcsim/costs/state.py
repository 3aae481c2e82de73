"""Fixed steps of a minibatch that move a rank's shard through its memory: optimizer, publish, settle.

All are bound by memory bandwidth, not FLOPs. Seconds = bytes moved / (bandwidth x `MEMORY_EFFICIENCY`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTYPE_BYTES", "MEMORY_EFFICIENCY", "OPTIMIZER_STATES", "ShardState"]

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Values kept for a parameter, in fp32.
OPTIMIZER_STATES = {"adamw": 2, "sgd": 1}
# An assumption: elementwise kernels reach about this share of a device's memory bandwidth.
MEMORY_EFFICIENCY = 0.8

_FP32 = DTYPE_BYTES["fp32"]


@dataclass(frozen=True)
class ShardState:
    """One rank's shard of the model.

    Attributes:
        parameters: held by the rank (the model's over D).
        memory_bandwidth_bytes_per_s: of the device.
        published_bytes_per_parameter: of the published copy; 0 where the master parameters themselves are read.
        optimizer_states: fp32 values that the optimizer keeps for a parameter.
    """

    parameters: float
    memory_bandwidth_bytes_per_s: float
    published_bytes_per_parameter: int
    optimizer_states: int

    def _moving_s(self, bytes_per_parameter: float) -> float:
        return self.parameters * bytes_per_parameter / (self.memory_bandwidth_bytes_per_s * MEMORY_EFFICIENCY)

    @property
    def optimizer_s(self) -> float:
        """The global norm reads the gradient; the step reads parameter, gradient, states, writes parameter, states."""
        return self._moving_s(_FP32 * (1 + 2 + self.optimizer_states + 1 + self.optimizer_states))

    @property
    def publish_s(self) -> float:
        """Master parameters read, the published copy written."""
        if self.published_bytes_per_parameter == 0:
            return 0.0
        return self._moving_s(_FP32 + self.published_bytes_per_parameter)

    @property
    def settle_s(self) -> float:
        """Accumulator and gradient read, gradient written, accumulator cleared."""
        return self._moving_s(_FP32 * 4)
