"""Minibatches, each in an environment of its own.

What surrounds the microbatches (publish, settle, optimizer) takes all ranks alike, so it needs no events: the clock
starts at the first microbatch, after the opening, and stops at the barrier after the last one. Times in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from math import inf

import numpy as np
from simpy import Environment

from odcsim.engines.events.links import LinkStream, SharedLink
from odcsim.engines.events.program import Program
from odcsim.engines.events.rank import Rank
from odcsim.engines.events.recording import RankRecorder
from odcsim.engines.events.transfers import Collective, CollectiveStream, Issue, LaggingStream, OwnStream
from odcsim.engines.leaving import leaving_shares
from odcsim.engines.timeline import Outcome, Span, framed_spans
from odcsim.schedule import Schedule, SharedLinks, Work

__all__ = ["run_microbatches", "simulate"]


def simulate(work: Work, schedule: Schedule, *, recorded_ranks: int = 0) -> Outcome:
    """Simulate N minibatches.

    Args:
        work: compute of N minibatches on D ranks.
        schedule: how ranks synchronize and what transfers cost; `shared_links` counts under `odc` only.
        recorded_ranks: spans of the first minibatch are returned for so many ranks, the first ones.

    Raises:
        InputError: unequal microbatch counts under `fsdp`.
    """
    work.require_counts_for(schedule.sync)
    minibatches, ranks = work.counts_ND.shape
    end_ND, compute_ND, waited_ND = np.zeros((3, minibatches, ranks))
    spans: tuple[Span, ...] = ()
    for index in range(minibatches):
        recorders: list[RankRecorder] = []
        if index == 0:
            recorders = [RankRecorder(rank, visits=schedule.visits) for rank in range(min(recorded_ranks, ranks))]
        env = Environment(initial_time=schedule.opening_s)
        results = run_microbatches(work.minibatch(index), schedule, env=env, recorders=recorders)
        end_ND[index] = [rank.end_s - schedule.opening_s for rank in results]
        compute_ND[index] = [rank.compute_s for rank in results]
        waited_ND[index] = [rank.waited_s for rank in results]
        if recorders:
            recorded = (span for recorder in recorders for span in recorder.finish())
            spans = framed_spans(recorded, schedule, end_D=end_ND[index], ranks=len(recorders))
    return Outcome.of(schedule, end_ND=end_ND, compute_ND=compute_ND, waited_ND=waited_ND, spans=spans)


def run_microbatches(
    work: Work, schedule: Schedule, *, env: Environment, recorders: Sequence[RankRecorder] = ()
) -> list[Rank]:
    """Run the microbatches of the single minibatch of `work` in `env`, until the last rank is done.

    Args:
        work: of one minibatch, with counts that suit the schedule's sync.
        schedule: as for `simulate`.
        env: whose clock stands at the start of the microbatches.
        recorders: of the first ranks, whose spans are wanted.
    """
    assert work.counts_ND.shape[0] == 1
    counts_D: list[int] = work.counts_ND[0].tolist()
    gathers, reduces = _streams(schedule, counts_D, env=env)
    ranks = [
        Rank(env, gather=gather, reduce=reduce)
        if recorder is None
        else Rank(
            env,
            gather=recorder.recorded(gather, "gather"),
            reduce=recorder.recorded(reduce, "reduce"),
            recorder=recorder,
        )
        for gather, reduce, recorder in zip_longest(gathers, reduces, recorders)
    ]
    program = Program(schedule.visits, overlap=schedule.overlap)
    running = [
        env.process(rank.run(factors_MF[:count], work.coefficients_FV, program=program))
        for rank, factors_MF, count in zip(ranks, work.factors_NDMF[0], counts_D, strict=True)
    ]
    env.run(until=env.all_of(running))
    return ranks


def _streams(schedule: Schedule, counts_D: list[int], *, env: Environment) -> tuple[list[Issue], list[Issue]]:
    """What issues the gathers, and what issues the reduces, of each rank."""
    gather_s_V: list[float] = schedule.gather_s_V.tolist()
    reduce_s_V: list[float] = schedule.reduce_s_V.tolist()
    if schedule.sync == "odc":
        links = schedule.shared_links or SharedLinks(group_of_rank=(0,) * len(counts_D), full_rate_transfers=inf)
        assert len(links.group_of_rank) == len(counts_D), (
            f"groups for {len(links.group_of_rank)} of {len(counts_D)} ranks"
        )
        return _one_sided(gather_s_V, links, env=env), _one_sided(reduce_s_V, links, env=env)
    gathered_s = [time_s for time_s, visit in zip(gather_s_V, schedule.visits, strict=True) if visit.gathers]
    reduced_s = [time_s for time_s, visit in zip(reduce_s_V, schedule.visits, strict=True) if visit.reduces]
    return (
        _collective(gathered_s, counts_D, env=env, lag=schedule.gather_lag),
        _collective(reduced_s, counts_D, env=env, lag=schedule.reduce_lag),
    )


def _collective(duration_s: list[float], counts_D: list[int], *, env: Environment, lag: float) -> list[Issue]:
    """Streams of all ranks that meet: `duration_s` of the collectives of one microbatch, which all ranks run."""
    ranks, microbatches = len(counts_D), max(counts_D, default=0)
    collectives = [Collective(env, ranks=ranks, duration_s=time_s) for time_s in duration_s * microbatches]
    if lag == 0:
        return [CollectiveStream(collectives).issue for _ in range(ranks)]
    shares_KD = np.array([leaving_shares(ranks, collective=place, lag=lag) for place in range(len(collectives))])
    later_s_KD = shares_KD.reshape(-1, ranks) * np.array(duration_s * microbatches)[:, None]
    return [LaggingStream(env, collectives, later_s_K=later_s_K.tolist()).issue for later_s_K in later_s_KD.T]


def _one_sided(duration_s_V: list[float], links: SharedLinks, *, env: Environment) -> list[Issue]:
    """Streams of all ranks that do not meet, though they may crowd each other."""
    # A rank has one transfer of a direction under way: a link that carries one of each of its ranks is never crowded.
    crowded = {
        group: SharedLink(env, ranks=size, full_rate_transfers=links.full_rate_transfers)
        for group, size in Counter(links.group_of_rank).items()
        if size > links.full_rate_transfers
    }
    return [
        LinkStream(env, link=crowded[group], duration_s_V=duration_s_V).issue
        if group in crowded
        else OwnStream(env, duration_s_V=duration_s_V).issue
        for group in links.group_of_rank
    ]
