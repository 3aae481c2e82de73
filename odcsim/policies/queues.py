"""Queues of microbatches that ranks pull: forming them, and how long one takes in view of what may happen.

A queue is pulled longest first. How long it takes is judged by pulling it in thought, several times: by ranks that are
all alike, and with one slower than the others, which may be any; and by two views of how costs grow with length, since
what plans are told may be off. The mean of all counts. So a queue is not made for the one case that a cost model
describes, which no run is.

Times are in units of an even share of all samples' costs. Legend: S samples, D ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from random import Random

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.partition.longest_first import LongestFirst, Pool
from odcsim.plan import Microbatch
from odcsim.policies.base import PlanTask

__all__ = ["Outlook", "form_falling", "form_queue", "improve_queue"]

# How much longer than the others a rank takes for everything that turns out slow.
_SLOW = 1.5
# A microbatch is never taken to be free, whatever the cost model says.
_LEAST_CONSTANT = 1 / 20
# How much more than it is said to cost, in proportion to others, a token of the longest sample may cost: two views.
# Where costs are tokens alone, attention is left out of them, so they are off by more.
_STEEPER, _STEEPER_THAN_TOKENS = (0.0, 1.0), (0.5, 2.0)

# Changes of a queue, by how often they are tried.
_MOVE, _MOVE_TO_NEW, _MERGE, _SPLIT = 0.4, 0.45, 0.55, 0.6
# How many are tried, for each sample, and at most by the microbatches pulled in thought: some thirty milliseconds.
_TRIES_PER_SAMPLE = 20
_PULLS = 200_000

_Loads = tuple[float, float]  # of a microbatch, by both views


class Outlook:
    """What may happen to the queues of one minibatch.

    Attributes:
        tokens_S: of each sample, at most the cap, so that nothing joins a sample over it.
        cap_tokens: most tokens of a microbatch.
        ranks: D.
        costs_S: of each sample, by the first view.
        samples: all of them, longest first.
    """

    def __init__(self, task: PlanTask) -> None:
        self.ranks = task.ranks
        self.cap_tokens = task.cap_tokens
        tokens_S = np.minimum(task.lengths_S, task.cap_tokens)
        self.tokens_S: list[int] = tokens_S.tolist()
        costs_S = task.cost.sample_costs_S(task.lengths_S)
        even_share = float(costs_S.sum()) / task.ranks
        steeper = _STEEPER if task.cost.quadratic else _STEEPER_THAN_TOKENS
        self.costs_S, self._steeper_S = (
            _in_even_shares(costs_S * (1 + by * tokens_S / tokens_S.max()), ranks=task.ranks) for by in steeper
        )
        self._constant = max(task.cost.constant / even_share if even_share else 0.0, _LEAST_CONSTANT)
        self.samples = LongestFirst(range(len(self.tokens_S)), self.costs_S, self.tokens_S)
        # What a rank takes for what takes others 1: the slow one may be the first to pull, and gets the longest then.
        alike = [1.0] * task.ranks
        self._pace_XD = [alike]
        for slow in sorted({0, task.ranks // 2, task.ranks - 1}) if task.ranks > 1 else ():
            self._pace_XD.append([*alike[:slow], _SLOW, *alike[slow + 1 :]])
        self._speeds_X = [sum(1 / pace for pace in pace_D) for pace_D in self._pace_XD]

    @property
    def cases(self) -> int:
        """How often a queue is pulled in thought."""
        return 2 * len(self._pace_XD)

    def loads(self, samples: Sequence[int]) -> _Loads:
        """Of a microbatch."""
        constant, costs_S, steeper_S = self._constant, self.costs_S, self._steeper_S
        return (
            constant + sum([costs_S[sample] for sample in samples]),
            constant + sum([steeper_S[sample] for sample in samples]),
        )

    def expected(self, loads: Sequence[_Loads], *, limit: float = float("inf")) -> float:
        """What a queue takes in the mean, or some time over `limit` if it is over that."""
        longest_first = sorted(loads, reverse=True)
        views = [[load[view] for load in longest_first] for view in (0, 1)]
        # No case takes less than its work shared evenly: what is known already, and that for the rest.
        total = sum(sum(view) / speeds for view in views for speeds in self._speeds_X)
        for view in views:
            work = sum(view)
            for pace_D, speeds in zip(self._pace_XD, self._speeds_X, strict=True):
                total += _pulled(view, pace_D) - work / speeds
                if total > limit * self.cases:
                    return total / self.cases
        return total / self.cases

    def longest_first(self, queue: Sequence[Sequence[int]]) -> tuple[Microbatch, ...]:
        """The queue in the order of pulling; ties go by the samples' numbers."""
        keyed = [(self.loads(samples), tuple(sorted(samples))) for samples in queue]
        return tuple(samples for _, samples in sorted(keyed, key=lambda entry: (-entry[0][0], -entry[0][1], entry[1])))


