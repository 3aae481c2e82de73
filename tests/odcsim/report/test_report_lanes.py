"""Lanes of the timeline: what is drawn must be what the engine accounted for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.engines.recurrence import simulate
from odcsim.engines.timeline import Span
from odcsim.report.lanes import Piece, lanes_of, merged, sampled
from odcsim.schedule import Overlap, Schedule, Sync, Work, decoder_visits


def seconds_by_kind(pieces: Sequence[Piece]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for piece in pieces:
        seconds[piece.kind] = seconds.get(piece.kind, 0.0) + piece.end_s - piece.start_s
    return seconds


@settings(max_examples=40, deadline=None)
@given(
    sync=st.sampled_from(["fsdp", "odc"]),
    overlap=st.sampled_from(["prefetch", "gather-only", "none"]),
    gather_s=st.sampled_from([0.0, 0.3, 2.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_lane_accounts_for_every_second_as_the_engine_does(
    sync: Sync, overlap: Overlap, gather_s: float, seed: int
) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    visits = decoder_visits(3)
    schedule = Schedule(
        sync=sync,
        overlap=overlap,
        visits=visits,
        gather_s_V=np.array([gather_s * visit.gathers for visit in visits]),
        reduce_s_V=np.array([1.5 * gather_s * visit.reduces for visit in visits]),
        publish_s=0.5,
        settle_s=0.25,
        optimizer_s=1.0,
    )
    work = Work(
        counts_ND=np.full((1, 4), 3),
        factors_NDMF=generator.random((1, 4, 3, 1)),
        coefficients_FV=np.ones((1, len(visits))),
    )
    outcome = simulate(work, schedule, recorded_ranks=4)
    lanes = lanes_of(outcome.spans, ranks=4)
    assert [lane.rank for lane in lanes] == [0, 1, 2, 3]
    for lane in lanes:
        seconds = seconds_by_kind(lane.compute)
        assert seconds["forward"] + seconds["backward"] == pytest.approx(outcome.compute_s_ND[0, lane.rank])
        assert seconds.get("wait", 0.0) == pytest.approx(outcome.synchronization_s_ND[0, lane.rank], abs=1e-9)
        exposed_s = outcome.exposed_communication_s_ND[0, lane.rank]
        assert seconds.get("exposed", 0.0) == pytest.approx(exposed_s, abs=1e-9)
        assert seconds["optimizer"] == pytest.approx(1.0)
        assert sum(seconds.values()) == pytest.approx(outcome.minibatch_s_N[0])
        starts = [piece.start_s for piece in lane.compute]
        ends = [piece.end_s for piece in lane.compute]
        assert all(end <= start + 1e-9 for end, start in zip(ends, starts[1:], strict=False)), "pieces overlap"
        blocks = lane.blocks()
        assert [block.first_microbatch for block in blocks if block.first_microbatch >= 0] == [0, 1, 2]
        assert sum(sum(block.seconds.values()) for block in blocks) == pytest.approx(sum(seconds.values()))


def test_units_of_a_microbatch_are_one_piece_and_microbatches_are_not() -> None:
    spans = [
        Span(0, "forward", unit, microbatch, 2 * microbatch + unit, 2 * microbatch + unit + 1, "compute")
        for microbatch in (0, 1)
        for unit in (0, 1)
    ]
    (lane,) = lanes_of(spans, ranks=1)
    assert lane.compute == (Piece("forward", 0, 0, 2), Piece("forward", 1, 2, 4))


def test_overlapping_transfers_are_under_way_once_and_only_gaps_are_exposed() -> None:
    spans = [
        Span(0, "gather", 1, 0, 0.0, 2.0, "gather"),
        Span(0, "forward", 1, 0, 2.0, 4.0, "compute"),
        Span(0, "gather", 2, 0, 3.0, 6.0, "gather"),
        Span(0, "scatter_accumulate", 1, 0, 5.0, 7.0, "reduce"),
        Span(0, "forward", 2, 0, 8.0, 9.0, "compute"),
    ]
    (lane,) = lanes_of(spans, ranks=1)
    assert lane.transfers == (Piece("transfer", -1, 0.0, 2.0), Piece("transfer", -1, 3.0, 7.0))
    assert lane.compute == (
        Piece("exposed", 0, 0.0, 2.0),
        Piece("forward", 0, 2.0, 4.0),
        Piece("exposed", 0, 4.0, 7.0),
        # From 7 to 8 nothing was under way: nothing is drawn.
        Piece("forward", 0, 8.0, 9.0),
    )


def test_ranks_beyond_the_limit_are_left_out() -> None:
    spans = [Span(rank, "forward", 0, 0, 0.0, 1.0, "compute") for rank in range(5)]
    assert [lane.rank for lane in lanes_of(spans, ranks=2)] == [0, 1]


def test_merging_joins_across_rounding_errors_only() -> None:
    tenth = Piece("wait", 0, 0.0, 0.1 + 0.2)
    assert merged([tenth, Piece("wait", 0, 0.3, 1.0)]) == [Piece("wait", 0, 0.0, 1.0)]
    apart = [tenth, Piece("wait", 0, 0.31, 1.0)]
    assert merged(apart) == apart


@pytest.mark.parametrize("columns", [10, 37, 400])
def test_sampling_keeps_shares_of_patterns_finer_than_a_column(columns: int) -> None:
    # A thousand units of 0.7 s forward and 0.3 s waiting, then nothing for as long again.
    pieces = [
        piece
        for unit in range(1000)
        for piece in (Piece("forward", 0, unit, unit + 0.7), Piece("wait", 0, unit + 0.7, unit + 1))
    ]
    drawn = sampled(pieces, columns=columns, end_s=2000.0)
    seconds = seconds_by_kind(drawn)
    column_s = 2000.0 / columns
    assert seconds["forward"] == pytest.approx(700, abs=1.01 * column_s)
    assert seconds["wait"] == pytest.approx(300, abs=1.01 * column_s)
    assert drawn[-1].end_s <= 1000 + 1.01 * column_s
    assert len(drawn) <= columns


def test_sampling_leaves_coarse_patterns_where_they_are() -> None:
    pieces = [Piece("forward", 0, 0.0, 4.0), Piece("wait", 0, 4.0, 6.0), Piece("backward", 0, 6.0, 10.0)]
    drawn = sampled(pieces, columns=10, end_s=10.0)
    assert [(piece.kind, round(piece.start_s), round(piece.end_s)) for piece in drawn] == [
        ("forward", 0, 4),
        ("wait", 4, 6),
        ("backward", 6, 10),
    ]
