"""The minibatches of a scenario: their lengths, plans, slowdowns and lower bounds. Both programs run what is made here.

Legend: N minibatches, S samples of one, D ranks, M microbatches of a rank.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import PolicyError
from odcsim.lengths import cut, scaled
from odcsim.partition.bounds import compute_lower_bound_s
from odcsim.policies import MinibatchPlan, plan_minibatch
from odcsim.resolve import ResolvedCase, ResolvedScenario
from odcsim.scenario import Workload
from odcsim.scenario.schema import Slowdowns

__all__ = ["draw_lengths", "draw_slowdowns", "lower_bound_s", "plan_of_case", "slowdowns_DM"]

# Keeps slowdowns apart from whatever else is drawn from the same seed.
_SLOWDOWNS_KEY = 0x510


def draw_lengths(resolved: ResolvedScenario, *, file: Path | None = None) -> IntArray:
    """The lengths of all minibatches in tokens, shape (N, S); every case runs the same ones."""
    workload = resolved.scenario.workload
    samples = workload.samples_of(resolved.scenario.cluster.ranks)
    lengths_NS = resolved.source.draw(workload.minibatches, samples, workload.seed)
    if workload.length_scale != 1.0:
        lengths_NS = scaled(lengths_NS, scale=workload.length_scale, file=file)
    return lengths_NS if workload.cut_tokens is None else cut(lengths_NS, cut_tokens=workload.cut_tokens)


def plan_of_case(
    resolved: ResolvedScenario, case: ResolvedCase, lengths_S: IntArray, *, minibatch: int, file: Path | None = None
) -> MinibatchPlan:
    """The plan that a case's policy makes of one minibatch; padding, if the case asks for it, is not in it.

    Raises:
        PolicyError: there is none; the text names the minibatch, its key the setting that is in the way.
    """
    workload = resolved.scenario.workload
    try:
        return plan_minibatch(
            case.policy,
            lengths_S,
            ranks=resolved.scenario.cluster.ranks,
            cap_tokens=workload.max_tokens,
            cost=resolved.cost,
            oversize=workload.oversize,
        )
    except PolicyError as error:
        key = f"workload.{error.key}" if error.key in Workload.model_fields else "workload"
        raise PolicyError(f"minibatch {minibatch}: {error.problem}", file=file, key=key, value=error.value) from None


def lower_bound_s(resolved: ResolvedScenario, lengths_S: IntArray) -> float:
    """What no plan of a minibatch can beat under any sync: compute alone, and the optimizer's step."""
    workload = resolved.scenario.workload
    cap_tokens = workload.max_tokens
    if workload.oversize == "drop":
        lengths_S = lengths_S[lengths_S <= cap_tokens]
    elif workload.oversize == "truncate":
        lengths_S = np.minimum(lengths_S, cap_tokens)
    compute_s = compute_lower_bound_s(lengths_S, cost=resolved.cost, cap_tokens=cap_tokens, speeds_D=resolved.speeds_D)
    return compute_s + resolved.cases[0].schedule.optimizer_s


def draw_slowdowns(resolved: ResolvedScenario, *, minibatch: int, microbatches: int) -> FloatArray:
    """How many times longer each microbatch of one minibatch takes, shape (D, M).

    The m-th microbatch of a rank is slowed down alike in every case that has one, however many it has.
    """
    scenario = resolved.scenario
    slowdowns = scenario.cluster.slowdowns
    if slowdowns is None:
        return np.ones((scenario.cluster.ranks, microbatches))
    return slowdowns_DM(
        slowdowns, seed=scenario.workload.seed, minibatch=minibatch, ranks=scenario.cluster.ranks, count=microbatches
    )


def slowdowns_DM(slowdowns: Slowdowns, *, seed: int, minibatch: int, ranks: int, count: int) -> FloatArray:
    """The same by what decides it: the scenario's slowdowns and seed, and the minibatch; `count` is M."""
    entropy = np.random.SeedSequence([seed, _SLOWDOWNS_KEY, minibatch])
    draws_MD = np.random.Generator(np.random.PCG64(entropy)).random((count, ranks))
    return np.where(slowdowns.probability > draws_MD.T, slowdowns.factor, 1.0)
