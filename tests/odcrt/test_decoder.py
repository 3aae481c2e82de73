"""The compact decoder: its size, its isolation of documents, and its likeness to the models it stands for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks import run  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from odcrt.data.losses import LossScale, count_over_ranks  # noqa: E402
from odcrt.data.packing import pack  # noqa: E402
from odcrt.workload.decoder import Decoder  # noqa: E402
from odcsim.catalog import model_names  # noqa: E402
from odcsim.errors import InputError  # noqa: E402
from odcsim.model_shape import ModelShape, load_model  # noqa: E402

torch.set_num_threads(1)  # Tensors are tiny here, and threads take turns on a busy machine.

QWEN2 = ModelShape(name="qwen2", layers=2, hidden=16, heads=4, kv_heads=2, head_dim=4, ffn=24, vocab=40, qkv_bias=True)
TIED = replace(QWEN2, name="qwen2-tied", tied_embeddings=True)
# Heads wider than an equal part of the hidden width, as Qwen3 has them.
QWEN3 = replace(QWEN2, name="qwen3", head_dim=6, qkv_bias=False, qk_norm=True)
LLAMA = replace(QWEN2, name="llama", qkv_bias=False)
BIASED = replace(QWEN2, name="biased", output_bias=True, mlp_bias=True)
SHAPES = [QWEN2, TIED, QWEN3, LLAMA, BIASED]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


def decoder_of(shape=QWEN2, *, dtype=torch.float64, **settings_):
    """A decoder without zeros, ones or tiny weights, which could hide a mistake."""
    model = Decoder(shape, dtype=dtype, **settings_)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=dtype, generator=generator), alpha=0.3)
    return model


def samples_of(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, QWEN2.vocab, (length,), generator=generator) for length in lengths]


def gradients_of(model, *packs, scale=None):
    """Gradients of the sum of the losses of all packs, one backward each."""
    model.zero_grad()
    for packed in packs:
        token_losses_T = model(packed)
        (token_losses_T.sum() if scale is None else scale.scaled_loss(token_losses_T, packed)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(found, expected, *, atol):
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient, expected[name], rtol=0, atol=atol, msg=lambda text, at=name: f"{at}: {text}"
        )


@every_shape
def test_parameters_are_as_many_as_the_shape_says(shape):
    model = Decoder(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.total_parameters
    for block in model.blocks:
        assert sum(parameter.numel() for parameter in block.parameters()) == shape.parameters_per_block


@pytest.mark.parametrize("name", model_names())
def test_catalog_models_have_their_published_parameters(name, root):
    shape = load_model(name, base_folder=root)
    with torch.device("meta"):
        model = Decoder(shape, dtype=torch.bfloat16)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.total_parameters
    assert {(parameter.device.type, parameter.dtype) for parameter in model.parameters()} == {("meta", torch.bfloat16)}


class TestLikeness:
    """The same numbers as Hugging Face's models, weights carried over by name."""

    NAMES = (
        ("embedding.", "model.embed_tokens."),
        ("blocks.", "model.layers."),
        ("attention_norm.", "input_layernorm."),
        ("ffn_norm.", "post_attention_layernorm."),
        ("attention.query_norm.", "self_attn.q_norm."),
        ("attention.key_norm.", "self_attn.k_norm."),
        ("attention.query.", "self_attn.q_proj."),
        ("attention.key.", "self_attn.k_proj."),
        ("attention.value.", "self_attn.v_proj."),
        ("attention.output.", "self_attn.o_proj."),
        ("ffn.", "mlp."),
        ("gate.", "gate_proj."),
        ("up.", "up_proj."),
        ("down.", "down_proj."),
        ("head.", "lm_head."),
    )

    def theirs(self, name):
        for ours, theirs in self.NAMES:
            if ours in name:
                name = name.replace(ours, theirs)
        return "model." + name if name.startswith("norm.") else name

    def models(self, shape, *, rope_theta):
        transformers = pytest.importorskip("transformers")
        family = {"qwen2": "Qwen2", "qwen2-tied": "Qwen2", "qwen3": "Qwen3", "llama": "Llama"}[shape.name]
        config = getattr(transformers, f"{family}Config")(
            vocab_size=shape.vocab,
            hidden_size=shape.hidden,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            tie_word_embeddings=shape.tied_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
            rms_norm_eps=1e-6,
        )
        theirs = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32)
        ours = decoder_of(shape, dtype=torch.float32, rope_theta=rope_theta)
        weights = {self.theirs(name): parameter for name, parameter in ours.named_parameters()}
        missing, unexpected = theirs.load_state_dict(weights, strict=False)
        assert unexpected == []
        assert missing == (["lm_head.weight"] if shape.tied_embeddings else [])
        theirs.tie_weights()
        return ours, theirs

    @pytest.mark.parametrize("shape", [QWEN2, TIED, QWEN3, LLAMA], ids=lambda shape: shape.name)
    @pytest.mark.parametrize("rope_theta", [10_000.0, 50.0])
    def test_logits_losses_and_gradients_are_theirs(self, shape, rope_theta):
        ours, theirs = self.models(shape, rope_theta=rope_theta)
        samples = samples_of(9, 1, 14)
        packed = pack(samples)
        # Theirs runs each sample alone, and takes the mean over its labels itself.
        logits_TV = torch.cat([theirs(input_ids=sample[None]).logits[0] for sample in samples])
        torch.testing.assert_close(ours.logits(packed), logits_TV, rtol=0, atol=1e-5)
        loss = torch.zeros(())
        for sample in samples:
            if len(sample) > 1:
                loss = loss + theirs(input_ids=sample[None], labels=sample[None]).loss * (len(sample) - 1)
        torch.testing.assert_close(ours(packed).sum(), loss, rtol=1e-6, atol=0)
        loss.backward()
        found = {self.theirs(name): gradient for name, gradient in gradients_of(ours, packed).items()}
        assert_same(found, {name: parameter.grad for name, parameter in theirs.named_parameters()}, atol=1e-4)


