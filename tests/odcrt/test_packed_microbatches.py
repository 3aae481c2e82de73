"""Packed microbatches: what stands where, and that Hugging Face models keep documents apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from odcrt.data.losses import packed_cross_entropy  # noqa: E402
from odcrt.data.packing import IGNORED_LABEL, PackedMicrobatch, pack  # noqa: E402
from odcsim.errors import InputError  # noqa: E402

NO = IGNORED_LABEL


def test_documents_follow_each_other_and_labels_stay_inside_of_them():
    packed = pack([[5, 6, 7], [8], [9, 1]])
    assert packed.token_ids_T.tolist() == [5, 6, 7, 8, 9, 1]
    assert packed.position_ids_T.tolist() == [0, 1, 2, 0, 0, 1]
    assert packed.labels_T.tolist() == [6, 7, NO, NO, 1, NO]
    assert packed.document_lengths == (3, 1, 2)
    assert packed.document_ids_T.tolist() == [0, 0, 0, 1, 2, 2]
    assert (packed.tokens, packed.squared_tokens) == (6, 14)
    assert packed.loss_tokens_of_documents == (2, 0, 1)
    assert (packed.loss_tokens, packed.loss_documents) == (3, 2)
    assert packed.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert packed.cu_seqlens.dtype == torch.int32


def test_labels_of_a_sample_stand_for_the_token_at_their_own_place():
    # The prompt (5, 6) is not to be learned; its last token predicts the answer's first.
    packed = pack([[5, 6, 7, 8], [2, 3]], labels=[[NO, NO, 7, 8], [2, NO]])
    assert packed.labels_T.tolist() == [NO, 7, 8, NO, NO, NO]
    assert packed.loss_tokens_of_documents == (2, 0)
    assert (packed.loss_tokens, packed.loss_documents) == (2, 1)


@given(st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=20), min_size=1, max_size=8))
def test_no_token_is_lost_or_added(samples: list[list[int]]):
    """trl#4632: a packer lost tokens without a word."""
    packed = pack(samples)
    assert [document.tolist() for document in torch.split(packed.token_ids_T, list(packed.document_lengths))] == samples
    assert packed.loss_tokens == sum(len(sample) - 1 for sample in samples)


@pytest.mark.parametrize(
    "row",
    [
        torch.tensor([3, 4], dtype=torch.int32),
        np.array([3, 4], dtype=np.uint16),
        np.array([3, 4]),
        (3, 4),
    ],
)
def test_samples_may_be_whole_numbers_of_any_type(row):
    if isinstance(row, np.ndarray):
        row.setflags(write=False)  # As a memory-mapped data set hands them out.
    packed = pack([row, row], labels=[row, row])
    assert packed.token_ids_T.tolist() == [3, 4, 3, 4]
    assert packed.labels_T.tolist() == [4, NO, 4, NO]
    assert packed.token_ids_T.dtype == packed.labels_T.dtype == torch.int64


def test_packing_leaves_the_samples_alone():
    sample = torch.tensor([3, 4])
    pack([sample])
    assert sample.tolist() == [3, 4]


def test_the_mask_lets_a_position_attend_to_its_document_up_to_itself():
    packed = pack([[1, 2], [3]])
    assert packed.block_causal_mask_TT().tolist() == [[True, False, False], [True, True, False], [False, False, True]]
    low = -torch.inf
    added = packed.block_causal_mask_TT(torch.float64)
    assert added.dtype == torch.float64
    assert added.tolist() == [[0, low, low], [0, 0, low], [low, low, 0]]


def test_a_microbatch_without_samples_must_be_asked_for():
    with pytest.raises(InputError, match=r"samples: \[\]: no samples; .* allow_empty=True"):
        pack([])
    packed = pack([], allow_empty=True)
    assert packed.is_padding
    assert (packed.tokens, packed.document_lengths, packed.loss_tokens, packed.loss_documents) == (0, (), 0, 0)
    assert packed.cu_seqlens.tolist() == [0]
    assert packed.document_ids_T.tolist() == []
    assert packed.block_causal_mask_TT().shape == (0, 0)
    assert not pack([[1]]).is_padding


@pytest.mark.parametrize(
    ("samples", "labels", "message"),
    [
        ([[1], []], None, r"samples\[1\]: \[\]: a sample must have at least 1 token"),
        ([[1.5, 2.5]], None, r"samples\[0\]: .*float32.*whole numbers in one row"),
        ([[True, False]], None, r"samples\[0\]: .*bool.*whole numbers in one row"),
        ([torch.ones(2, 2, dtype=torch.int64)], None, r"samples\[0\]: .*\[2, 2\].*whole numbers in one row"),
        (["text"], None, r"samples\[0\]: 'text': must be whole numbers in one row"),
        ([[[1], [2, 3]]], None, r"samples\[0\]: .*whole numbers in one row"),
        ([[2**70]], None, r"samples\[0\]: .*whole numbers in one row"),
        ([[1], [2]], [[1]], "number of labels: 1: must be as many as the 2 samples"),
        ([[1, 2]], [[1]], r"length of labels\[0\]: 1: must be as many as the 2 tokens"),
        ([[1, 2]], [[0.5, 1.0]], r"labels\[0\]: .*whole numbers in one row"),
    ],
)
def test_a_wrong_input_is_named(samples, labels, message):
    with pytest.raises(InputError, match=message):
        pack(samples, labels=labels)


def test_a_microbatch_that_contradicts_itself_cannot_be_made():
    whole = pack([[1, 2], [3]])
    with pytest.raises(AssertionError, match="labels_T has shape"):
        PackedMicrobatch(
            token_ids_T=whole.token_ids_T,
            position_ids_T=whole.position_ids_T,
            document_lengths=whole.document_lengths,
            labels_T=whole.labels_T[:2],
        )


@pytest.fixture(params=["eager", "sdpa"])
def qwen2(request):
    """A tiny Hugging Face model, by attention implementation."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM._from_config(config, attn_implementation=request.param)
    return SimpleNamespace(run=lambda packed, **how: model(**packed.to_model_inputs(**how)).logits, model=model)


@pytest.mark.parametrize("mask_dtype", [None, torch.float32])
def test_a_hugging_face_model_keeps_documents_apart(qwen2, mask_dtype):
    """LLaMA-Factory#7318, LLaMA-Factory#8277: attention ran across the samples of a pack."""
    samples = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8]]
    packed = pack(samples)
    together = packed.from_model_output(qwen2.run(packed, mask_dtype=mask_dtype))
    apart = torch.cat([pack([sample]).from_model_output(qwen2.run(pack([sample]))) for sample in samples])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mask_dtype", [None, torch.float32])
def test_a_padding_microbatch_runs_through_a_hugging_face_model(qwen2, mask_dtype):
    packed = pack([], allow_empty=True)
    logits_TV = packed.from_model_output(qwen2.run(packed, mask_dtype=mask_dtype))
    assert logits_TV.shape == (0, 40)
    packed_cross_entropy(logits_TV, packed).sum().backward()
    for name, parameter in qwen2.model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name
