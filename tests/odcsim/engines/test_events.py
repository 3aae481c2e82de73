"""The events engine: hand-computed minibatches, shared links, and what must hold for every schedule."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Generator
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment, Event
from strategies import schedules, visit_programs, works

from odcsim.engines.events import simulate
from odcsim.engines.events.links import SharedLink
from odcsim.engines.timeline import Outcome
from odcsim.errors import InputError
from odcsim.schedule import Overlap, Schedule, SharedLinks, Sync, Visit, Work, decoder_visits

ACCOUNTS = [
    "compute_s_ND",
    "exposed_communication_s_ND",
    "synchronization_s_ND",
    "optimizer_s_ND",
    "other_s_ND",
]

# The hand-computed minibatch: two ranks, two microbatches, two visits. A gather takes 1 s, a reduce 4 s.
HAND_VISITS = (
    Visit(unit=1, phase="forward", gathers=True, reduces=False),
    Visit(unit=2, phase="backward", gathers=True, reduces=True),
)
HAND_TIMES_DMV = [[[3, 2], [1, 5]], [[1, 5], [1, 1]]]


def work_of(times_by_rank: list[list[list[float]]]) -> Work:
    """One minibatch from the times of each rank's microbatches (ranks x microbatches x visits), in seconds."""
    counts_D = [len(microbatches) for microbatches in times_by_rank]
    visits = next(len(microbatch) for microbatches in times_by_rank for microbatch in microbatches)
    factors = np.zeros((1, len(counts_D), max(counts_D), visits))
    for rank, microbatches in enumerate(times_by_rank):
        for position, times_V in enumerate(microbatches):
            factors[0, rank, position] = times_V
    return Work(np.array([counts_D], dtype=np.int64), factors, np.eye(visits))


def schedule_of(
    sync: Sync,
    overlap: Overlap,
    visits: tuple[Visit, ...],
    *,
    gather_s: float = 0.0,
    reduce_s: float = 0.0,
    **rest: object,
) -> Schedule:
    """Every gather takes `gather_s`, every reduce `reduce_s`."""
    return Schedule(
        sync=sync,
        overlap=overlap,
        visits=visits,
        gather_s_V=np.array([gather_s * visit.gathers for visit in visits]),
        reduce_s_V=np.array([reduce_s * visit.reduces for visit in visits]),
        **rest,
    )


def hand_schedule(sync: Sync, overlap: Overlap, **rest: object) -> Schedule:
    return schedule_of(sync, overlap, HAND_VISITS, gather_s=1.0, reduce_s=4.0, **rest)


def drawn(outcome: Outcome, rank: int) -> dict[str, str]:
    """A rank's streams as text: for each, what it did in order; unit and microbatch follow the name."""
    streams = {"compute": [], "gather": [], "reduce": []}
    for span in outcome.spans:
        if span.rank == rank:
            where = "" if span.microbatch < 0 else f" {span.unit}/{span.microbatch}"
            streams[span.stream].append(f"{span.name}{where} {span.start_s:g}-{span.end_s:g}")
    return {stream: ", ".join(spans) for stream, spans in streams.items()}


@pytest.mark.parametrize(
    ("sync", "overlap", "end_s", "exposed_s_D", "synchronization_s_D"),
    [
        ("fsdp", "prefetch", 17, [6, 7], [0, 2]),
        ("fsdp", "gather-only", 21, [9, 9], [1, 4]),
        ("fsdp", "none", 26, [12, 12], [3, 6]),
        ("odc", "prefetch", 16, [5, 7], [0, 1]),
        ("odc", "gather-only", 20, [9, 9], [0, 3]),
        ("odc", "none", 23, [12, 12], [0, 3]),
    ],
)
def test_hand_computed_accounts(
    sync: Sync, overlap: Overlap, end_s: float, exposed_s_D: list[float], synchronization_s_D: list[float]
):
    outcome = simulate(work_of(HAND_TIMES_DMV), hand_schedule(sync, overlap))
    assert outcome.minibatch_s_N.tolist() == [end_s]
    assert outcome.compute_s_ND.tolist() == [[11, 8]]
    assert outcome.exposed_communication_s_ND.tolist() == [exposed_s_D]
    assert outcome.synchronization_s_ND.tolist() == [synchronization_s_D]
    assert outcome.optimizer_s_ND.tolist() == outcome.other_s_ND.tolist() == [[0, 0]]
    assert outcome.spans == ()


