"""Troubles that users of sharded training reported, and what is right in each. The rest of them is tested elsewhere:

- counts that differ over ranks, ranks without samples, partial minibatches, modules that some ranks use (verl#6176,
  DeepSpeed#2223, DeepSpeed#7998, torchtitan#4777, prime-rl#1542, torchtitan#1618): `test_uneven`, `test_handles`;
- errors on one rank, out of memory, time-outs that say nothing (composer#3510, torchtitan#1092): `test_failures`;
- unsharded gradients kept for accumulation (torchtune#1275): `test_memory`.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ranks import Ranks, run  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402
from toy_models import Toy, alone, draw, gradients_alone, loss_of, mesh_of, seeded, shard, sharded  # noqa: E402

import odcrt  # noqa: E402
from odcrt.errors import HiddenCollectiveWarning  # noqa: E402

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 10.0


def numbered(number):
    return draw(torch.Generator().manual_seed(number))


# --- trl#6698: a collective hidden in forward, while ranks have different numbers of microbatches ---


def reduce_in_forward(counts, deadline_s):
    """A model that averages something over ranks whenever it is run; it has been warned of that."""
    warnings.simplefilter("ignore", HiddenCollectiveWarning)
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=deadline_s)
    model.blocks[1].register_forward_pre_hook(lambda *_: dist.all_reduce(torch.ones(3)))
    with odc.minibatch():
        for number in range(counts[dist.get_rank()]):
            loss_of(model, numbered(number)).backward()


def test_a_hidden_collective_in_uneven_microbatches_ends_with_the_late_rank_named():
    with Ranks(reduce_in_forward, (3, 2), 1.5, timeout_s=30) as started:
        start_s = time.monotonic()
        first, second = started.wait(20.0)
    assert time.monotonic() - start_s < 1.5 + 5.0
    assert second.error_type == "DeadlineExceeded"
    assert "rank 0: compute of unit 2, minibatch 0, microbatch 2, 6 tokens" in second.error
    assert "without a collective of its own, such as an all-reduce inside forward" in second.error
    assert first.exit_code == 1, "once its partner has ended, gloo lets go of it"


def warn_of_collectives():
    model = sharded(dist.get_world_size())
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    found = []
    for minibatch in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with odc.minibatch():
                for number in range(3):
                    loss_of(model, numbered(number)).backward()
                    if minibatch in {1, 2}:
                        dist.all_reduce(torch.ones(1))
        # Between minibatches ranks are in step.
        dist.all_reduce(torch.ones(1))
        found += [(minibatch, w.category.__name__, str(w.message), Path(w.filename).name) for w in caught]
    odc.close()
    return found


def test_a_hidden_collective_in_even_microbatches_is_told_once():
    for found in run(warn_of_collectives):
        assert len(found) == 1
        minibatch, category, text, filename = found[0]
        assert minibatch == 1
        assert category == HiddenCollectiveWarning.__name__
        assert text.startswith("3 collectives of torch.distributed ran inside minibatch 1.")
        assert filename == Path(__file__).name, "the warning points to the user's own loop"


# --- pytorch#170862, torchtitan#766: norms are those of all ranks, one without a gradient included ---


def clip():
    """A gradient that only rank 0 owns rows of, and blocks that nobody used."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = seeded(Toy)
    model = shard(alone(whole), mesh=mesh_of(ranks))
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    plan = [[(numbered(0), {"path": [0]})], [], [(numbered(1), {"path": [0]}), (numbered(2), {"path": []})]]
    with odc.minibatch():
        for tokens, options in plan[rank]:
            loss_of(model, tokens, **options).backward()
    expected = gradients_alone(whole, [one for part in plan for one in part], divide_by=ranks)
    for name, parameter in whole.named_parameters():
        parameter.grad = expected[name]
    norms = [clip_grad_norm_(each.parameters(), 0.01) for each in (model, whole)]
    gain = [float(model.blocks[0].gain.grad.full_tensor()), float(whole.blocks[0].gain.grad)]
    odc.close()
    return float(norms[0].full_tensor()), float(norms[1]), gain


