"""Two engines, one meaning: closed forms, agreement with each other, and the order of fsdp and odc."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import schedules, visit_programs, works

from odcsim.engines import find_engine
from odcsim.engines.leaving import leaving_shares
from odcsim.schedule import Schedule, Visit, Work, decoder_visits

ENGINES = ["recurrence", "events"]
FIELDS = [
    "minibatch_s_N",
    "compute_s_ND",
    "exposed_communication_s_ND",
    "synchronization_s_ND",
    "optimizer_s_ND",
    "other_s_ND",
]


def decoder_work(seed, *, counts_ND, layers):
    """Compute of decoder visits, drawn at random for every rank, microbatch and visit."""
    visits = decoder_visits(layers)
    counts_ND = np.asarray(counts_ND, dtype=np.int64)
    shape = (*counts_ND.shape, int(counts_ND.max()), len(visits))
    factors = np.random.default_rng(seed).exponential(1.0, size=shape)
    factors *= (np.arange(shape[2]) < counts_ND[:, :, None])[..., None]
    return Work(counts_ND, factors, np.eye(len(visits)))


def free_schedule(sync, overlap, visits):
    zeros = np.zeros(len(visits))
    return Schedule(sync=sync, overlap=overlap, visits=visits, gather_s_V=zeros, reduce_s_V=zeros)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(5))
def test_free_communication_fsdp_is_the_sum_of_maxima(engine, seed):
    """Sum over microbatches and visits of the slowest rank's time, where ranks meet at every visit."""
    visits = tuple(
        Visit(unit, phase, gathers=True, reduces=False) for unit in range(6) for phase in ("forward", "backward")
    )
    work = dataclasses.replace(decoder_work(seed, counts_ND=[[3] * 5, [2] * 5], layers=4), coefficients_FV=np.eye(12))
    outcome = find_engine(engine)(work, free_schedule("fsdp", "none", visits))
    expected_N = work.factors_NDMF.max(axis=1).sum(axis=(1, 2))
    np.testing.assert_allclose(outcome.minibatch_s_N, expected_N, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(5))
