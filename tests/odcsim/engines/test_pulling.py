"""Who pulls what: against a loop over events that knows nothing of arrays, and what both engines make of it."""

from __future__ import annotations

import dataclasses
import heapq
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import schedules

from odcsim.engines import find_engine, pulling
from odcsim.engines.pulling import ranks_of_pulled
from odcsim.plan import Plan
from odcsim.policies import MinibatchPlan
from odcsim.schedule import Schedule, Visit, Work, decoder_visits

FIELDS = ["minibatch_s_N", "compute_s_ND", "exposed_communication_s_ND", "synchronization_s_ND"]


def alone_s(factors_F, schedule, coefficients_FV):
    """A microbatch that a rank runs alone, on the events engine."""
    bare = dataclasses.replace(schedule, publish_s=0.0, settle_s=0.0, fixed_s=0.0, optimizer_s=0.0)
    work = Work(np.ones((1, 1), dtype=np.int64), np.asarray(factors_F)[None, None, None, :], coefficients_FV)
    return float(find_engine("events")(work, bare).minibatch_s_N[0])


def pulled_by_events(planned, schedule, coefficients_FV, stretch_DM):
    """A heap of ranks by when they are free; each takes the next of the queue."""
    free = [(0.0, rank) for rank in range(len(stretch_DM))]
    counts, rank_of = [0] * len(stretch_DM), []
    for samples in planned.plan.pulled:
        lengths = planned.lengths_S[list(samples)].astype(float)
        free_s, rank = heapq.heappop(free)
        factors_F = np.array([(lengths**2).sum(), lengths.sum(), 1.0]) * stretch_DM[rank, counts[rank]]
        heapq.heappush(free, (free_s + alone_s(factors_F, schedule, coefficients_FV), rank))
        counts[rank] += 1
        rank_of.append(rank)
    return tuple(rank_of)


def factors_of(loads, stretch_DM):
    factors_DMF = np.stack([loads.squared_tokens_DM, loads.tokens_DM, np.ones(loads.tokens_DM.shape)], axis=-1)
    counted_DM = np.arange(loads.tokens_DM.shape[1]) < loads.counts_D[:, None]
    return factors_DMF * (stretch_DM[:, : loads.tokens_DM.shape[1]] * counted_DM)[..., None]


@st.composite
def queues(draw):
    """A few minibatches on the same ranks, some of them empty, with microbatches of up to three samples."""
    ranks = draw(st.integers(1, 4))
    planned = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 3), max_size=9))
        samples = sum(sizes)
        lengths = draw(st.lists(st.integers(1, 9), min_size=samples, max_size=samples))
        ends = np.cumsum([0, *sizes]).tolist()
        pulled = tuple(tuple(range(first, last)) for first, last in pairwise(ends))
        plan = Plan(ranks=((),) * ranks, pulled=pulled)
        planned.append(MinibatchPlan(plan, np.array(lengths, dtype=np.int64), dropped_tokens=0, truncated_tokens=0))
    return ranks, planned


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_ranks_pull_as_a_loop_over_events_has_them(data):
    """Few different stretches, which are looked up, and stretches that all differ, which are not."""
    ranks, planned = data.draw(queues())
    visits = decoder_visits(data.draw(st.integers(1, 2)))
    schedule = data.draw(schedules(sync="odc", visits=visits))
    # Sums of such numbers are exact, so that ranks which are free at once are so in whatever order times are added.
    schedule = dataclasses.replace(
        schedule,
        gather_s_V=np.round(8 * schedule.gather_s_V) / 8,
        reduce_s_V=np.round(8 * schedule.reduce_s_V) / 8,
        gather_lag=0.0,
        reduce_lag=0.0,
    )
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    coefficients_FV = generator.integers(0, 9, size=(3, len(visits))) / 16
    seed, differ = data.draw(st.integers(0, 99)), data.draw(st.booleans())
    drawn_NMD = np.random.default_rng(seed).random((len(planned), 50, ranks))
    whole_NDM = (np.exp(drawn_NMD) if differ else np.where(drawn_NMD < 0.3, 2.5, 1.0)).transpose(0, 2, 1)
    found = ranks_of_pulled(planned, schedule, coefficients_FV, stretch_of=lambda most: whole_NDM[:, :, :most])
    for position, minibatch in enumerate(planned):
        expected = pulled_by_events(minibatch, schedule, coefficients_FV, whole_NDM[position])
        assert found[position] == expected
        plan = minibatch.plan.assigned(found[position])
        loads = plan.loads(minibatch.lengths_S)
        work = Work(loads.counts_D[None], factors_of(loads, whole_NDM[position])[None], coefficients_FV)
        one, other = (find_engine(name)(work, schedule) for name in ("recurrence", "events"))
        for field in FIELDS:
            np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-9, atol=1e-9, err_msg=field)


