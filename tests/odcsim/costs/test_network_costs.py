"""Transfers: seconds worked out by hand, and what tells a ring from one-sided transfers."""

from __future__ import annotations

import dataclasses

import pytest

from odcsim.costs.network import Fabric, Tier

INSIDE = Tier(bandwidth_bytes_per_s=100.0, latency_s=0.01, collective_efficiency=0.5, one_sided_efficiency=1.0)
BETWEEN = Tier(bandwidth_bytes_per_s=10.0, latency_s=0.7, collective_efficiency=0.5, one_sided_efficiency=0.25)
TWO_NODES = Fabric(ranks=8, ranks_per_node=4, intra_node=INSIDE, inter_node=BETWEEN)
ONE_NODE = Fabric(ranks=4, ranks_per_node=4, intra_node=INSIDE, inter_node=BETWEEN)
LONE_RANKS = Fabric(ranks=4, ranks_per_node=1, intra_node=INSIDE, inter_node=BETWEEN)


@pytest.mark.parametrize(
    ("fabric", "seconds"),
    [
        # Inside: 800 x 3/4 bytes at 50 a second; between: 800 x 4 / 32 bytes at 5 a second, which takes longer.
        # Ring steps: 3 inside, 1 between.
        (TWO_NODES, 20.0 + 3 * 0.01 + 0.7),
        (ONE_NODE, 12.0 + 3 * 0.01),
        # 800 x 3/4 bytes between, at 5 a second; 3 steps.
        (LONE_RANKS, 120.0 + 3 * 0.7),
    ],
)
def test_collective(fabric, seconds):
    assert fabric.collective_s(800.0) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("fabric", "seconds"),
    [
        # Inside: 800 x 3/8 bytes at 100 a second; between: 800 x 4/8 bytes at 2.5 a second. Latency counts once.
        (TWO_NODES, 160.0 + 0.7),
        (ONE_NODE, 6.0 + 0.01),
        (LONE_RANKS, 240.0 + 0.7),
    ],
)
def test_one_sided(fabric, seconds):
    assert fabric.one_sided_s(800.0) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("per_node", [1, 2, 4, 8])
@pytest.mark.parametrize("nodes", [2, 3, 16])
def test_between_nodes_one_sided_transfers_move_as_much_again_for_every_rank_of_a_node(per_node, nodes):
    tier = Tier(bandwidth_bytes_per_s=10.0, latency_s=0.0, collective_efficiency=0.5, one_sided_efficiency=0.5)
    fast = dataclasses.replace(tier, bandwidth_bytes_per_s=1e12)
    fabric = Fabric(ranks=per_node * nodes, ranks_per_node=per_node, intra_node=fast, inter_node=tier)
    assert fabric.one_sided_s(1e6) == pytest.approx(per_node * fabric.collective_s(1e6), rel=1e-12)


def test_inside_a_node_both_move_the_same():
    tier = dataclasses.replace(INSIDE, latency_s=0.0, one_sided_efficiency=0.5)
    fabric = dataclasses.replace(ONE_NODE, intra_node=tier)
    assert fabric.one_sided_s(800.0) == fabric.collective_s(800.0) == 12.0


def test_a_slow_link_slows_the_bytes_and_not_the_latency():
    slow = dataclasses.replace(TWO_NODES, slowest_link_speed=0.5)
    assert slow.collective_s(800.0) == pytest.approx(40.0 + 3 * 0.01 + 0.7, rel=1e-12)
    assert slow.one_sided_s(800.0) == pytest.approx(320.0 + 0.7, rel=1e-12)
    assert slow.barrier_s() == TWO_NODES.barrier_s()


@pytest.mark.parametrize(("ranks", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_rounds_of_a_barrier(ranks, rounds):
    fabric = Fabric(ranks=ranks, ranks_per_node=ranks, intra_node=INSIDE, inter_node=BETWEEN)
    assert fabric.barrier_s() == pytest.approx(rounds * 0.01)
    assert dataclasses.replace(fabric, ranks_per_node=1).barrier_s() == pytest.approx(rounds * 0.7)


def test_a_lone_rank_moves_nothing():
    alone = Fabric(ranks=1, ranks_per_node=1, intra_node=INSIDE, inter_node=BETWEEN)
    assert alone.collective_s(800.0) == alone.one_sided_s(800.0) == alone.barrier_s() == 0.0


def test_absurd_links_give_times_without_end_not_a_crash():
    tiny = Tier(bandwidth_bytes_per_s=5e-324, latency_s=0.0, collective_efficiency=1e-300, one_sided_efficiency=1e-300)
    fabric = dataclasses.replace(TWO_NODES, inter_node=tiny)
    assert fabric.collective_s(800.0) == fabric.one_sided_s(800.0) == float("inf")
