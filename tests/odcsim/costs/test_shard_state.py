"""Fixed steps of a minibatch: bytes that go through a rank's memory, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from odcsim.costs.state import DTYPE_BYTES, ShardState

# 10^9 parameters, at 0.8 x 2.5 x 10^12 bytes a second: a byte a parameter takes half a millisecond.
STATE = ShardState(
    parameters=1e9, memory_bandwidth_bytes_per_s=2.5e12, published_bytes_per_parameter=2, optimizer_states=2
)


def test_optimizer():
    """adamw: the norm reads 4 bytes; the step reads 16 (parameter, gradient, two states) and writes 12."""
    assert STATE.optimizer_s == pytest.approx(32 * 0.0005)
    assert dataclasses.replace(STATE, optimizer_states=1).optimizer_s == pytest.approx(24 * 0.0005)


def test_publish():
    """Reads 4 bytes and writes what it publishes; nothing where the master parameters are read."""
    assert STATE.publish_s == pytest.approx(6 * 0.0005)
    assert dataclasses.replace(STATE, published_bytes_per_parameter=4).publish_s == pytest.approx(8 * 0.0005)
    assert dataclasses.replace(STATE, published_bytes_per_parameter=0).publish_s == 0


def test_settle():
    """Reads accumulator and gradient, writes the gradient, clears the accumulator."""
    assert STATE.settle_s == pytest.approx(16 * 0.0005)


def test_bytes_of_types():
    assert DTYPE_BYTES == {"bf16": 2, "fp16": 2, "fp32": 4}
