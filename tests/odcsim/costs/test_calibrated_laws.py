"""What calibrated costs come to on a cluster, worked out by hand: as many ranks, more of them, nodes, processors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from known_costs import known_costs, term, transfer_cost

from odcsim.costs.calibrated import (
    CalibratedTransfers,
    StepCosts,
    TransferPair,
    calibrated_compute,
    visit_kind,
)
from odcsim.costs.network import Fabric, Tier
from odcsim.costs.state import ShardState
from odcsim.schedule import decoder_visits

# A catalog's links; what was measured takes their place.
INSIDE = Tier(bandwidth_bytes_per_s=1e6, latency_s=0.5, collective_efficiency=0.5, one_sided_efficiency=0.25)
BETWEEN = Tier(bandwidth_bytes_per_s=1e3, latency_s=2.0, collective_efficiency=0.5, one_sided_efficiency=0.25)
# Publishing moves 6 bytes a parameter, settling 16, the optimizer 32; 80% of the bandwidth is reached.
SHARD = ShardState(
    parameters=1000.0, memory_bandwidth_bytes_per_s=1e6, published_bytes_per_parameter=2, optimizer_states=2
)
PAIR = TransferPair(gather=transfer_cost(0.01, 1e-4), scatter_accumulate=transfer_cost(0.02, 2e-4))
STEPS = StepCosts(meeting=term(0.003), publish=term(0.5), settle=term(0.6), optimizer=term(0.7))
UNIT_BYTES = 8000.0


def origin(ranks=4, **changes):
    return known_costs(ranks).origin.model_copy(update=changes)


def transfers(*, ranks=4, ranks_per_node=None, transport="collective", parameters=None, **changes):
    """On a cluster; by default the one that the costs were fitted on."""
    given = {"origin": origin(), "one_sided": PAIR, "collectives": {"collective": PAIR}, "steps": STEPS, **changes}
    return CalibratedTransfers(
        known_costs(**given),
        Fabric(ranks, ranks_per_node or ranks, intra_node=INSIDE, inter_node=BETWEEN),
        replace(SHARD, parameters=1000.0 * 4 / ranks if parameters is None else parameters),
        transport,
    )


def test_compute_is_that_of_each_kind_of_visit():
    costs = known_costs()
    visits = decoder_visits(3)
    coefficients_FV = calibrated_compute(costs, visits)
    assert coefficients_FV.shape == (3, len(visits))
    kinds = [visit_kind(visit) for visit in visits]
    assert kinds == [
        "embedding_forward",
        *["block_forward"] * 3,
        "head_forward",
        "head_backward",
        *["block_backward"] * 3,
        "embedding_backward",
    ]
    for kind, column in zip(kinds, coefficients_FV.T, strict=True):
        cost = getattr(costs.compute, kind)
        np.testing.assert_array_equal(column, [cost.squared_tokens.value, cost.tokens.value, cost.constant.value])


def test_on_as_many_ranks_everything_takes_what_it_took():
    """3 steps and 6000 of 8000 bytes; a one-sided transfer has its latency once; a meeting of 3 steps around each."""
    found = transfers()
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx(3 * 0.01 + 6000 * 1e-4)
    assert found.collective_s("scatter_accumulate", UNIT_BYTES) == pytest.approx(3 * 0.02 + 6000 * 2e-4)
    assert found.one_sided_s("gather", UNIT_BYTES) == pytest.approx(0.01 + 6000 * 1e-4)
    assert found.one_sided_s("scatter_accumulate", UNIT_BYTES) == pytest.approx(0.02 + 6000 * 2e-4)
    assert found.meeting_s == pytest.approx(3 * 0.003)
    assert found.publish_s == pytest.approx(0.5 + 3 * 0.003)
    assert found.settle_s == pytest.approx(0.6 + 3 * 0.003)
    assert found.optimizer_s == pytest.approx(0.7)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_last_rank_leaves_by_the_same_share_later(ranks):
    pair = TransferPair(gather=transfer_cost(0.01, 1e-4, lag=term(0.4)), scatter_accumulate=transfer_cost(0.02, 2e-4))
    found = transfers(ranks=ranks, collectives={"collective": pair})
    assert found.collective_lag("gather") == 0.4
    assert found.collective_lag("scatter_accumulate") == 0
    assert transfers(ranks=ranks, collectives={}).collective_lag("gather") == 0


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_on_more_or_fewer_ranks_of_a_node(ranks):
    found = transfers(ranks=ranks)
    moved = UNIT_BYTES * (ranks - 1) / ranks
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx((ranks - 1) * 0.01 + moved * 1e-4)
    assert found.one_sided_s("scatter_accumulate", UNIT_BYTES) == pytest.approx(0.02 + moved * 2e-4)
    assert found.meeting_s == pytest.approx((ranks - 1) * 0.003)
    # Of 1000 parameters a rank then: 7.5, 20 and 40 ms through memory, which the number of ranks divides.
    for name, per_parameter in {"publish": 6, "settle": 16, "optimizer": 32}.items():
        moving_s = 1000 * per_parameter / 0.8e6
        step_s = getattr(found, f"{name}_s") - (found.meeting_s if name != "optimizer" else 0.0)
        assert step_s == pytest.approx(getattr(STEPS, name).value + moving_s * (4 / ranks - 1)), name


def test_a_step_that_took_less_than_memory_allows_is_all_moving():
    """A machine faster than its catalog entry: twice the ranks, half the time."""
    found = transfers(ranks=8, steps=StepCosts(optimizer=term(0.001)))
    assert found.optimizer_s == pytest.approx(0.0005)


def test_a_single_rank_meets_nobody():
    found = transfers(ranks=1)
    assert found.meeting_s == 0
    assert found.collective_s("gather", UNIT_BYTES) == 0


def test_costs_of_one_node_on_two():
    """What was measured holds inside; between nodes the catalog's links do: 8000 x 4 / 32 bytes at 500 a second."""
    found = transfers(ranks=8, ranks_per_node=4)
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx(3 * 0.01 + 1 * 2.0 + 1000 / 500)
    # 8000 x 4 / 8 bytes at 250 a second, and the latency of the network.
    assert found.one_sided_s("gather", UNIT_BYTES) == pytest.approx(2.0 + 4000 / 250)


