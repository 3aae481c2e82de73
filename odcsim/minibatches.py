"""The minibatches of a scenario: their lengths, plans and slowdowns. Both programs run what is made here.

Legend: N minibatches, S samples of one, D ranks, M microbatches of a rank.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.errors import PolicyError
from odcsim.lengths import cut, scaled
from odcsim.plan_cache import PlanCache
from odcsim.policies import MinibatchPlan, plan_minibatch
from odcsim.resolve import ResolvedCase, ResolvedScenario
from odcsim.scenario import Workload
from odcsim.scenario.schema import Slowdowns

__all__ = ["compute_noise_DM", "draw_lengths", "draw_slowdowns", "plan_of_case", "slowdowns_DM"]

# Keep slowdowns and noise apart from whatever else is drawn from the same seed.
_SLOWDOWNS_KEY = 0x510
_COMPUTE_NOISE_KEY = 0x6E6F


def draw_lengths(resolved: ResolvedScenario, *, file: Path | None = None) -> IntArray:
    """The lengths of all minibatches in tokens, shape (N, S); every case runs the same ones."""
    workload = resolved.scenario.workload
    samples = workload.samples_of(resolved.scenario.cluster.ranks)
    lengths_NS = resolved.source.draw(workload.minibatches, samples, workload.seed)
    if workload.length_scale != 1.0:
        lengths_NS = scaled(lengths_NS, scale=workload.length_scale, file=file)
    return lengths_NS if workload.cut_tokens is None else cut(lengths_NS, cut_tokens=workload.cut_tokens)


def plan_of_case(
    resolved: ResolvedScenario,
    case: ResolvedCase,
    lengths_S: IntArray,
    *,
    minibatch: int,
    file: Path | None = None,
    plans: PlanCache | None = None,
) -> MinibatchPlan:
    """The plan that a case's policy makes of one minibatch; padding, if the case asks for it, is not in it.

    Args:
        resolved: the scenario.
        case: one of its cases.
        lengths_S: of the minibatch, in tokens.
        minibatch: its number, from 0.
        file: the scenario's file, for messages.
        plans: plans that were made already; None: it is made.

    Raises:
        PolicyError: there is none; the text names the minibatch, its key the setting that is in the way.
    """
    workload, planning = resolved.scenario.workload, resolved.scenario.planning
    groups_NS = resolved.kept_groups_NS
    make = plan_minibatch if plans is None else partial(plans.plan_minibatch, samples_before=minibatch * lengths_S.size)
    try:
        return make(
            case.policy,
            lengths_S,
            ranks=resolved.scenario.cluster.ranks,
            cap_tokens=workload.max_tokens,
            cost=resolved.planning_cost,
            oversize=workload.oversize,
            speeds_D=resolved.speeds_D if planning.known_speeds else None,
            groups_S=None if groups_NS is None else groups_NS[minibatch],
        )
    except PolicyError as error:
        key = f"workload.{error.key}" if error.key in Workload.model_fields else "workload"
        raise PolicyError(f"minibatch {minibatch}: {error.problem}", file=file, key=key, value=error.value) from None


def draw_slowdowns(resolved: ResolvedScenario, *, minibatch: int, microbatches: int) -> FloatArray:
    """How many times longer each microbatch of one minibatch takes, shape (D, M).

    The m-th microbatch of a rank is slowed down alike in every case that has one, however many it has.
    """
    cluster, seed = resolved.scenario.cluster, resolved.scenario.workload.seed
    slowed_DM = np.ones((cluster.ranks, microbatches))
    if cluster.slowdowns is not None:
        slowed_DM *= slowdowns_DM(
            cluster.slowdowns, seed=seed, minibatch=minibatch, ranks=cluster.ranks, count=microbatches
        )
    if cluster.compute_noise:
        slowed_DM *= compute_noise_DM(
            cluster.compute_noise, seed=seed, minibatch=minibatch, ranks=cluster.ranks, count=microbatches
        )
    return slowed_DM


def slowdowns_DM(slowdowns: Slowdowns, *, seed: int, minibatch: int, ranks: int, count: int) -> FloatArray:
    """How many times longer microbatches take by `cluster.slowdowns` alone; `count` is M."""
    entropy = np.random.SeedSequence([seed, _SLOWDOWNS_KEY, minibatch])
    draws_MD = np.random.Generator(np.random.PCG64(entropy)).random((count, ranks))
    return np.where(slowdowns.probability > draws_MD.T, slowdowns.factor, 1.0)


def compute_noise_DM(sigma: float, *, seed: int, minibatch: int, ranks: int, count: int) -> FloatArray:
    """How many times longer microbatches take by `cluster.compute_noise` alone, log-normal of mean 1; `count` is M."""
    entropy = np.random.SeedSequence([seed, _COMPUTE_NOISE_KEY, minibatch])
    draws_MD = np.random.Generator(np.random.PCG64(entropy)).standard_normal((count, ranks))
    noise_DM: FloatArray = np.exp(sigma * draws_MD.T - sigma**2 / 2)
    return noise_DM