def test_fixed_steps_surround_the_work_of_odc():
    schedule = hand_schedule("odc", "prefetch", publish_s=0.5, fixed_s=0.25, settle_s=0.125, optimizer_s=2.0)
    outcome = simulate(work_of(HAND_TIMES_DMV), schedule)
    assert outcome.minibatch_s_N.tolist() == [16 + 0.5 + 0.25 + 0.125 + 2]
    assert outcome.synchronization_s_ND.tolist() == [[0, 1]]
    assert outcome.other_s_ND.tolist() == [[0.875, 0.875]]
    assert outcome.optimizer_s_ND.tolist() == [[2, 2]]


def test_fsdp_pays_for_the_optimizer_alone():
    schedule = hand_schedule("fsdp", "prefetch", publish_s=0.5, fixed_s=0.25, settle_s=0.125, optimizer_s=2.0)
    outcome = simulate(work_of(HAND_TIMES_DMV), schedule)
    assert outcome.minibatch_s_N.tolist() == [19]
    assert outcome.other_s_ND.tolist() == [[0, 0]]
    assert outcome.optimizer_s_ND.tolist() == [[2, 2]]


def test_spans_of_fsdp_with_prefetch():
    """A gather runs ahead across the border of microbatches; the second reduce is issued after the first has ended."""
    outcome = simulate(work_of(HAND_TIMES_DMV), hand_schedule("fsdp", "prefetch"), recorded_ranks=64)
    transfers = {
        "gather": "gather 1/0 0-1, gather 2/0 1-2, gather 1/1 4-5, gather 2/1 7-8",
        "reduce": "scatter_accumulate 2/0 7-11, scatter_accumulate 2/1 13-17",
    }
    assert drawn(outcome, 0) == transfers | {
        "compute": "forward 1/0 1-4, backward 2/0 4-6, forward 1/1 6-7, backward 2/1 8-13",
    }
    assert drawn(outcome, 1) == transfers | {
        "compute": "forward 1/0 1-2, backward 2/0 2-7, forward 1/1 7-8, backward 2/1 8-9, wait -1/1 11-13",
    }


def test_spans_of_fsdp_without_overlap():
    """Every transfer holds up compute, and the ranks that come early wait for the last one."""
    outcome = simulate(work_of(HAND_TIMES_DMV), hand_schedule("fsdp", "none", optimizer_s=1.0), recorded_ranks=64)
    transfers = {
        "gather": "gather 1/0 0-1, gather 2/0 4-5, gather 1/1 14-15, gather 2/1 16-17",
        "reduce": "scatter_accumulate 2/0 10-14, scatter_accumulate 2/1 22-26",
    }
    assert drawn(outcome, 0) == transfers | {
        "compute": "forward 1/0 1-4, backward 2/0 5-7, wait -1/0 7-10, forward 1/1 15-16, backward 2/1 17-22, "
        "optimizer 26-27",
    }
    assert drawn(outcome, 1) == transfers | {
        "compute": "forward 1/0 1-2, wait -1/0 2-4, backward 2/0 5-10, forward 1/1 15-16, backward 2/1 17-18, "
        "wait -1/1 18-22, optimizer 26-27",
    }


def test_spans_of_odc_with_prefetch():
    """Ranks meet at the end alone; a rank waits there, and for no other rank before."""
    schedule = hand_schedule("odc", "prefetch", publish_s=1.0, settle_s=2.0, optimizer_s=3.0)
    outcome = simulate(work_of(HAND_TIMES_DMV), schedule, recorded_ranks=64)
    assert drawn(outcome, 0) == {
        "compute": "publish 0-1, forward 1/0 2-5, backward 2/0 5-7, forward 1/1 7-8, backward 2/1 8-13, settle 17-19, "
        "optimizer 19-22",
        "gather": "gather 1/0 1-2, gather 2/0 2-3, gather 1/1 5-6, gather 2/1 7-8",
        "reduce": "scatter_accumulate 2/0 7-11, scatter_accumulate 2/1 13-17",
    }
    assert drawn(outcome, 1) == {
        "compute": "publish 0-1, forward 1/0 2-3, backward 2/0 3-8, forward 1/1 8-9, backward 2/1 9-10, wait 16-17, "
        "settle 17-19, optimizer 19-22",
        "gather": "gather 1/0 1-2, gather 2/0 2-3, gather 1/1 3-4, gather 2/1 8-9",
        "reduce": "scatter_accumulate 2/0 8-12, scatter_accumulate 2/1 12-16",
    }