def test_costs_of_two_nodes_on_two():
    """Every step has the one latency that was seen; the bytes are those between nodes."""
    found = transfers(ranks=8, ranks_per_node=4, origin=origin(8, ranks_per_node=4))
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx((3 + 1) * 0.01 + 1000 * 1e-4)
    assert found.one_sided_s("gather", UNIT_BYTES) == pytest.approx(0.01 + 4000 * 1e-4)


def test_bytes_that_cost_nothing():
    free = TransferPair(gather=transfer_cost(0.01, 0.0), scatter_accumulate=transfer_cost(0.0, 0.0))
    found = transfers(collectives={"collective": free})
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx(0.03)
    assert found.collective_s("scatter_accumulate", UNIT_BYTES) == 0


# Processors that ranks share


@pytest.mark.parametrize(
    ("processors", "ratio"),
    [(None, 1.0), (16, 1.0), (8, 1.0), (4, 2.0), (2, 2.0), (6, 8 / 6)],
    ids=["not known", "plenty", "enough", "one each then", "half each then", "enough then"],
)
def test_ranks_that_crowd_processors(processors, ratio):
    """Twice the ranks: where processors were scarce, what all do at once takes longer by how much more they crowd."""
    found = transfers(ranks=8, origin=origin(processors=processors), transport="gloo", collectives={"gloo": PAIR})
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx((7 * 0.01 + 7000 * 1e-4) * ratio**0.5)
    # Collectives of one meeting in shared memory wake up each rank once.
    met = transfers(ranks=8, origin=origin(processors=processors))
    assert met.collective_s("gather", UNIT_BYTES) == pytest.approx(7 * 0.01 + 7000 * 1e-4 * ratio)
    # Ranks take their one-sided transfers whenever they like.
    assert met.one_sided_s("gather", UNIT_BYTES) == pytest.approx(0.01 + 7000 * 1e-4)
    assert met.optimizer_s == pytest.approx((0.7 - 0.04 / 2) * ratio)
    assert met.meeting_s == pytest.approx(7 * 0.003)


# Transfers beside each other


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_others_under_way_slow_a_one_sided_transfer_down(ranks):
    """1.5 others in the mean among 4 ranks; among D, 1.5 (D - 1) / 3."""
    contended = transfer_cost(0.01, 1e-4, contention=term(0.2), others=1.5)
    found = transfers(ranks=ranks, one_sided=TransferPair(gather=contended, scatter_accumulate=contended))
    alone_s = 0.01 + UNIT_BYTES * (ranks - 1) / ranks * 1e-4
    assert found.one_sided_s("gather", UNIT_BYTES) == pytest.approx(alone_s * (1 + 0.2 * 0.5 * (ranks - 1)))


# What the run did not show


def test_collectives_that_no_run_showed():
    found = transfers(collectives={})
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx(0.01 + 6000 * 1e-4 + 3 * 0.003)
    (remark,) = found.remarks(file="c.yaml", syncs={"fsdp", "odc"})
    assert remark == "c.yaml has no collectives: each is taken to cost a one-sided transfer and a meeting"
    assert found.remarks(file="c.yaml", syncs={"odc"}) == []


def test_collectives_over_another_transport():
    found = transfers(transport="nccl")
    assert found.collective_s("gather", UNIT_BYTES) == pytest.approx(3 * 0.01 + 6000 * 1e-4)
    (remark,) = found.remarks(file="c.yaml", syncs={"fsdp", "odc"})
    assert remark == "c.yaml has no collectives over nccl: those over collective are taken instead"


def test_each_transport_has_its_own_collectives():
    slow = TransferPair(gather=transfer_cost(1.0, 0.0), scatter_accumulate=transfer_cost(2.0, 0.0))
    both = {"collective": PAIR, "gloo": slow}
    assert transfers(collectives=both, transport="gloo").collective_s("gather", UNIT_BYTES) == pytest.approx(3.0)
    assert transfers(collectives=both).collective_s("gather", UNIT_BYTES) == pytest.approx(0.63)


def test_one_sided_transfers_that_no_run_showed():
    """A collective's step for latency and meeting, its bandwidth; the rest by the bandwidth of memory."""
    found = transfers(one_sided=None, steps=StepCosts(optimizer=term(0.7)))
    assert found.one_sided_s("scatter_accumulate", UNIT_BYTES) == pytest.approx(0.02 + 6000 * 2e-4)
    assert found.meeting_s == pytest.approx(3 * 0.01)
    assert found.publish_s == pytest.approx(1000 * 6 / 0.8e6 + 0.03)
    assert found.settle_s == pytest.approx(1000 * 16 / 0.8e6 + 0.03)
    (remark,) = found.remarks(file="c.yaml", syncs={"fsdp", "odc"})
    assert remark.startswith("c.yaml has no one-sided transfers")
    assert found.remarks(file="c.yaml", syncs={"fsdp"}) == []


def test_nothing_of_transfers():
    """Then the catalog's links stand in."""
    found = transfers(one_sided=None, collectives={}, steps=StepCosts())
    assert found.one_sided_s("gather", UNIT_BYTES) == pytest.approx(0.5 + 6000 / 0.25e6)
    assert found.meeting_s == pytest.approx(2 * 0.5)