@every_shape
@settings(max_examples=6, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), data=st.data())
def test_packed_equals_unpacked(shape, lengths, data):
    """LLaMA-Factory#8277, axolotl#3301: losses changed with packing."""
    model = decoder_of(shape)
    samples = samples_of(*lengths)
    apart = [pack([sample]) for sample in samples]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(samples)), max_size=3)) | {0, len(samples)})
    together = [pack(samples[start:end]) for start, end in pairwise(cuts)]
    expected_losses = torch.cat([model(packed) for packed in apart])
    torch.testing.assert_close(torch.cat([model(packed) for packed in together]), expected_losses, rtol=0, atol=1e-12)
    scale = LossScale.of_minibatch("token_mean", world_size=1, global_tokens=max(1, sum(lengths) - len(lengths)))
    assert_same(gradients_of(model, *together, scale=scale), gradients_of(model, *apart, scale=scale), atol=1e-12)


@every_shape
def test_a_document_does_not_see_its_neighbours(shape):
    """LLaMA-Factory#7318: attention ran across the samples of a pack."""
    model = decoder_of(shape)
    first, second, third = samples_of(6, 5, 7)
    other_first, other_third = samples_of(6, 7, seed=9)
    before = model.logits(pack([first, second, third]))
    after = model.logits(pack([other_first, second, other_third]))
    assert torch.equal(before[6:11], after[6:11])
    assert not torch.equal(before[:6], after[:6])
    assert not torch.equal(before[11:], after[11:])


def test_a_position_does_not_see_what_follows():
    model = decoder_of()
    (sample,) = samples_of(8)
    changed = sample.clone()
    changed[5] = (sample[5] + 1) % QWEN2.vocab
    before, after = model.logits(pack([sample])), model.logits(pack([changed]))
    torch.testing.assert_close(before[:5], after[:5], rtol=0, atol=1e-14)
    assert not torch.allclose(before[5:], after[5:])