def test_spans_of_odc_with_blocking_reduces():
    outcome = simulate(work_of(HAND_TIMES_DMV), hand_schedule("odc", "gather-only"), recorded_ranks=64)
    assert drawn(outcome, 1) == {
        "compute": "forward 1/0 1-2, backward 2/0 2-7, forward 1/1 11-12, backward 2/1 12-13, wait 17-20",
        "gather": "gather 1/0 0-1, gather 2/0 1-2, gather 1/1 2-3, gather 2/1 11-12",
        "reduce": "scatter_accumulate 2/0 7-11, scatter_accumulate 2/1 13-17",
    }


def test_spans_are_of_the_first_minibatch_and_in_order():
    work = work_of(HAND_TIMES_DMV)
    twice = Work(
        np.repeat(work.counts_ND, 2, axis=0),
        np.concatenate([work.factors_NDMF, 2 * work.factors_NDMF]),
        work.coefficients_FV,
    )
    schedule = hand_schedule("fsdp", "prefetch")
    outcome = simulate(twice, schedule, recorded_ranks=64)
    assert outcome.spans == simulate(work, schedule, recorded_ranks=64).spans
    keys = [(span.rank, span.start_s, span.stream) for span in outcome.spans]
    assert keys == sorted(keys)
    assert outcome.minibatch_s_N[1] > outcome.minibatch_s_N[0] == 17


def test_free_communication_under_fsdp_sums_the_slowest_rank_between_meetings():
    """Ranks meet for every gather and reduce; in backward a block is gathered before the one above it computes."""
    layers, microbatches, ranks = 4, 3, 5
    visits = decoder_visits(layers)
    times_DMV = np.random.default_rng(1).exponential(size=(ranks, microbatches, len(visits)))
    outcome = simulate(work_of(times_DMV.tolist()), schedule_of("fsdp", "none", visits))
    expected_s = 0.0
    for microbatch in range(microbatches):
        since_meeting_D = np.zeros(ranks)
        for position, visit in enumerate(visits):
            following = visits[position + 1] if position + 1 < len(visits) else None
            gathers_next = visit.phase == "backward" and following is not None and following.gathers
            if gathers_next or (visit.gathers and visit.phase == "forward"):
                expected_s += since_meeting_D.max()
                since_meeting_D[:] = 0.0
            since_meeting_D += times_DMV[:, microbatch, position]
            if visit.reduces:
                expected_s += since_meeting_D.max()
                since_meeting_D[:] = 0.0
    assert outcome.minibatch_s_N[0] == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize("overlap", ["prefetch", "gather-only", "none"])
def test_free_communication_under_odc_is_the_busiest_rank(overlap: Overlap):
    visits = decoder_visits(4)
    random = np.random.default_rng(2)
    times = [random.exponential(size=(count, len(visits))).tolist() for count in (3, 1, 4)]
    outcome = simulate(work_of(times), schedule_of("odc", overlap, visits))
    assert outcome.minibatch_s_N[0] == pytest.approx(max(np.sum(times_MV) for times_MV in times), rel=1e-12)


def test_fsdp_refuses_unequal_counts_and_names_them():
    work = work_of([[[1, 1], [1, 1]], [[1, 1]], [[1, 1], [1, 1]]])
    with pytest.raises(InputError, match=r"\[2, 1, 2\]"):
        simulate(work, hand_schedule("fsdp", "prefetch"))