def test_free_communication_fsdp_decoder_meets_at_every_transfer(engine, seed):
    """Visits between two transfers count as one: the head's forward joins the last block's."""
    layers = 3
    visits = decoder_visits(layers)
    work = decoder_work(seed, counts_ND=[[2] * 4], layers=layers)
    outcome = find_engine(engine)(work, free_schedule("fsdp", "none", visits))
    flat_DX = work.factors_NDMF[0].reshape(4, -1)
    # Before the embedding, every block's forward, the head's backward (which gathers the last block), every block's
    # backward (which gathers the one before, or follows a reduce) and the embedding's: before all but the head's
    # forward.
    head_forward = layers + 1
    borders = [position for position in range(1, 2 * len(visits)) if position % len(visits) != head_forward]
    expected = sum(part.sum(axis=1).max() for part in np.split(flat_DX, borders, axis=1))
    np.testing.assert_allclose(outcome.minibatch_s_N, [expected], rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("overlap", ["prefetch", "gather-only", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_free_communication_odc_is_the_maximum_of_sums(engine, overlap, seed):
    """Whatever the overlap, a minibatch takes as long as its busiest rank."""
    work = decoder_work(seed, counts_ND=[[3, 1, 0, 2], [2, 2, 3, 1]], layers=3)
    outcome = find_engine(engine)(work, free_schedule("odc", overlap, decoder_visits(3)))
    np.testing.assert_allclose(outcome.minibatch_s_N, work.factors_NDMF.sum(axis=(2, 3)).max(axis=1), rtol=1e-12)


@st.composite
def _cases(draw):
    sync = draw(st.sampled_from(["fsdp", "odc"]))
    visits = draw(st.one_of(visit_programs(), st.integers(1, 3).map(decoder_visits)))
    return (
        draw(works(visits=visits, equal_counts=sync == "fsdp")),
        draw(schedules(sync=sync, visits=visits)),
    )


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_engines_agree(case):
    work, schedule = case
    recurrence = find_engine("recurrence")(work, schedule)
    events = find_engine("events")(work, schedule)
    for field in FIELDS:
        np.testing.assert_allclose(
            getattr(recurrence, field), getattr(events, field), rtol=1e-9, atol=1e-9, err_msg=field
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_collective_waits_for_whom_it_let_go_last(engine):
    """Two ranks, a gather of 2 s that one leaves 1 s early and one 1 s late, compute, and the second gather."""
    visits = tuple(Visit(unit, "forward", gathers=True, reduces=False) for unit in range(2))
    schedule = Schedule("fsdp", "none", visits, gather_s_V=np.full(2, 2.0), reduce_s_V=np.zeros(2), gather_lag=0.5)
    early_D = np.array([leaving_shares(2, collective=number, lag=0.5) < 0 for number in range(2)]).argmax(axis=1)
    for compute_s_D in ([0.25, 0.25], [5.0, 1.0], [1.0, 5.0]):
        times_DMV = np.zeros((1, 2, 1, 2))
        times_DMV[0, :, 0, 0] = compute_s_D
        outcome = find_engine(engine)(Work(np.array([[1, 1]]), times_DMV, np.eye(2)), schedule)
        ready_s_D = np.where(np.arange(2) == early_D[0], 1.0, 3.0) + compute_s_D
        start_s = ready_s_D.max()
        assert outcome.minibatch_s_N.tolist() == [start_s + 3]
        # At the end the rank that leaves early waits for the other.
        waits_s_D = start_s - ready_s_D + np.where(np.arange(2) == early_D[1], 2.0, 0.0)
        assert outcome.synchronization_s_ND.tolist() == [waits_s_D.tolist()]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_where_all_ranks_compute_alike_every_collective_costs_its_lag_more(data):
    visits = data.draw(visit_programs())
    work = data.draw(works(visits=visits, equal_counts=True))
    alike = dataclasses.replace(work, factors_NDMF=np.repeat(work.factors_NDMF[:, :1], work.counts_ND.shape[1], axis=1))
    schedule = data.draw(schedules(sync="fsdp", overlap="none", visits=visits))
    engine = find_engine("recurrence")
    prompt_s_N = engine(alike, dataclasses.replace(schedule, gather_lag=0.0, reduce_lag=0.0)).minibatch_s_N
    lag_s = schedule.gather_lag * schedule.gather_s_V.sum() + schedule.reduce_lag * schedule.reduce_s_V.sum()
    lag_s_N = alike.counts_ND[:, 0] * lag_s if alike.counts_ND.shape[1] > 1 else 0.0
    np.testing.assert_allclose(engine(alike, schedule).minibatch_s_N, prompt_s_N + lag_s_N, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_odc_has_no_lags(data):
    visits = data.draw(visit_programs())
    work, schedule = (
        data.draw(works(visits=visits, equal_counts=False)),
        data.draw(schedules(sync="odc", visits=visits)),
    )
    prompt = dataclasses.replace(schedule, gather_lag=0.0, reduce_lag=0.0)
    for engine in map(find_engine, ENGINES):
        np.testing.assert_array_equal(engine(work, schedule).minibatch_s_N, engine(work, prompt).minibatch_s_N)


@pytest.mark.parametrize("ranks", [1, 2, 3, 16, 31])
@pytest.mark.parametrize("lag", [0.25, 1.0, 1.5])
def test_ranks_leave_in_every_order(ranks, lag):
    """All places are taken every time, and everyone is everywhere about as often."""
    shares_KD = np.array([leaving_shares(ranks, collective=number, lag=lag) for number in range(2000)])
    places = np.maximum(np.linspace(-lag, lag, ranks), -1.0) if ranks > 1 else np.zeros(1)
    np.testing.assert_allclose(np.sort(shares_KD, axis=1), np.broadcast_to(places, shares_KD.shape), atol=1e-12)
    assert np.abs(shares_KD.mean(axis=0) - places.mean()).max() < 0.2 * lag
    again_KD = np.array([leaving_shares(ranks, collective=number, lag=lag) for number in range(2000)])
    np.testing.assert_array_equal(shares_KD, again_KD)


@settings(max_examples=100, deadline=None)
@given(_cases())
def test_accounts_add_up_to_the_minibatch(case):
    """Compute, exposed communication, synchronization, optimizer and other: every rank's shares fill its minibatch."""
    work, schedule = case
    outcome = find_engine("recurrence")(work, schedule)
    total_ND = sum(getattr(outcome, field) for field in FIELDS[1:])
    np.testing.assert_allclose(total_ND, np.broadcast_to(outcome.minibatch_s_N[:, None], total_ND.shape), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(_cases())
def test_spans_agree(case):
    """Both engines draw the same picture of the first minibatch."""
    work, schedule = case
    keys = []
    for name in ENGINES:
        spans = find_engine(name)(work, schedule, recorded_ranks=4).spans
        keys.append(
            sorted(
                (span.rank, span.stream, round(span.start_s, 6), round(span.end_s, 6), span.name, span.unit)
                for span in spans
                if span.name != "wait" and span.end_s - span.start_s > 1e-6
            )
        )
    assert keys[0] == keys[1]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_fsdp_is_never_faster_than_odc_on_the_same_plan(data):
    """Where transfers cost the same and odc pays nothing for publishing and settling."""
    visits = data.draw(visit_programs())
    work = data.draw(works(visits=visits, equal_counts=True))
    fsdp = data.draw(schedules(sync="fsdp", visits=visits, bare=True))
    fsdp = dataclasses.replace(fsdp, gather_lag=0.0, reduce_lag=0.0)  # with lags some ranks leave early
    odc = dataclasses.replace(fsdp, sync="odc")
    engine = find_engine("recurrence")
    assert (engine(work, odc).minibatch_s_N <= engine(work, fsdp).minibatch_s_N + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_prefetch_lies_between_odc_and_none(data):
    """Free transfers: running ahead by a unit helps, and never more than not waiting at all."""
    visits = tuple(Visit(unit, "forward", gathers=True, reduces=False) for unit in range(data.draw(st.integers(1, 5))))
    work = data.draw(works(visits=visits, equal_counts=True))
    engine = find_engine("recurrence")
    none_s = engine(work, free_schedule("fsdp", "none", visits)).minibatch_s_N
    prefetch_s = engine(work, free_schedule("fsdp", "prefetch", visits)).minibatch_s_N
    odc_s = engine(work, free_schedule("odc", "prefetch", visits)).minibatch_s_N
    assert (prefetch_s <= none_s + 1e-9).all()
    assert (prefetch_s >= odc_s - 1e-9).all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_prefetch_saves_at_most_one_unit_a_microbatch(data):
    """Free transfers and equal units: a rank ahead by one unit waits all the same for the rest of a microbatch."""
    units = data.draw(st.integers(1, 6))
    visits = tuple(Visit(unit, "forward", gathers=True, reduces=False) for unit in range(units))
    work = data.draw(works(visits=visits[:1], equal_counts=True))
    work = dataclasses.replace(work, coefficients_FV=np.ones((1, units)))
    engine = find_engine("recurrence")
    none_s = engine(work, free_schedule("fsdp", "none", visits)).minibatch_s_N
    prefetch_s = engine(work, free_schedule("fsdp", "prefetch", visits)).minibatch_s_N
    longest_unit_N = work.factors_NDMF[..., 0].max(axis=1, initial=0.0).sum(axis=1)
    assert (prefetch_s >= none_s - longest_unit_N - 1e-9).all()


def test_spans_are_kept_of_the_first_ranks_only():
    work = decoder_work(0, counts_ND=[[1, 1, 1]], layers=2)
    for sync in ("fsdp", "odc"):
        for name in ENGINES:
            spans = find_engine(name)(work, free_schedule(sync, "prefetch", decoder_visits(2)), recorded_ranks=2).spans
            assert {span.rank for span in spans} == {0, 1}
