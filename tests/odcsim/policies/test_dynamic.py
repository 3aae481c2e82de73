"""`dynamic`: queues under the cap, longest first, that level ranks which no plan knows to differ."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.costs.token_cost import TokenCost
from odcsim.policies import find_policy, plan_minibatch, queues
from odcsim.policies.base import PlanTask
from odcsim.policies.queues import Outlook, form_queue, improve_queue

DYNAMIC = find_policy("dynamic")
TOKENS = TokenCost(quadratic=0.0, linear=1.0)
REAL = TokenCost(quadratic=1 / 42_000, linear=1.0, constant=8_000.0)  # the shape of the ODC paper's fit, in tokens
LENGTHS = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 200)), min_size=1, max_size=30)


def task_of(lengths, *, ranks=3, cap_tokens=200, cost=TOKENS):
    return PlanTask(
        lengths_S=np.array(lengths, dtype=np.int64),
        ranks=ranks,
        cap_tokens=cap_tokens,
        cost=cost,
        speeds_D=np.ones(ranks),
        groups_S=None,
    )


def times_of(queue, lengths_S, cost):
    costs_S = cost.sample_costs_S(lengths_S)
    return [cost.constant + sum(costs_S[sample] for sample in microbatch) for microbatch in queue]


def pulled_s(times, speeds):
    free = [(0.0, rank) for rank in range(len(speeds))]
    for time_s in times:
        since, rank = heapq.heappop(free)
        heapq.heappush(free, (since + time_s / speeds[rank], rank))
    return max(free)[0]


def pulled_at_paces_s(times, pace_D):
    """At first ranks pull by number; later, of ranks that are free at once, the faster goes first."""
    free_D = [time_s * pace for time_s, pace in zip(times, pace_D, strict=False)]
    for time_s in times[len(pace_D) :]:
        rank = min(range(len(pace_D)), key=lambda rank: (free_D[rank], pace_D[rank]))
        free_D[rank] += time_s * pace_D[rank]
    return max(free_D)


def drawn(samples, seed):
    lengths = np.random.default_rng(seed).lognormal(9.3, 0.8, samples)
    return np.clip(lengths, 200, 60_000).astype(np.int64)


@given(lengths=LENGTHS, ranks=st.integers(1, 6), cap_tokens=st.integers(200, 500))
def test_the_longest_goes_first(lengths, ranks, cap_tokens):
    cost = TokenCost(quadratic=1.0, linear=50.0)  # whole numbers, so that equal ones are equal
    plan = DYNAMIC.plan(np.array(lengths), ranks=ranks, cap_tokens=cap_tokens, cost=cost)
    times = times_of(plan.pulled, np.array(lengths), cost)
    assert times == pytest.approx(sorted(times, reverse=True))


@given(lengths=LENGTHS, ranks=st.integers(1, 6), parts=st.sampled_from([1.0, 2.0]), least=st.sampled_from([0.1, 1.0]))
def test_a_queue_holds_every_sample_under_the_cap_before_and_after_it_is_improved(lengths, ranks, parts, least):
    outlook = Outlook(task_of(lengths, ranks=ranks))
    formed = form_queue(outlook, parts=parts, least=least)
    improved = improve_queue(outlook, formed)
    for queue in (formed, improved, outlook.longest_first(improved)):
        assert sorted(sample for microbatch in queue for sample in microbatch) == list(range(len(lengths)))
        assert all(sum(lengths[sample] for sample in microbatch) <= 200 for microbatch in queue)
    before, after = (outlook.expected([outlook.loads(samples) for samples in queue]) for queue in (formed, improved))
    assert after <= before


@given(lengths=LENGTHS, ranks=st.integers(1, 5), data=st.data())
def test_a_queue_is_pulled_in_thought_as_ranks_would(lengths, ranks, data):
    """The mean over ranks that are alike and one that is slower, by both views of what samples cost."""
    attention = data.draw(st.booleans())
    cost = TokenCost(quadratic=1.0, linear=0.0) if attention else TOKENS
    outlook = Outlook(task_of(lengths, ranks=ranks, cost=cost))
    queue = outlook.longest_first([[sample] for sample in range(len(lengths))])
    longest = max(lengths)
    paces = [[1.0] * ranks]
    if ranks > 1:
        paces += [
            [1.5 if rank == slow else 1.0 for rank in range(ranks)] for slow in sorted({0, ranks // 2, ranks - 1})
        ]
    found = []
    for steeper in (0.0, 1.0) if attention else (0.5, 2.0):
        view = [(length**2 if attention else length) * (1 + steeper * length / longest) for length in lengths]
        share = sum(view) / ranks
        times = [view[sample] / share + 1 / 20 for (sample,) in queue]
        found += [pulled_at_paces_s(times, pace_D) for pace_D in paces]
    assert outlook.expected([outlook.loads(samples) for samples in queue]) == pytest.approx(np.mean(found))
    assert outlook.cases == len(found)


def test_what_is_over_the_limit_is_given_up():
    outlook = Outlook(task_of([5, 4, 3, 2]))
    loads = [outlook.loads([sample]) for sample in range(4)]
    exact = outlook.expected(loads)
    assert outlook.expected(loads, limit=exact) == exact
    assert outlook.expected(loads, limit=exact - 1e-6) > exact - 1e-6


def test_a_sample_over_the_cap_stays_alone():
    lengths = np.array([900, 5, 5, 300])
    plan = plan_minibatch(DYNAMIC, lengths, ranks=2, cap_tokens=310, cost=TOKENS, oversize="own-microbatch").plan
    assert (0,) in plan.pulled
    assert plan.pulled[0] == (0,)


def test_one_rank_wants_few_microbatches():
    plan = DYNAMIC.plan(drawn(20, 0), ranks=1, cap_tokens=1_000_000, cost=REAL)
    assert plan.pulled == (tuple(range(20)),)


def test_what_costs_nothing_is_packed_as_tightly_as_it_goes():
    free = TokenCost(quadratic=0.0, linear=0.0)
    assert len(DYNAMIC.plan(np.array([4] * 10), ranks=2, cap_tokens=20, cost=free).pulled) == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_costs_little_though_no_plan_knows_of_it_nor_of_real_costs(seed):
    """Eight a rank. A static plan that thinks all ranks alike takes half as long again, and knows real costs here."""
    lengths = drawn(64, seed)
    plan = DYNAMIC.plan(lengths, ranks=8, cap_tokens=65_536, cost=TOKENS)
    times = times_of(plan.pulled, lengths, REAL)
    static = find_policy("lb-mini").plan(lengths, ranks=8, cap_tokens=65_536, cost=REAL)
    static_s_D = [sum(times_of(microbatches, lengths, REAL)) for microbatches in static.ranks]

    def mean_slowed_s(time_s):
        return np.mean([time_s([2 / 3 if rank == slow else 1.0 for rank in range(8)]) for slow in range(8)])

    static_s = mean_slowed_s(
        lambda speeds: max(time_s / speed for time_s, speed in zip(static_s_D, speeds, strict=True))
    )
    assert mean_slowed_s(lambda speeds: pulled_s(times, speeds)) < 0.85 * static_s
    assert pulled_s(times, [1.0] * 8) < 1.1 * max(static_s_D)


def test_plans_of_many_samples_end_soon(monkeypatch):
    """The search is bounded by what it looks at, not by samples."""
    pulls = 0
    pulled = queues._pulled

    def counted(loads, pace_D):
        nonlocal pulls
        pulls += len(loads)
        return pulled(loads, pace_D)

    monkeypatch.setattr(queues, "_pulled", counted)
    found = []
    for samples in (64, 512, 2048):
        pulls = 0
        DYNAMIC.plan(drawn(samples, 0), ranks=samples // 8, cap_tokens=65_536, cost=REAL)
        found.append(pulls)
    # Beside the search, twelve queues are judged in eight cases each.
    assert max(found) < 2 * queues._PULLS + 12 * 8 * 2048