def test_a_rank_without_microbatches_waits_under_odc():
    schedule = hand_schedule("odc", "prefetch", publish_s=1.0, optimizer_s=2.0)
    outcome = simulate(work_of([[[3, 2], [1, 5]], []]), schedule, recorded_ranks=64)
    assert outcome.minibatch_s_N.tolist() == [19]
    assert outcome.compute_s_ND.tolist() == [[11, 0]]
    assert outcome.synchronization_s_ND.tolist() == [[0, 16]]
    assert drawn(outcome, 1) == {"compute": "publish 0-1, wait 1-17, optimizer 17-19", "gather": "", "reduce": ""}


def test_a_minibatch_without_microbatches_has_its_fixed_steps():
    work = Work(np.zeros((1, 2), dtype=np.int64), np.zeros((1, 2, 0, 2)), np.eye(2))
    for sync, expected_s in (("odc", 7), ("fsdp", 4)):
        outcome = simulate(work, hand_schedule(sync, "prefetch", publish_s=1.0, settle_s=2.0, optimizer_s=4.0))
        assert outcome.minibatch_s_N.tolist() == [expected_s]


# Shared links


def compute_then_gather(start_s_D: list[float], *, shared_links: SharedLinks) -> list[float]:
    """Each rank computes for `start_s_D` of its own, and then gathers: when the gathers end."""
    visits = (Visit(0, "forward", gathers=False, reduces=False), Visit(1, "forward", gathers=True, reduces=False))
    schedule = schedule_of("odc", "none", visits, gather_s=1.0, shared_links=shared_links)
    outcome = simulate(work_of([[[start_s, 0]] for start_s in start_s_D]), schedule, recorded_ranks=64)
    return [span.end_s for span in outcome.spans if span.name == "gather"]


def test_two_transfers_halve_a_link_of_one():
    assert compute_then_gather([0, 0], shared_links=SharedLinks((0, 0), 1.0)) == [2, 2]


def test_a_late_transfer_slows_an_early_one_from_then_on():
    """Half of the first is done when the second comes; the other half takes 1 s; the rest of the second is alone."""
    assert compute_then_gather([0, 0.5], shared_links=SharedLinks((0, 0), 1.0)) == [1.5, 2]


def test_a_fractional_capacity():
    assert compute_then_gather([0, 0, 0], shared_links=SharedLinks((0, 0, 0), 1.5)) == [2, 2, 2]
    assert compute_then_gather([0], shared_links=SharedLinks((0,), 0.5)) == [2]


def test_groups_do_not_disturb_each_other():
    links = SharedLinks((7, 3, 7, 3, 5), 1.0)
    assert compute_then_gather([0, 0, 0, 4, 0], shared_links=links) == [2, 1, 2, 5, 1]


def test_a_transfer_of_zero_length_takes_no_time_on_a_busy_link():
    visits = (
        Visit(0, "forward", gathers=True, reduces=False),
        Visit(1, "forward", gathers=True, reduces=False),
    )
    schedule = dataclasses.replace(
        schedule_of("odc", "none", visits, shared_links=SharedLinks((0, 0), 1.0)), gather_s_V=np.array([0.0, 2.0])
    )
    outcome = simulate(work_of([[[0, 0]], [[1, 0]]]), schedule)
    # The first rank's long gather is under way when the second, a second later, passes its short one at once.
    assert outcome.minibatch_s_N.tolist() == [4]
    assert outcome.exposed_communication_s_ND.tolist() == [[3, 3]]


def test_gathers_and_reduces_do_not_disturb_each_other():
    """The second rank reduces while the first gathers."""
    visits = (Visit(0, "backward", gathers=False, reduces=True), Visit(1, "forward", gathers=True, reduces=False))
    schedule = schedule_of("odc", "none", visits, gather_s=1.0, reduce_s=1.0, shared_links=SharedLinks((0, 0), 1.0))
    outcome = simulate(work_of([[[0, 0]], [[1, 0]]]), schedule, recorded_ranks=64)
    assert drawn(outcome, 0) == {
        "compute": "wait 2-3",
        "gather": "gather 1/0 1-2",
        "reduce": "scatter_accumulate 0/0 0-1",
    }
    assert drawn(outcome, 1) == {
        "compute": "backward 0/0 0-1",
        "gather": "gather 1/0 2-3",
        "reduce": "scatter_accumulate 0/0 1-2",
    }


