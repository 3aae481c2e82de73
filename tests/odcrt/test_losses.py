"""Loss normalization: the same gradient as one big batch, whatever the split; and the head's loss in chunks."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from odcrt.data.losses import LossScale, chunked_head_loss, count_over_ranks, packed_cross_entropy  # noqa: E402
from odcrt.data.packing import IGNORED_LABEL, pack  # noqa: E402
from odcsim.errors import InputError, UnknownNameError  # noqa: E402

torch.set_num_threads(1)  # Tensors are tiny here, and threads take turns on a busy machine.

VOCAB = 11
CONSTANT = 37.5
every_kind = pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant"])


class TinyModel(nn.Module):
    """A bigram model: documents cannot see each other, so that a split changes nothing but the normalization."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(VOCAB, 5, dtype=torch.float64, generator=generator))
        self.head = nn.Parameter(torch.randn(VOCAB, 5, dtype=torch.float64, generator=generator))

    def forward(self, packed):
        logits_TV = torch.tanh(self.embedding[packed.token_ids_T]) @ self.head.T
        return packed_cross_entropy(logits_TV, packed)


def plain_loss(kind, losses_of_documents):
    """The definition, document by document; each a list of the losses of its labels."""
    labels = [loss for document in losses_of_documents for loss in document]
    if kind == "token_mean":
        return sum(labels) / len(labels)
    if kind == "constant":
        return sum(labels) / CONSTANT
    means = [sum(document) / len(document) for document in losses_of_documents if document]
    return sum(means) / len(means)


def one_big_batch(kind, samples, labels):
    """Loss and gradients of the definition, computed sample by sample."""
    model = TinyModel()
    documents = []
    for sample, label in zip(samples, labels, strict=True):
        packed = pack([sample], labels=[label])
        token_losses_T = model(packed)
        documents.append([token_losses_T[t] for t in range(packed.tokens) if packed.labels_T[t] != IGNORED_LABEL])
    loss = plain_loss(kind, documents)
    loss.backward()
    return loss.item(), [parameter.grad for parameter in model.parameters()]


def scale_of(kind, packs_of_ranks, **how):
    return LossScale.of_minibatch(
        kind,
        global_tokens=sum(packed.loss_tokens for packs in packs_of_ranks for packed in packs),
        global_sequences=sum(packed.loss_documents for packs in packs_of_ranks for packed in packs),
        constant=CONSTANT if kind == "constant" else None,
        world_size=len(packs_of_ranks),
        **how,
    )


def split_run(scale, packs_of_ranks, *, divide_by):
    """Loss and gradients as ranks find them: each sums its microbatches', then all are summed and divided."""
    totals, loss = [torch.zeros_like(parameter) for parameter in TinyModel().parameters()], 0.0
    for packs in packs_of_ranks:
        model = TinyModel()
        for packed in packs:
            part = scale.scaled_loss(model(packed), packed)
            part.backward()
            loss += part.item()
        for total, parameter in zip(totals, model.parameters(), strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad)
    return loss / divide_by, [total / divide_by for total in totals]


@st.composite
def split_minibatches(draw):
    """Samples, their labels, and which sample goes into which microbatch of which rank."""
    samples = draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7), min_size=1, max_size=7))
    labels = [[token if draw(st.booleans()) else IGNORED_LABEL for token in sample] for sample in samples]
    samples.append([1, 2, 3])
    labels.append([1, 2, 3])  # Something is learned in every minibatch.
    ranks = draw(st.integers(1, 4))
    packs = [[[] for _ in range(draw(st.integers(0, 3)))] for _ in range(ranks)]
    packs[draw(st.integers(0, ranks - 1))].append([])
    places = [microbatch for microbatches in packs for microbatch in microbatches]
    for index in range(len(samples)):
        places[draw(st.integers(0, len(places) - 1))].append(index)
    return samples, labels, packs


def packed_split(samples, labels, packs):
    return [
        [
            pack([samples[index] for index in chosen], labels=[labels[index] for index in chosen], allow_empty=True)
            for chosen in microbatches
        ]
        for microbatches in packs
    ]


