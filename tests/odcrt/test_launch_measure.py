"""From ranks' times to fractions and bounds, on made-up measurements whose right values are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odcrt.workload.job import CaseMeasurement, MinibatchTimes
from odcrt.workload.measure import CaseTimes, measured_bounds_s
from odcsim.trace_format import RankMemory


def times(**given):
    fields = dict.fromkeys(
        ("compute_s", "padding_s", "transfer_s", "wait_s", "publish_s", "settle_s", "optimizer_s", "loss"), 0.0
    )
    return MinibatchTimes(**{"start_s": 0.0, "end_s": 0.0, "collectives_s": (), **fields, **given})


def measured(*minibatches):
    return CaseMeasurement(
        minibatches=minibatches,
        memory_bytes={"process": 1.0, "training": 4.0, "shared_memory": 2.5},
        training_bytes=(),
        counters={},
        origin_s=0.0,
        host="here",
        processors=2,
        spans=(),
    )


def test_parts_sum_up_to_the_minibatch_and_the_end_is_waited_for():
    first = times(
        start_s=10.0, end_s=14.0, compute_s=2.0, padding_s=0.25, transfer_s=0.5, wait_s=0.5, optimizer_s=0.5, loss=1.0
    )
    second = times(start_s=10.0, end_s=13.0, compute_s=1.0, transfer_s=0.25, publish_s=0.5, optimizer_s=0.25, loss=0.5)
    case = CaseTimes.of([measured(first), measured(second)])
    assert case.minibatch_s_N == pytest.approx([4.0])
    # Compute, communication, waiting, optimizer, other (padding, publish and whatever is left).
    np.testing.assert_allclose(case.parts_s_NDP, [[[2.0, 0.5, 0.5, 0.5, 0.5], [1.0, 0.25, 1.0, 0.25, 1.5]]])
    assert case.loss_N == pytest.approx([1.5])
    fractions = case.fractions()
    assert fractions.compute == pytest.approx(3.0 / 8.0)
    assert sum(fractions.to_document().values()) == pytest.approx(1.0)


def test_waits_within_collectives_are_what_ranks_take_longer_than_the_last_to_come():
    # The first collective: rank 1 comes last, at 0.1 s of transfer. The second: rank 0 does.
    first = times(end_s=2.0, compute_s=1.0, transfer_s=1.0, collectives_s=(0.8, 0.2))
    second = times(end_s=2.0, compute_s=1.5, transfer_s=0.5, collectives_s=(0.1, 0.4))
    case = CaseTimes.of([measured(first), measured(second)])
    np.testing.assert_allclose(case.parts_s_NDP, [[[1.0, 0.3, 0.7, 0.0, 0.0], [1.5, 0.3, 0.2, 0.0, 0.0]]], atol=1e-12)


def test_the_bound_is_the_least_even_share_of_each_minibatch():
    def case(*work):
        return CaseTimes.of(
            [
                measured(*(times(end_s=9.0, compute_s=ranks[rank], optimizer_s=0.5) for ranks in work))
                for rank in range(2)
            ]
        )

    bounds = measured_bounds_s([case((2.0, 4.0), (1.0, 1.0)), case((3.0, 2.0), (4.0, 0.0))])
    np.testing.assert_allclose(bounds, [2.5 + 0.5, 1.0 + 0.5])


def test_memory_of_a_rank_is_told_where_it_was_counted():
    assert measured().rank_memory is None
    assert replace(measured(), training_bytes=(3, 4)).rank_memory == RankMemory(1, 2, (3, 4))