def test_the_whole_stall_for_a_crowded_link_is_exposed_communication():
    schedule = hand_schedule("odc", "prefetch", shared_links=SharedLinks((0, 0), 1.0))
    outcome = simulate(work_of([[[3, 2]], [[3, 2]]]), schedule)
    # Both gather from 0 to 2, compute from 2 to 7, the second gather beside it, and reduce from 7 to 15.
    assert outcome.minibatch_s_N.tolist() == [15]
    assert outcome.exposed_communication_s_ND.tolist() == [[10, 10]]
    assert outcome.synchronization_s_ND.tolist() == [[0, 0]]


def test_fsdp_knows_no_shared_links():
    crowded = hand_schedule("fsdp", "prefetch", shared_links=SharedLinks((0, 0), 0.25))
    assert simulate(work_of(HAND_TIMES_DMV), crowded).minibatch_s_N.tolist() == [17]


class Arrival:
    """A transfer that notes its end."""

    def __init__(self) -> None:
        self.end_s = inf

    def finish(self, now_s: float) -> None:
        self.end_s = now_s


def ends_on_link(arrivals: list[tuple[float, float]], full_rate_transfers: float) -> list[float]:
    """Ends of transfers that begin at some time and take some time at full rate."""
    env = Environment()
    link = SharedLink(env, ranks=len(arrivals), full_rate_transfers=full_rate_transfers)
    transfers = [Arrival() for _ in arrivals]

    def begin(transfer: Arrival, start_s: float, duration_s: float) -> Generator[Event, None, None]:
        yield env.timeout(start_s)
        link.enter(transfer, duration_s=duration_s)

    for transfer, (start_s, duration_s) in zip(transfers, arrivals, strict=True):
        env.process(begin(transfer, start_s, duration_s))
    env.run()
    return [transfer.end_s for transfer in transfers]


def ends_by_fluid_flow(arrivals: list[tuple[float, float]], full_rate_transfers: float) -> list[float]:
    """The same, progress by progress: from each arrival or end to the next, everything moves on at the same rate."""
    left = {}
    waiting = sorted(range(len(arrivals)), key=lambda index: arrivals[index][0])
    ends = [inf] * len(arrivals)
    now_s = 0.0
    while left or waiting:
        rate = min(1.0, full_rate_transfers / len(left)) if left else 1.0
        until_end_s = min(left.values(), default=inf) / rate
        until_arrival_s = arrivals[waiting[0]][0] - now_s if waiting else inf
        step_s = min(until_end_s, until_arrival_s)
        now_s += step_s
        left = {index: duration_s - step_s * rate for index, duration_s in left.items()}
        for index in [index for index, duration_s in left.items() if duration_s <= 1e-12]:
            del left[index]
            ends[index] = now_s
        if until_arrival_s <= until_end_s:
            index = waiting.pop(0)
            left[index] = arrivals[index][1]
    return ends


@settings(max_examples=200, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=8),
    full_rate_transfers=st.sampled_from([0.3, 1.0, 1.7, 2.0, 5.0]),
)
def test_a_link_shares_as_fluid_flow_does(arrivals: list[tuple[int, int]], full_rate_transfers: float):
    """Times in quarters of a second, so that arrivals and ends often coincide."""
    in_seconds = [(start / 4, duration / 4) for start, duration in arrivals]
    expected = ends_by_fluid_flow(in_seconds, full_rate_transfers)
    assert ends_on_link(in_seconds, full_rate_transfers) == pytest.approx(expected, rel=1e-9)


# What holds for every schedule