@every_kind
@settings(max_examples=40, deadline=None)
@given(minibatch=split_minibatches())
def test_every_split_has_the_gradient_of_one_big_batch(kind, minibatch):
    """torchtitan#1842, verl#5625, miles#3231, transformers#34191: uneven tokens changed the gradient."""
    samples, labels, packs = minibatch
    loss, gradients = one_big_batch(kind, samples, labels)
    packs_of_ranks = packed_split(samples, labels, packs)
    ranks = len(packs_of_ranks)
    for divisor in (None, 1.0, 2.5):
        scale = scale_of(kind, packs_of_ranks, gradient_divisor=divisor)
        # FSDP2's default divides by the number of ranks; a sum by nothing; another factor by itself.
        split_loss, split_gradients = split_run(scale, packs_of_ranks, divide_by=divisor or ranks)
        assert split_loss == pytest.approx(loss, rel=1e-12)
        for found, expected in zip(split_gradients, gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_a_mean_over_microbatches_of_means_is_something_else():
    samples = [[1, 2], [3, 4, 5, 6, 7, 8]]
    _, gradients = one_big_batch("token_mean", samples, samples)
    model = TinyModel()
    for sample in samples:
        packed = pack([sample])
        (model(packed).sum() / packed.loss_tokens / len(samples)).backward()
    naive = [parameter.grad for parameter in model.parameters()]
    assert max(float((found - expected).abs().max()) for found, expected in zip(naive, gradients, strict=True)) > 0.01


def test_the_three_normalizations_by_hand():
    packed = pack([[0, 0, 0, 0], [0, 0]])  # Three labels and one.
    losses_T = torch.tensor([1.0, 2.0, 3.0, torch.nan, 8.0, torch.inf])
    by_token = LossScale.of_minibatch("token_mean", world_size=2, global_tokens=7)
    by_sequence = LossScale.of_minibatch("sequence_mean", world_size=2, global_sequences=4)
    by_constant = LossScale.of_minibatch("constant", world_size=2, constant=10)
    assert float(by_token.scaled_loss(losses_T, packed)) == pytest.approx(2 * 14 / 7)
    assert float(by_sequence.scaled_loss(losses_T, packed)) == pytest.approx(2 * (2 + 8) / 4)
    assert float(by_constant.scaled_loss(losses_T, packed)) == pytest.approx(2 * 14 / 10)


@every_kind
def test_a_minibatch_without_labels_teaches_nothing(kind):
    packed = pack([[1, 2, 3]], labels=[[IGNORED_LABEL] * 3])
    model = TinyModel()
    loss = scale_of(kind, [[packed]]).scaled_loss(model(packed), packed)
    loss.backward()
    assert loss.item() == 0
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_narrow_token_losses_are_summed_in_float32():
    packed = pack([[0] * 4097])
    scale = LossScale.of_minibatch("token_mean", world_size=1, global_tokens=4096)
    loss = scale.scaled_loss(torch.ones(4097, dtype=torch.bfloat16), packed)
    assert loss.dtype == torch.float32
    assert loss.item() == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "token_mean", "world_size": 1}, "global_tokens: missing; a token_mean loss is divided by it"),
        ({"kind": "sequence_mean", "world_size": 1, "global_tokens": 4}, "global_sequences: missing"),
        ({"kind": "constant", "world_size": 1, "constant": 0}, "constant: 0: must be finite and more than 0"),
        ({"kind": "constant", "world_size": 1, "constant": float("inf")}, "constant: inf: must be finite"),
        ({"kind": "token_mean", "world_size": 1, "global_tokens": -1}, "global_tokens: -1: must be finite and 0 or"),
        ({"kind": "token_mean", "world_size": 0, "global_tokens": 1}, "world_size: 0: must be at least 1"),
        (
            {"kind": "token_mean", "world_size": 1, "global_tokens": 1, "gradient_divisor": 0},
            "gradient_divisor: 0: must be finite and more than 0",
        ),
    ],
)
def test_a_wrong_scale_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        LossScale.of_minibatch(arguments.pop("kind"), **arguments)


def test_an_unknown_normalization_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="kind: 'token-mean': unknown loss normalization; did you mean 'token_m"):
        LossScale.of_minibatch("token-mean", world_size=1, global_tokens=1)


def test_counts_over_one_rank_are_its_own():
    assert count_over_ranks(12, 3) == (12, 3)


def test_cross_entropy_is_computed_in_float32_and_leaves_out_what_has_no_label():
    packed = pack([[0, 1], [2, 0]])
    logits_TV = torch.randn(4, 3, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    losses_T = packed_cross_entropy(logits_TV, packed)
    log_probabilities = logits_TV.float().log_softmax(-1)
    assert losses_T.dtype == torch.float32
    torch.testing.assert_close(
        losses_T, torch.stack([-log_probabilities[0, 1], torch.zeros(()), -log_probabilities[2, 0], torch.zeros(())])
    )


def head_inputs(tokens, *, dtype, width=6):
    generator = torch.Generator().manual_seed(tokens)
    hidden_TH = torch.randn(tokens, width, generator=generator).to(dtype).requires_grad_()
    weight_VH = torch.randn(VOCAB, width, generator=generator).to(dtype).requires_grad_()
    slope_T = torch.randn(tokens, generator=generator).to(torch.promote_types(dtype, torch.float32))
    ends = sorted({0, tokens, *torch.randint(0, tokens + 1, (3,), generator=generator).tolist()})
    samples = [torch.randint(0, VOCAB, (end - start,), generator=generator) for start, end in pairwise(ends)]
    labels = [torch.where(sample % 4 == 0, IGNORED_LABEL, sample) for sample in samples]
    return hidden_TH, weight_VH, slope_T, pack(samples, labels=labels, allow_empty=True)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 7, 100])