def test_positions_count_within_the_document():
    model = decoder_of()
    (sample,) = samples_of(8)
    packed = pack([sample])
    as_if_later = replace(packed, position_ids_T=torch.tensor([0, 1, 2, 3, 40, 41, 42, 43]))
    assert not torch.allclose(model.logits(packed), model.logits(as_if_later))
    # Rotary positions are relative: moving all of them alike changes nothing but roundings (angles are float32).
    moved = replace(packed, position_ids_T=packed.position_ids_T + 100)
    torch.testing.assert_close(model.logits(packed), model.logits(moved), rtol=0, atol=1e-4)


@every_shape
def test_recomputation_changes_no_gradient(shape):
    packed = pack(samples_of(6, 1, 7))
    kept = decoder_of(shape, checkpoint_blocks=False)
    recomputed = decoder_of(shape, checkpoint_blocks=True)
    assert torch.equal(kept(packed), recomputed(packed))
    expected = gradients_of(kept, packed)
    found = gradients_of(recomputed, packed)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def saved_numbers(model, packed):
    """Numbers that the graph of a forward keeps, parameters aside."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    kept = {}

    def note(tensor):
        if tensor.data_ptr() not in parameters:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        token_losses_T = model(packed)
    assert token_losses_T.requires_grad
    return sum(kept.values())


def test_recomputation_keeps_one_tensor_a_block():
    packed = pack(samples_of(64))
    deep = replace(QWEN2, layers=6)
    kept, kept_deep = (saved_numbers(Decoder(shape, checkpoint_blocks=False), packed) for shape in (QWEN2, deep))
    few, few_deep = (saved_numbers(Decoder(shape, checkpoint_blocks=True), packed) for shape in (QWEN2, deep))
    # What a block more keeps: its input (T x H), against the activations of norms, projections and the FFN.
    assert few_deep - few == 4 * 64 * QWEN2.hidden
    assert kept_deep - kept > 4 * (few_deep - few)


@every_shape
@pytest.mark.parametrize("checkpoint_blocks", [True, False])
def test_a_padding_microbatch_leaves_gradients_of_zeros(shape, checkpoint_blocks):
    model = decoder_of(shape, checkpoint_blocks=checkpoint_blocks)
    packed = pack([], allow_empty=True)
    assert model(packed).shape == (0,)
    for kind, count in (("token_mean", "global_tokens"), ("sequence_mean", "global_sequences")):
        scale = LossScale.of_minibatch(kind, world_size=2, **{count: 5})
        for name, gradient in gradients_of(model, packed, scale=scale).items():
            assert gradient is not None, name
            assert not gradient.any(), name


def test_without_gradients_it_runs_as_well():
    model = decoder_of()
    packed = pack(samples_of(6, 7))
    with torch.no_grad():
        token_losses_T = model(packed)
    assert not token_losses_T.requires_grad
    torch.testing.assert_close(token_losses_T, model(packed).detach(), rtol=0, atol=0)


def test_the_loss_is_computed_in_chunks():
    packed = pack(samples_of(6, 7))
    whole, chunked = decoder_of(), decoder_of(loss_chunk_tokens=4)
    torch.testing.assert_close(chunked(packed), whole(packed), rtol=0, atol=1e-12)


def test_narrow_weights_give_losses_in_float32():
    model = Decoder(QWEN2, dtype=torch.bfloat16)
    packed = pack(samples_of(6, 7))
    assert model(packed).dtype == torch.float32
    gradients = gradients_of(model, packed)
    assert {gradient.dtype for gradient in gradients.values()} == {torch.bfloat16}


def test_heads_of_odd_width_are_refused():
    with pytest.raises(InputError, match="head_dim: 5: must be even"):
        Decoder(replace(QWEN2, head_dim=5))


class TestInitialization:
    def test_the_seed_alone_decides(self):
        torch.manual_seed(1)
        one = Decoder(QWEN3)
        torch.manual_seed(2)
        state = torch.get_rng_state()
        again, other = Decoder(QWEN3), Decoder(QWEN3)
        other.initialize(1)
        assert torch.equal(torch.get_rng_state(), state), "random numbers of the user's were taken"
        weights = one.state_dict()
        assert all(torch.equal(weights[name], weight) for name, weight in again.state_dict().items())
        assert not any(
            torch.equal(weights[name], weight) for name, weight in other.state_dict().items() if weight.ndim == 2
        )

    def test_weights_have_the_deviations_that_keep_the_stream_in_bounds(self):
        model = Decoder(replace(QWEN2, layers=8, hidden=64, ffn=256))
        block = model.blocks[3]
        assert block.ffn.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert block.ffn.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
        assert block.attention.output.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
        assert not block.attention.query.bias.any()
        assert bool((block.ffn_norm.weight == 1).all())

    def test_a_decoder_made_on_the_meta_device_is_filled_later(self):
        with torch.device("meta"):
            late = Decoder(QWEN2)
        late.to_empty(device="cpu")
        late.initialize(0)
        expected = Decoder(QWEN2).state_dict()
        assert all(torch.equal(weight, expected[name]) for name, weight in late.state_dict().items())

    def test_a_sharded_decoder_gets_its_part_of_the_same_weights(self):
        fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
        # The last of five ranks: of some parameters it gets less than the others, of the smallest nothing.
        ranks, rank, shape = 5, 4, replace(QWEN3, hidden=18)
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=ranks)
        try:
            mesh = dist.init_device_mesh("cpu", (ranks,))
            sharded, whole = Decoder(shape), Decoder(shape)
            for unit in (*sharded.blocks, sharded):
                fully_shard(unit, mesh=mesh)
            sharded.initialize(5)
            whole.initialize(5)
            for name, expected in whole.named_parameters():
                rows = -(-len(expected) // ranks)
                part = expected[rank * rows : (rank + 1) * rows]
                assert torch.equal(sharded.get_parameter(name).to_local(), part), name
        finally:
            dist.destroy_process_group()


# Of each rank, the samples of each microbatch: tokens are uneven, and the second rank ends on padding.
SPLIT = (((0, 1), (2, 3), (4,)), ((5,), (), ()))


def gradients_of_a_rank(shape, kind):
    """Runs on every rank of two: the whole gradients after FSDP2's own reduction of uneven microbatches."""
    samples = samples_of(9, 3, 14, 2, 1, 6)
    with torch.device("meta"):
        model = Decoder(shape, dtype=torch.float64)
    mesh = dist.init_device_mesh("cpu", (2,))
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh)
    model.to_empty(device="cpu")
    model.initialize(3)
    packs = [pack([samples[i] for i in chosen], allow_empty=True) for chosen in SPLIT[dist.get_rank()]]
    tokens, sequences = count_over_ranks(
        sum(packed.loss_tokens for packed in packs), sum(packed.loss_documents for packed in packs)
    )
    scale = LossScale.of_minibatch(kind, world_size=2, global_tokens=tokens, global_sequences=sequences)
    found = gradients_of(model, *packs, scale=scale)
    return {name: gradient.full_tensor().tolist() for name, gradient in found.items()}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("shape", "kind"), [(QWEN2, "token_mean"), (TIED, "sequence_mean")])
def test_under_fsdp2_uneven_ranks_have_the_gradient_of_one_big_batch(shape, kind):
    """torchtitan#1842: what FSDP's mean over ranks does to losses of uneven tokens."""
    whole = Decoder(shape, dtype=torch.float64)
    whole.initialize(3)
    packed = pack(samples_of(9, 3, 14, 2, 1, 6))
    scale = LossScale.of_minibatch(
        kind, world_size=1, global_tokens=packed.loss_tokens, global_sequences=packed.loss_documents
    )
    expected = gradients_of(whole, packed, scale=scale)
    for found in run(gradients_of_a_rank, shape, kind):
        as_tensors = {name: torch.tensor(gradient, dtype=torch.float64) for name, gradient in found.items()}
        assert_same(as_tensors, expected, atol=1e-14)
