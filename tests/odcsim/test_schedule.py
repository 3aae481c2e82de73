"""The decoder's visits, what surrounds them, and the counts that collectives need."""

from __future__ import annotations

import numpy as np
import pytest

from odcsim.errors import InputError
from odcsim.schedule import Schedule, Visit, Work, decoder_visits


def schedule_of(sync, **costs):
    return Schedule(
        sync=sync, overlap="none", visits=decoder_visits(1), gather_s_V=np.zeros(6), reduce_s_V=np.zeros(6), **costs
    )


def work_of(counts):
    counts_ND = np.array(counts)
    return Work(counts_ND, np.ones((*counts_ND.shape, int(counts_ND.max()), 1)), np.ones((1, 6)))


def test_visits_of_two_blocks():
    assert decoder_visits(2) == (
        Visit(0, "forward", gathers=True, reduces=False),
        Visit(1, "forward", gathers=True, reduces=False),
        Visit(2, "forward", gathers=True, reduces=False),
        Visit(0, "forward", gathers=False, reduces=False),
        Visit(0, "backward", gathers=False, reduces=False),
        Visit(2, "backward", gathers=True, reduces=True),
        Visit(1, "backward", gathers=True, reduces=True),
        Visit(0, "backward", gathers=False, reduces=True),
    )


@pytest.mark.parametrize("layers", [1, 2, 28, 64])
def test_transfers_are_those_of_fsdp2(layers):
    """2U - 1 gathers and U reduces a microbatch, for U = layers + 1 units."""
    visits = decoder_visits(layers)
    assert len(visits) == 2 * layers + 4
    assert sum(visit.gathers for visit in visits) == 2 * (layers + 1) - 1
    assert sorted(visit.unit for visit in visits if visit.reduces) == list(range(layers + 1))


@pytest.mark.parametrize(("sync", "opening_s", "closing_s"), [("fsdp", 0, 0), ("odc", 3, 4)])
def test_only_odc_publishes_and_settles(sync, opening_s, closing_s):
    schedule = schedule_of(sync, publish_s=1, fixed_s=2, settle_s=4, optimizer_s=8)
    assert (schedule.opening_s, schedule.closing_s) == (opening_s, closing_s)


def test_shapes_are_checked():
    with pytest.raises(AssertionError, match=r"gather_s_V has shape \(3,\), not \(6,\)"):
        Schedule(sync="odc", overlap="none", visits=decoder_visits(1), gather_s_V=np.zeros(3), reduce_s_V=np.zeros(6))
    with pytest.raises(AssertionError):
        Work(np.array([[2]]), np.ones((1, 1, 1, 1)), np.ones((1, 6)))


def test_unequal_counts_are_refused_under_fsdp_with_the_counts():
    """Collectives would wait for ever: said before the first forward, with the counts per rank."""
    work = work_of([[2, 2, 2], [3, 1, 2], [1, 2, 1]])
    with pytest.raises(InputError) as caught:
        work.require_counts_for("fsdp")
    assert str(caught.value).startswith("minibatch 1: [3, 1, 2]: microbatches per rank, which must be equal under fsdp")
    assert "use sync: odc, pad: true or a policy with equal counts" in str(caught.value)
    work.require_counts_for("odc")


def test_equal_counts_may_differ_between_minibatches():
    work_of([[2, 2], [1, 1]]).require_counts_for("fsdp")


def test_one_minibatch_of_several():
    work = work_of([[2, 2], [1, 3]]).minibatch(1)
    assert work.counts_ND.tolist() == [[1, 3]]
    assert work.factors_NDMF.shape == (1, 2, 3, 1)
