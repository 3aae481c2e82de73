"""The balancing in PyTorch's hands: tensors of lengths, a loader, and packs that learn what samples alone do."""

from __future__ import annotations

from itertools import chain, islice

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from odcrt.data.losses import LossScale  # noqa: E402
from odcrt.data.packing import pack  # noqa: E402
from odcrt.data.sampler import BalancedBatchSampler, SamplerWarning  # noqa: E402
from odcrt.workload.decoder import Decoder  # noqa: E402
from odcsim.drop_in import (  # noqa: E402
    micro_batch_indices,
    pack_indices,
    plan_lengths,
    seqlen_balanced_partitions,
    token_cost,
)
from odcsim.errors import InputError  # noqa: E402
from odcsim.model_shape import ModelShape  # noqa: E402

torch.set_num_threads(1)  # Tensors are tiny here, and threads take turns on a busy machine.

SHAPE = ModelShape(name="tiny", layers=2, hidden=16, heads=4, kv_heads=2, head_dim=4, ffn=24, vocab=40)
LENGTHS = torch.randint(1, 40, (50,), generator=torch.Generator().manual_seed(3)).tolist()


class Samples(Dataset):
    """Token ids, all of a sample the same number: its index."""

    def __getitem__(self, index):
        return torch.full((LENGTHS[index],), index)


def sampler_of(rank, **settings):
    given = {"world_size": 2, "samples_per_minibatch": 12, "max_tokens": 60, "cost": token_cost(), **settings}
    return BalancedBatchSampler(LENGTHS, rank=rank, **given)


def indices_of(packed):
    return [int(row[0]) for row in packed.token_ids_T.split(list(packed.document_lengths))]


def test_tensors_do_as_well_as_lists():
    lengths = torch.tensor(LENGTHS)
    assert plan_lengths(lengths, ranks=3) == plan_lengths(LENGTHS, ranks=3)
    work = 24576 * lengths + lengths**2
    assert seqlen_balanced_partitions(work, 4, equal_size=True) == seqlen_balanced_partitions(work.tolist(), 4, True)  # noqa: FBT003 - verl's signature
    assert micro_batch_indices(lengths, 60) == micro_batch_indices(LENGTHS, 60)
    assert pack_indices(list(lengths), 60) == pack_indices(LENGTHS, 60)


@pytest.mark.parametrize("policy", ["independent", "lockstep"])
def test_a_loader_of_microbatches_and_where_minibatches_end(policy):
    seen = []
    for rank in range(2):
        sampler = sampler_of(rank, policy=policy)
        minibatches = list(sampler_of(rank, policy=policy))
        counts = sampler.microbatch_counts()
        loader = DataLoader(
            Samples(), batch_sampler=sampler.microbatches(), collate_fn=lambda rows: pack(rows, allow_empty=True)
        )
        assert (len(counts), len(loader)) == (5, sum(counts))
        packs = iter(loader)
        for expected, count in zip(minibatches, counts, strict=True):
            found = [indices_of(packed) for packed in islice(packs, count)]
            assert found == expected
            assert all(sum(LENGTHS[sample] for sample in samples) <= 60 for samples in found)
            seen += chain.from_iterable(found)
        assert next(packs, None) is None
    assert sorted(seen) == list(range(50))


def test_equal_counts_for_collectives():
    counts = [sampler_of(rank, policy="lockstep").microbatch_counts() for rank in range(2)]
    assert counts[0] == counts[1]


def test_groups_stay_on_one_rank():
    def ranks_of_groups(**settings):
        samplers = [sampler_of(rank, group_size=4, policy="independent", **settings) for rank in range(2)]
        found = {}
        for minibatches in zip(*samplers, strict=True):
            for rank, microbatches in enumerate(minibatches):
                for sample in chain.from_iterable(microbatches):
                    found.setdefault(sample // 4, set()).add(rank)
        return list(found.values())

    with pytest.warns(SamplerWarning, match="50 samples make no whole number of groups of 4"):
        together = ranks_of_groups(keep_groups=True)
    # Only the groups that minibatches cut can be on two ranks.
    with pytest.warns(SamplerWarning, match="50 samples make no whole number of groups of 4"):
        apart = ranks_of_groups()
    assert sum(len(ranks) > 1 for ranks in together) < sum(len(ranks) > 1 for ranks in apart)
    with pytest.raises(InputError, match="keep_groups: True: lb-mini cannot keep the samples of a group on one rank"):
        sampler_of(0, group_size=4, keep_groups=True, policy="lb-mini")
    with pytest.warns(SamplerWarning, match="keep_groups has no effect: group_size is 1"):
        sampler_of(0, keep_groups=True, policy="independent")


@pytest.mark.parametrize("seq_length", [40, 64, 200])
def test_bins_learn_what_samples_alone_do(seq_length):
    """LLaMA-Factory#8277, axolotl#3301: losses changed with packing."""
    torch.manual_seed(0)
    model = Decoder(SHAPE, dtype=torch.float64)
    samples = [torch.randint(0, SHAPE.vocab, (length,)) for length in LENGTHS]
    labels = sum(LENGTHS) - len(LENGTHS)
    scale = LossScale.of_minibatch("token_mean", world_size=1, global_tokens=labels)

    def learned(bins):
        """Loss of each sample, and the gradients of the whole."""
        model.zero_grad()
        losses = {}
        for indices in bins:
            packed = pack([samples[index] for index in indices])
            token_losses_T = model(packed)
            scale.scaled_loss(token_losses_T, packed).backward()
            parts = token_losses_T.detach().split(list(packed.document_lengths))
            losses.update(zip(indices, (part.sum() for part in parts), strict=True))
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        return torch.stack([losses[index] for index in range(len(samples))]), gradients

    bins = pack_indices(LENGTHS, seq_length).bins
    assert len(bins) < len(LENGTHS)
    losses, gradients = learned(bins)
    expected_losses, expected_gradients = learned([[index] for index in range(len(samples))])
    torch.testing.assert_close(losses, expected_losses, rtol=0, atol=1e-11)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-11)