ONE_VISIT = Schedule(
    sync="odc",
    overlap="none",
    visits=(Visit(1, "forward", gathers=False, reduces=False),),
    gather_s_V=np.zeros(1),
    reduce_s_V=np.zeros(1),
)
A_SECOND_A_TOKEN = np.array([[0.0], [1.0], [0.0]])


def queue_of(*lengths, ranks):
    """Microbatches of one sample each."""
    plan = Plan(ranks=((),) * ranks, pulled=tuple((sample,) for sample in range(len(lengths))))
    return MinibatchPlan(plan, np.array(lengths, dtype=np.int64), dropped_tokens=0, truncated_tokens=0)


def pulled(*lengths, speeds, schedule=ONE_VISIT):
    def stretch_of(most):
        return np.ones((1, len(speeds), most)) / np.array(speeds)[:, None]

    (ranks,) = ranks_of_pulled(
        [queue_of(*lengths, ranks=len(speeds))], schedule, A_SECOND_A_TOKEN, stretch_of=stretch_of
    )
    return ranks


def test_of_ranks_that_are_free_at_once_the_first_goes_first():
    assert pulled(2, 2, 2, 2, 2, speeds=[1, 1, 1]) == (0, 1, 2, 0, 1)
    assert pulled(4, 3, 2, 2, 1, speeds=[1, 0.5]) == (0, 1, 0, 0, 1)


def test_fewer_microbatches_than_ranks():
    assert pulled(3, 2, speeds=[1, 1, 1, 1]) == (0, 1)
    assert pulled(speeds=[1, 1]) == ()


def test_one_rank_may_pull_nearly_all():
    """More than stretches were first asked for."""
    assert pulled(*[1] * 40, speeds=[1e-3, 1.0, 1e-3]) == (0, 1, 2, *[1] * 37)


def test_transfers_take_their_time():
    """What costs a transfer of 3 s for a second of compute is not pulled as if it were a second long."""
    gathering = dataclasses.replace(
        ONE_VISIT, visits=(Visit(1, "forward", gathers=True, reduces=False),), gather_s_V=np.array([3.0])
    )
    assert pulled(6, 1, 1, 1, 1, 1, speeds=[1, 1]) == (0, 1, 1, 1, 1, 1)
    assert pulled(6, 1, 1, 1, 1, 1, speeds=[1, 1], schedule=gathering) == (0, 1, 1, 1, 0, 1)


def test_what_surrounds_a_minibatch_is_not_paid_for_every_microbatch():
    around = dataclasses.replace(ONE_VISIT, publish_s=50.0, settle_s=50.0, fixed_s=50.0, optimizer_s=50.0)
    assert pulled(6, 1, 1, 1, 1, 1, speeds=[1, 1], schedule=around) == (0, 1, 1, 1, 1, 1)


def test_a_slowdown_is_of_a_ranks_own_microbatch():
    """The second microbatch of each rank takes ten times as long, whichever it is."""

    def stretch_of(most):
        stretch_NDM = np.ones((1, 2, most))
        stretch_NDM[:, :, 1:2] = 10.0
        return stretch_NDM

    (ranks,) = ranks_of_pulled(
        [queue_of(5, 3, 1, 1, 1, 1, ranks=2)], ONE_VISIT, A_SECOND_A_TOKEN, stretch_of=stretch_of
    )
    # Rank 1 is free at 3 s and then busy until 13; rank 0 at 5 s, and busy until 15.
    assert ranks == (0, 1, 1, 0, 1, 1)


def test_plans_that_name_ranks_are_left_alone():
    static = MinibatchPlan(Plan(ranks=(((0,),), ())), np.array([4]), dropped_tokens=0, truncated_tokens=0)

    def nobody(most):
        raise AssertionError("nothing to be pulled")

    assert ranks_of_pulled([static], ONE_VISIT, A_SECOND_A_TOKEN, stretch_of=nobody) == [()]
    both = [static, queue_of(1, ranks=2)]
    found = ranks_of_pulled(both, ONE_VISIT, A_SECOND_A_TOKEN, stretch_of=lambda most: np.ones((2, 2, most)))
    assert found == [(), (0,)]


def test_looking_times_up_changes_nothing(monkeypatch):
    lengths = np.random.default_rng(0).integers(1, 99, 40).tolist()
    looked_up = pulled(*lengths, speeds=[1, 0.7, 1.3, 1])
    monkeypatch.setattr(pulling, "_FEW_STRETCHES", 0)
    assert pulled(*lengths, speeds=[1, 0.7, 1.3, 1]) == looked_up