Case = tuple[Work, Schedule]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Work and a schedule for it; under `odc`, links may be shared."""
    sync = draw(st.sampled_from(["fsdp", "odc"]))
    visits = draw(st.one_of(visit_programs(), st.integers(1, 3).map(decoder_visits)))
    work = draw(works(visits=visits, equal_counts=sync == "fsdp"))
    schedule = draw(schedules(sync=sync, visits=visits))
    if sync == "odc" and draw(st.booleans()):
        ranks = work.counts_ND.shape[1]
        groups = draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks))
        links = SharedLinks(tuple(groups), draw(st.sampled_from([0.5, 1.0, 1.5, 2.0])))
        schedule = dataclasses.replace(schedule, shared_links=links)
    return work, schedule


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_rank_accounts_for_the_whole_minibatch(case: Case):
    work, schedule = case
    outcome = simulate(work, schedule)
    accounts = [getattr(outcome, name) for name in ACCOUNTS]
    assert all((account_ND >= 0).all() for account_ND in accounts)
    expected_ND = np.broadcast_to(outcome.minibatch_s_N[:, None], work.counts_ND.shape)
    np.testing.assert_allclose(sum(accounts), expected_ND, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        outcome.compute_s_ND, (work.factors_NDMF @ work.coefficients_FV).sum(axis=(2, 3)), rtol=1e-12
    )


@settings(max_examples=150, deadline=None)
@given(cases())
def test_spans_tell_what_the_accounts_sum_up(case: Case):
    """Compute and waits are spans, exposed communication is the rest, while a transfer of the rank moves."""
    work, schedule = case
    outcome = simulate(work.minibatch(0), schedule, recorded_ranks=64)
    for rank in range(work.counts_ND.shape[1]):
        spans = [span for span in outcome.spans if span.rank == rank]
        for stream in ("compute", "gather", "reduce"):
            ordered = [span for span in spans if span.stream == stream]
            assert all(before.end_s <= after.start_s + 1e-9 for before, after in pairwise(ordered))
        lengths_s = {"forward": 0.0, "backward": 0.0, "wait": 0.0}
        for span in spans:
            lengths_s[span.name] = lengths_s.get(span.name, 0.0) + span.end_s - span.start_s
        assert lengths_s["forward"] + lengths_s["backward"] == pytest.approx(outcome.compute_s_ND[0, rank], abs=1e-9)
        assert lengths_s["wait"] == pytest.approx(outcome.synchronization_s_ND[0, rank], abs=1e-9)
        moving = [(span.start_s, span.end_s) for span in spans if span.stream != "compute"]
        busy = [(span.start_s, span.end_s) for span in spans if span.stream == "compute"]
        edges = sorted({0.0, outcome.minibatch_s_N[0], *(edge for part in busy for edge in part)})
        exposed_s = 0.0
        for start_s, end_s in pairwise(edges):
            middle_s = (start_s + end_s) / 2
            if end_s - start_s > 1e-9 and not any(begin <= middle_s <= over for begin, over in busy):
                exposed_s += end_s - start_s
                assert any(begin <= middle_s <= over for begin, over in moving)
        assert exposed_s == pytest.approx(outcome.exposed_communication_s_ND[0, rank], abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_the_same_input_gives_the_same_outcome_to_the_last_bit(case: Case):
    work, schedule = case
    first, second = (simulate(work, schedule, recorded_ranks=64) for _ in range(2))
    for field in dataclasses.fields(first):
        one, other = getattr(first, field.name), getattr(second, field.name)
        assert one == other if field.name == "spans" else one.tobytes() == other.tobytes()


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from([4.0, 100.0, inf]))
def test_a_link_wide_enough_for_its_ranks_changes_nothing(case: Case, full_rate_transfers: float):
    work, schedule = case
    ranks = work.counts_ND.shape[1]
    alone = simulate(work, dataclasses.replace(schedule, shared_links=None))
    wide = simulate(work, dataclasses.replace(schedule, shared_links=SharedLinks((0,) * ranks, full_rate_transfers)))
    for name in ("minibatch_s_N", *ACCOUNTS):
        np.testing.assert_array_equal(getattr(alone, name), getattr(wide, name), err_msg=name)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_sharing_a_link_never_makes_a_minibatch_faster(case: Case):
    work, schedule = case
    alone = simulate(work, dataclasses.replace(schedule, shared_links=None))
    shared = simulate(work, schedule)
    assert (shared.minibatch_s_N >= alone.minibatch_s_N - 1e-9).all()


def test_the_package_of_engines_does_not_load_simpy():
    code = "import sys, odcsim.engines; sys.exit('simpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
