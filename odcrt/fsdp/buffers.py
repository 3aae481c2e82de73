"""Buffers for FSDP2's transfers that are used again: fresh memory costs more than the copy into it.

FSDP2 asks for a buffer before each transfer and drops it when the data have been copied on. A buffer is free again when
nobody refers to the tensor that was handed out; so there are as many as are ever in use at once, each as large as the
largest unit that needed one.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch

__all__ = ["BufferPool"]


@dataclass(eq=False)
class _Buffer:
    memory: torch.Tensor
    user: weakref.ref[torch.Tensor] | None = None

    @property
    def is_free(self) -> bool:
        return self.user is None or self.user() is None


@dataclass
class BufferPool:
    """Buffers of one device, shared by all units of a model."""

    _buffers: list[_Buffer] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        """Bytes of all buffers, in use or free."""
        return sum(buffer.memory.numel() for buffer in self._buffers)

    def take(self, numel: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A 1-D tensor of `numel` elements with any contents."""
        size_bytes = numel * dtype.itemsize
        free = [buffer for buffer in self._buffers if buffer.is_free and buffer.memory.device == device]
        fitting = [buffer for buffer in free if buffer.memory.numel() >= size_bytes]
        if fitting:
            buffer = min(fitting, key=lambda found: found.memory.numel())
        else:
            for outgrown in free[:1]:
                self._buffers.remove(outgrown)
            buffer = _Buffer(torch.empty(max(size_bytes, 1), dtype=torch.uint8, device=device))
            self._buffers.append(buffer)
        handed_out = buffer.memory[:size_bytes].view(dtype)
        buffer.user = weakref.ref(handed_out)
        return handed_out