def test_norms_are_global_and_clipping_is_the_same_on_all_ranks():
    for found, expected, (ours, theirs) in run(clip, ranks=3):
        assert found == pytest.approx(expected, rel=1e-5)
        assert ours == pytest.approx(theirs, rel=1e-4)


# --- cosmos-framework#161: what was asked for shows in counts ---


class Spans:
    """Keeps what it is told."""

    def __init__(self):
        self.found = []

    def span(self, name, unit, start_s, end_s, moved_bytes, /):
        assert end_s >= start_s
        self.found.append((name, unit, moved_bytes))


def count_transfers(counts):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = sharded(ranks, blocks=4)
    spans = Spans()
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S, recorder=spans)
    for _ in range(2):
        with odc.minibatch():
            for number in range(counts[rank]):
                loss_of(model, numbered(number), extra=True).backward()
    odc.close()
    return odc.counters, spans.found


def test_transfers_and_barriers_are_as_few_as_they_can_be():
    """U units: 2U - 1 gathers, as the root stays, and U scatter-accumulates a microbatch; 2 barriers a minibatch."""
    counts, units, ranks = (0, 1, 3), 5, 3
    # Elements of a rank's shard: see `test_layout` for a block; the root has two parameters of 11 x 5.
    numel = [2 * 4 * 5, *[1 + 3 * 5 + 3 + 2 * 7 + 2 * 5 + 2] * 4]
    for (counters, spans), count in zip(run(count_transfers, counts, ranks=ranks), counts, strict=True):
        assert counters == {"transfers": 2 * count * (3 * units - 1), "barriers": 2 * 2}
        names = [name for name, _, _ in spans]
        assert {name: names.count(name) for name in set(names)} | {"gather": 0, "scatter_accumulate": 0} == {
            "publish": 2,
            "wait": 4,
            "settle": 2,
            "gather": 0,
            "scatter_accumulate": 0,
        }
        assert names.count("gather") == 2 * count * (2 * units - 1)
        assert names.count("scatter_accumulate") == 2 * count * units
        for unit in range(units):
            gathers = 1 if unit == 0 else 2
            moved = 4 * numel[unit] * (ranks - 1)
            assert spans.count(("gather", unit, moved)) == 2 * count * gathers
            assert spans.count(("scatter_accumulate", unit, moved)) == 2 * count
        assert spans.count(("publish", -1, 4 * sum(numel))) == 2
        order = [name for name in names if name in {"publish", "wait", "settle"}]
        assert order == ["publish", "wait", "wait", "settle"] * 2


# --- torchtitan#291, Lightning#16815: training goes on at another number of ranks ---


def train_and_save(folder, steps):
    model = sharded(dist.get_world_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return _train(model, optimizer, folder, steps=steps, save=True)


def load_and_train(folder, steps):
    model = sharded(dist.get_world_size(), seed=99)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    return _train(model, optimizer, folder, steps=steps, save=False)


def _train(model, optimizer, folder, *, steps, save):
    """Four samples a step, dealt to the ranks in turns; the state is saved and read under the handle."""
    warnings.simplefilter("default")  # of torch's own, about what it writes checkpoints with
    rank, ranks = dist.get_rank(), dist.get_world_size()
    odc = odcrt.on_demand(model, deadline_s=DEADLINE_S)
    for step in steps:
        with odc.minibatch():
            for number in range(rank, 4, ranks):
                (loss_of(model, numbered(4 * step + number), extra=True) * ranks / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    if save:
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(states, checkpoint_id=folder)
    odc.close()
    return {name: parameter.full_tensor().tolist() for name, parameter in model.named_parameters()}


def test_a_checkpoint_of_three_ranks_is_read_by_two(tmp_path):
    run(train_and_save, tmp_path, range(3), ranks=3)
    resumed = run(load_and_train, tmp_path, range(3, 6), ranks=2)[0]
    straight = run(train_and_save, tmp_path / "other", range(6), ranks=3)[0]
    for name, found in resumed.items():
        torch.testing.assert_close(torch.tensor(found), torch.tensor(straight[name]), rtol=1e-4, atol=1e-5)