def _in_even_shares(costs_S: FloatArray, *, ranks: int) -> list[float]:
    """Costs in units of what each rank runs if all share them evenly; zeros stay."""
    even_share = float(costs_S.sum()) / ranks
    shares: list[float] = (costs_S / (even_share or 1.0)).tolist()
    return shares


def _pulled(loads: Sequence[float], pace_D: Sequence[float]) -> float:
    """When the last rank is through with a queue."""
    # A rank is known by its pace alone: of two that are free at once, the faster goes first.
    free = [(load * pace, pace) for load, pace in zip(loads, pace_D, strict=False)]
    heapify(free)
    for load in loads[len(pace_D) :]:
        since, pace = free[0]
        heapreplace(free, (since + load * pace, pace))
    return max(free)[0]


def form_queue(outlook: Outlook, *, parts: float, least: float) -> list[list[int]]:
    """All samples as microbatches of falling size, see `form_falling`.

    Args:
        outlook: the samples.
        parts: how many of each rank.
        least: a microbatch is to be of this size at least, in even shares, as long as samples are left.
    """
    return form_falling(outlook.samples, ranks=outlook.ranks, cap_tokens=outlook.cap_tokens, parts=parts, least=least)


def form_falling(samples: LongestFirst, *, ranks: int, cap_tokens: int, parts: float, least: float) -> list[list[int]]:
    """Microbatches of falling size: each is to take one part in `parts` x ranks of the work left, as in guided
    self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36(12), 1987).

    The longest sample left begins a microbatch; then the longest that still fits joins, until none does.

    Args:
        samples: what they are formed of.
        ranks: D.
        cap_tokens: most tokens of a microbatch.
        parts: how many of each rank.
        least: a microbatch is to cost this at least, as long as samples are left.
    """
    pool, queue = Pool(samples), []
    while pool.highest_cost is not None:
        room = max(pool.cost / (parts * ranks), least)
        queue.append(pool.fill(room, cap_tokens, first_fits=True))
    return queue


def improve_queue(outlook: Outlook, queue: Sequence[Sequence[int]]) -> list[list[int]]:
    """The queue after changes that each make it no worse: samples move, or change places; microbatches are merged, or
    split. Which changes are tried is drawn at random, always in the same way; a budget limits them.
    """
    microbatches = [list(samples) for samples in queue]
    loads = [outlook.loads(samples) for samples in microbatches]
    best = outlook.expected(loads)
    random = Random(0)  # noqa: S311 - no secret
    tries = min(_TRIES_PER_SAMPLE * len(outlook.tokens_S), _PULLS // (outlook.cases * len(microbatches)))
    for _ in range(tries):
        change = _draw_change(microbatches, random)
        if change is None or any(not _keeps_cap(outlook, samples) for samples in change.values()):
            continue
        changed_loads = {place: outlook.loads(samples) for place, samples in change.items() if samples}
        kept = [place for place in range(len(microbatches)) if place not in change]
        found = outlook.expected([*(loads[place] for place in kept), *changed_loads.values()], limit=best)
        if found <= best:
            best = found
            microbatches = [*(microbatches[place] for place in kept), *(change[place] for place in changed_loads)]
            loads = [*(loads[place] for place in kept), *changed_loads.values()]
    return microbatches


def _draw_change(microbatches: Sequence[list[int]], random: Random) -> dict[int, list[int]] | None:
    """What becomes of one or two microbatches, by place, and of a new one at the end; None for no change."""
    count = len(microbatches)

    def draw(below: int) -> int:
        # Of all that `Random` has, only its numbers from 0 to 1 are the same in every version of Python.
        return int(random.random() * below)

    kind, one, other = random.random(), draw(count), draw(count)
    first, second = microbatches[one], microbatches[other]
    if kind < _MOVE_TO_NEW:
        to_new = kind >= _MOVE
        if (len(first) == 1) if to_new else one == other:
            return None
        place = draw(len(first))
        rest = first[:place] + first[place + 1 :]
        moved = [first[place]]
        return {one: rest, count: moved} if to_new else {one: rest, other: second + moved}
    if kind < _MERGE:
        return None if one == other else {one: first + second, other: []}
    if kind < _SPLIT:
        cut = draw(len(first))
        return {one: first[:cut], count: first[cut:]} if cut else None
    if one == other:
        return None
    place, other_place = draw(len(first)), draw(len(second))
    return {
        one: [*first[:place], second[other_place], *first[place + 1 :]],
        other: [*second[:other_place], first[place], *second[other_place + 1 :]],
    }


def _keeps_cap(outlook: Outlook, samples: Sequence[int]) -> bool:
    return sum([outlook.tokens_S[sample] for sample in samples]) <= outlook.cap_tokens
