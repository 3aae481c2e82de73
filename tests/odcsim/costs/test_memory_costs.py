"""Memory: parts worked out by hand for a decoder small enough, and how they change with the settings."""

from __future__ import annotations

import dataclasses

import pytest

from odcsim.costs.memory import MemoryModel
from odcsim.model_shape import ModelShape

# A block: 576 weights and two norms of 8: 592. The root: embedding and head of 80 each, a norm of 8: 168.
SHAPE = ModelShape(name="small", layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=10)
BLOCK, ROOT = 592, 168
SHARD = (2 * BLOCK + ROOT) / 4
MODEL = MemoryModel(
    shape=SHAPE, ranks=4, param_bytes=2, reduce_bytes=4, optimizer="adamw", recompute=True, fused_loss=True
)
# Inside a block: 3 x 8 for the norms, 2 x 8 + 2 x 4 for attention, 4 x 16 for the FFN.
INSIDE = 112


def parts(model=MODEL, *, tokens=1000, on_demand=False, published_bytes=2, gather_bytes=2):
    return model.parts_bytes(
        tokens=tokens, on_demand=on_demand, published_bytes=published_bytes, gather_bytes=gather_bytes
    )


def test_parts_in_a_blocks_backward():
    assert parts() == {
        "parameters": 4 * SHARD,
        "gradients": 4 * SHARD,
        "optimizer_state": 8 * SHARD,
        "gathered_units": 2 * (ROOT + 2 * BLOCK),
        # The block's own and the copy being reduced; the head's 10 x 8 wait.
        "unsharded_gradients": (2 + 4) * BLOCK + 2 * 80,
        # Inputs of two blocks, the inside of one, and three times the width around the head.
        "activations": 2 * 1000 * (2 * 8 + INSIDE + 3 * 8),
        "logits": 0,
    }


def test_parts_in_the_roots_reduction():
    """Where the vocabulary is large and the microbatch short, the root's gradients decide."""
    shape = dataclasses.replace(SHAPE, vocab=100_000)
    root = 2 * 100_000 * 8 + 8
    found = parts(dataclasses.replace(MODEL, shape=shape), tokens=1)
    assert found["gathered_units"] == 2 * root
    assert found["unsharded_gradients"] == (2 + 4) * root
    assert found["activations"] == found["logits"] == 0


def test_on_demand_adds_the_published_copy_and_has_gradients_in_the_accumulator():
    extra = parts(on_demand=True).items() - parts().items()
    assert dict(extra) == {"gradients": 0, "published_copy": 2 * SHARD, "accumulator": 4 * SHARD}


def test_on_demand_with_few_ranks_and_tokens_the_optimizers_step_decides():
    """Then the accumulator has become gradients, and nothing is gathered."""
    found = parts(dataclasses.replace(MODEL, shape=dataclasses.replace(SHAPE, layers=100)), tokens=1, on_demand=True)
    shard = (100 * BLOCK + ROOT) / 4
    assert found == {
        "parameters": 4 * shard,
        "gradients": 4 * shard,
        "optimizer_state": 8 * shard,
        **dict.fromkeys(("gathered_units", "unsharded_gradients", "activations", "logits"), 0),
        "published_copy": 2 * shard,
        "accumulator": 4 * shard,
    }


def test_reading_master_parameters_publishes_nothing_and_gathers_more():
    found = parts(on_demand=True, published_bytes=0, gather_bytes=4)
    assert found["published_copy"] == 0
    assert found["gathered_units"] == 2 * (ROOT + BLOCK) + 4 * BLOCK


def test_without_recomputation_every_block_keeps_its_inside():
    found = parts(dataclasses.replace(MODEL, recompute=False))
    assert found["activations"] == 2 * 1000 * (2 * 8 + 2 * INSIDE + 3 * 8)


def test_unfused_loss_holds_logits_their_gradient_and_an_fp32_copy():
    assert parts(dataclasses.replace(MODEL, fused_loss=False))["logits"] == 1000 * 10 * (2 + 2 + 4)


def test_sgd_keeps_one_value_a_parameter():
    assert parts(dataclasses.replace(MODEL, optimizer="sgd"))["optimizer_state"] == 4 * SHARD


def test_types_count():
    found = parts(dataclasses.replace(MODEL, param_bytes=4, reduce_bytes=2), gather_bytes=4, on_demand=True)
    assert found["gathered_units"] == 4 * (ROOT + 2 * BLOCK)
    assert found["unsharded_gradients"] == (4 + 2) * BLOCK + 4 * 80
    assert found["accumulator"] == 4 * SHARD, "gradients add up in the type of the parameters"
    assert found["activations"] == 4 * 1000 * (2 * 8 + INSIDE + 3 * 8)


@pytest.mark.parametrize("ranks", [1, 8, 1000])
def test_only_the_shard_shrinks_with_more_ranks(ranks):
    found = parts(dataclasses.replace(MODEL, ranks=ranks), on_demand=True)
    whole = 2 * BLOCK + ROOT
    sharded = [found[part] for part in ("parameters", "optimizer_state", "published_copy", "accumulator")]
    assert sharded == pytest.approx([4 * whole / ranks, 8 * whole / ranks, 2 * whole / ranks, 4 * whole / ranks])
    assert found["gathered_units"] == parts()["gathered_units"]


@pytest.mark.parametrize("vocab", [10, 3000])
def test_more_tokens_never_need_less(vocab):
    model = dataclasses.replace(MODEL, shape=dataclasses.replace(SHAPE, vocab=vocab), fused_loss=False)
    peaks = [sum(parts(model, tokens=tokens).values()) for tokens in range(0, 200, 5)]
    assert peaks == sorted(peaks)
    assert peaks[-1] > peaks[0]