@pytest.mark.parametrize("tokens", [0, 1, 14, 15])
def test_the_chunked_loss_and_its_gradients_equal_the_plain_ones(tokens, chunk_tokens):
    hidden_TH, weight_VH, slope_T, packed = head_inputs(tokens, dtype=torch.float64)
    plain_T = packed_cross_entropy(functional.linear(hidden_TH, weight_VH), packed)
    expected = torch.autograd.grad(plain_T, (hidden_TH, weight_VH), slope_T)
    chunked_T = chunked_head_loss(hidden_TH, weight_VH, packed, chunk_tokens=chunk_tokens)
    found = torch.autograd.grad(chunked_T, (hidden_TH, weight_VH), slope_T)
    torch.testing.assert_close(chunked_T, plain_T, rtol=0, atol=1e-14)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_the_chunked_loss_differentiates_what_is_asked_for_alone():
    hidden_TH, weight_VH, slope_T, packed = head_inputs(9, dtype=torch.float64)
    both = torch.autograd.grad(
        chunked_head_loss(hidden_TH, weight_VH, packed, chunk_tokens=4), (hidden_TH, weight_VH), slope_T
    )
    hidden_alone = chunked_head_loss(hidden_TH, weight_VH.detach(), packed, chunk_tokens=4)
    weight_alone = chunked_head_loss(hidden_TH.detach(), weight_VH, packed, chunk_tokens=4)
    assert torch.equal(torch.autograd.grad(hidden_alone, hidden_TH, slope_T)[0], both[0])
    assert torch.equal(torch.autograd.grad(weight_alone, weight_VH, slope_T)[0], both[1])


def test_the_weights_gradient_is_added_up_in_float32_over_chunks():
    tokens = 2000
    hidden_TH, weight_VH, _, packed = head_inputs(tokens, dtype=torch.bfloat16)
    (found,) = torch.autograd.grad(
        chunked_head_loss(hidden_TH, weight_VH, packed, chunk_tokens=1), weight_VH, torch.ones(tokens)
    )
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden_TH, weight_VH)]
    (expected,) = torch.autograd.grad(packed_cross_entropy(exact[0] @ exact[1].T, packed).sum(), exact[1])
    # In bfloat16, additions to a sum of hundreds would get lost: 8 bits.
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def test_autocast_around_the_loss_changes_nothing():
    hidden_TH, weight_VH, slope_T, packed = head_inputs(9, dtype=torch.float32)
    expected = torch.autograd.grad(chunked_head_loss(hidden_TH, weight_VH, packed), (hidden_TH, weight_VH), slope_T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(chunked_head_loss(hidden_TH, weight_VH, packed), (hidden_TH, weight_VH), slope_T)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_chunked_loss_never_holds_all_logits():
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.numbers = max(self.numbers, result.numel())
            return result

    generator = torch.Generator().manual_seed(0)
    vocab, tokens, chunk_tokens, width = 500, 640, 16, 2
    hidden_TH = torch.randn(tokens, width, generator=generator, requires_grad=True)
    weight_VH = torch.randn(vocab, width, generator=generator, requires_grad=True)
    packed = pack([torch.randint(0, vocab, (tokens,), generator=generator)])
    with Largest() as largest:
        chunked_head_loss(hidden_TH, weight_VH, packed, chunk_tokens=chunk_tokens).sum().backward()
    assert largest.numbers == chunk_tokens * vocab
    with Largest() as largest:
        packed_cross_entropy(functional.linear(hidden_TH, weight_VH), packed)
    assert largest.numbers == tokens * vocab


@pytest.mark.parametrize(
    ("rows", "weight_dtype", "chunk_tokens", "message"),
    [
        (3, torch.float32, 0, "chunk_tokens: 0: must be at least 1"),
        (4, torch.float32, 8, r"hidden_TH: \[4, 2\]: must be one row for each of the microbatch's 3 tokens"),
        (3, torch.bfloat16, 8, "head_weight_VH: torch.bfloat16: must be the torch.float32 of the hidden states"),
    ],
)
def test_a_head_loss_that_does_not_fit_is_refused(rows, weight_dtype, chunk_tokens, message):
    with pytest.raises(InputError, match=message):
        chunked_head_loss(
            torch.zeros(rows, 2),
            torch.zeros(VOCAB, 2, dtype=weight_dtype),
            pack([[1, 2, 3]]),
            chunk_tokens=chunk_tokens,
        )


def test_logits_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"logits_TV: \[1, 3, 5\]: must be one row for each"):
        packed_cross_entropy(torch.zeros(1, 3, 5), pack([[1, 2, 3]]))
