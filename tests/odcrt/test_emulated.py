"""Emulated compute: sleeps that add up exactly, and gradients that tell whether every contribution arrived."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import odcrt  # noqa: E402
from odcrt.workload.emulated import EmulatedDecoder, EmulatedMicrobatch, Pacer, check_gradients  # noqa: E402
from odcsim.errors import RunError  # noqa: E402
from odcsim.model_shape import ModelShape  # noqa: E402
from odcsim.schedule import decoder_visits  # noqa: E402

pytestmark = pytest.mark.timeout(60)

SHAPE = ModelShape("toy", layers=3, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=12, vocab=31)


class Time:
    """A clock that moves when somebody sleeps, which takes a little longer than asked for."""

    def __init__(self, overshoot_s=0.0):
        self.now_s = 100.0
        self.away_s = 0.0
        self.overshoot_s = overshoot_s

    def sleep(self, duration_s):
        self.now_s += duration_s + self.overshoot_s

    def transfer(self, duration_s):
        self.now_s += duration_s
        self.away_s += duration_s

    def pacer(self):
        return Pacer(lambda: self.away_s, clock=lambda: self.now_s, sleep=self.sleep)


# Sleeping


def test_overshoots_do_not_add_up():
    time = Time(overshoot_s=0.004)
    pacer = time.pacer()
    pacer.begin()
    for _ in range(50):
        pacer.spend(0.01)
    assert time.now_s - 100.0 == pytest.approx(50 * 0.01 + 0.004)


def test_transfers_take_their_time_beside_compute():
    time = Time()
    time.transfer(5.0)  # before it begins
    pacer = time.pacer()
    pacer.begin()
    pacer.spend(0.1)
    time.transfer(0.3)
    pacer.spend(0.1)
    assert time.now_s == pytest.approx(105.0 + 0.1 + 0.3 + 0.1)


def test_work_of_ones_own_is_made_up_for_as_far_as_there_is_compute():
    time = Time()
    pacer = time.pacer()
    pacer.begin()
    time.now_s += 0.15
    pacer.spend(0.1)  # too late already: no sleep
    assert time.now_s == pytest.approx(100.15)
    pacer.spend(0.1)
    assert time.now_s == pytest.approx(100.2)


def test_a_new_minibatch_owes_nothing():
    time = Time()
    pacer = time.pacer()
    pacer.begin()
    time.now_s += 10.0
    pacer.spend(0.1)
    pacer.begin()
    pacer.spend(0.1)
    assert time.now_s == pytest.approx(110.1)


# The decoder


class Spent:
    """Stands in for a pacer, and keeps what was spent."""

    def __init__(self):
        self.times_s = []

    def spend(self, duration_s):
        self.times_s.append(duration_s)


def decoder_of(spent):
    model = EmulatedDecoder(SHAPE, spent)
    model.initialize()
    return model


def test_parameters_are_those_of_the_shape():
    model = decoder_of(Spent())
    assert [block.weight.numel() for block in model.blocks] == [SHAPE.parameters_per_block] * 3
    assert model.weight.numel() == SHAPE.root_parameters
    assert sum(parameter.numel() for parameter in model.parameters()) == SHAPE.total_parameters


def test_visits_are_spent_in_the_order_of_the_schedule():
    spent = Spent()
    visits = decoder_visits(SHAPE.layers)
    microbatch = EmulatedMicrobatch.of(7, slope=1.0, time_s_V=range(len(visits)))
    decoder_of(spent)(microbatch).backward()
    assert spent.times_s == list(range(len(visits)))
    assert microbatch.token_ids_T.shape == (7,)


def test_every_element_gets_the_same_gradient():
    model = decoder_of(Spent())
    for slope in (0.25, 0.5):
        model(EmulatedMicrobatch.of(4, slope=slope, time_s_V=[0.0] * 10)).backward()
    for parameter in model.parameters():
        assert torch.equal(parameter.grad, torch.full_like(parameter, 0.75))


def train_with_a_loss(slopes_of_ranks, lost):
    """One minibatch on demand; a rank whose `lost` is told leaves its last microbatch out."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = EmulatedDecoder(SHAPE, Spent(), device="meta")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    model.initialize()
    odc = odcrt.on_demand(model, deadline_s=20.0)
    slopes = slopes_of_ranks[dist.get_rank()]
    with odc.minibatch():
        for slope in slopes[:-1] if lost == dist.get_rank() else slopes:
            model(EmulatedMicrobatch.of(4, slope=slope, time_s_V=[0.0] * 10)).backward()
    try:
        check_gradients(model, expected=1.0)
    except RunError as error:
        return str(error)
    finally:
        odc.close()
    return "as expected"


# Three ranks, six microbatches: their mean over ranks is 1.
SLOPES = [[0.5, 0.25, 0.75], [1.0], [0.25, 0.25]]


def test_gradients_add_up_to_one_over_ranks():
    assert run(train_with_a_loss, SLOPES, None, ranks=3) == ["as expected"] * 3


def test_a_lost_contribution_is_found_on_every_rank():
    found = run(train_with_a_loss, SLOPES, 1, ranks=3)
    # Blocks are checked first, and have a part on every rank. Without rank 1, 2 of 3 are left.
    assert (
        found
        == [
            "parameter weight has gradients from 0.666667 to 0.666667 after a minibatch, and not 1: contributions were "
            "lost, or counted twice"
        ]
        * 3
    )
