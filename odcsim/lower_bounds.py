"""What no plan of a minibatch can beat: compute alone, on ranks of the scenario's speeds, and the optimizer's step.

Under any sync the busiest rank takes so long at least (`odcsim.partition.bounds_busiest`). Under `fsdp` ranks run their
k-th microbatches together, in a step, and all steps take so long at least (`odcsim.partition.bounds_lockstep`); the
larger of the two bounds counts.

With `overlap: prefetch` steps are not quite apart: a gather starts once all ranks have *started* the visit before it.
So the last visit of a microbatch (the embedding's backward) may run beside the first one of the next (its forward), but
no rank starts the second one before all are through with the last. The second bound then leaves out the first visits,
or the last ones, whichever leaves more. In all but calibrated models of compute both cost nothing anyway. With the
other overlaps ranks do not go on before the reduce after the last visit, which waits for all of them: nothing is left
out.

Slowdowns and transfers only add to these times. `cluster.compute_noise` may take from them: there they are no bounds.

Legend: C cases, N minibatches, S samples of one, D ranks, V visits, F terms of a cost.
"""

from __future__ import annotations

import numpy as np

from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.token_cost import TokenCost
from odcsim.partition.bounds_busiest import busiest_rank_s
from odcsim.partition.bounds_lockstep import lockstep_steps_s
from odcsim.partition.bounds_samples import SortedSamples
from odcsim.resolve import ResolvedCase, ResolvedScenario

__all__ = ["any_sync_bounds_s_N", "lower_bounds_s_CN"]


def lower_bounds_s_CN(resolved: ResolvedScenario, lengths_NS: IntArray) -> FloatArray:
    """Seconds of each minibatch that no plan can beat under each case's sync, shape (C, N).

    Args:
        resolved: the scenario.
        lengths_NS: as they are drawn, in tokens.
    """
    step_costs_C = [_step_costs(resolved, case) for case in resolved.cases]
    bounds_s_CN = np.empty((len(step_costs_C), len(lengths_NS)))
    for minibatch, lengths_S in enumerate(lengths_NS):
        # Cases that differ in their policies alone have one bound.
        bound_s_of = _bounds_s(resolved, lengths_S, set(step_costs_C))
        bounds_s_CN[:, minibatch] = [bound_s_of[costs] for costs in step_costs_C]
    return bounds_s_CN + _optimizer_s(resolved)


def any_sync_bounds_s_N(resolved: ResolvedScenario, lengths_NS: IntArray, *, cap_tokens: int) -> FloatArray:
    """Seconds of each minibatch that no plan can beat under any sync, shape (N,).

    Args:
        resolved: the scenario.
        lengths_NS: as they are drawn, in tokens.
        cap_tokens: most tokens of a microbatch, in place of the scenario's.
    """
    compute_s = [
        busiest_rank_s(
            SortedSamples.of(
                _run_S(resolved, lengths_S, cap_tokens=cap_tokens), cost=resolved.cost, cap_tokens=cap_tokens
            ),
            constant=resolved.cost.constant,
            speeds_D=resolved.speeds_D,
        )
        for lengths_S in lengths_NS
    ]
    return np.array(compute_s) + _optimizer_s(resolved)


def _bounds_s(
    resolved: ResolvedScenario, lengths_S: IntArray, step_costs: set[tuple[TokenCost, ...]]
) -> dict[tuple[TokenCost, ...], float]:
    """Compute of one minibatch that no plan can beat, for each of what steps may cost (`_step_costs`)."""
    cap_tokens, speeds_D = resolved.scenario.workload.max_tokens, resolved.speeds_D
    run_S = _run_S(resolved, lengths_S, cap_tokens=cap_tokens)
    samples = SortedSamples.of(run_S, cost=resolved.cost, cap_tokens=cap_tokens)

    def steps_s(cost: TokenCost) -> float:
        at_cost = samples if cost == resolved.cost else SortedSamples.of(run_S, cost=cost, cap_tokens=cap_tokens)
        return lockstep_steps_s(at_cost, constant=cost.constant, ranks=speeds_D.size) / float(speeds_D.max())

    any_sync_s = busiest_rank_s(samples, constant=resolved.cost.constant, speeds_D=speeds_D)
    return {costs: max([any_sync_s, *map(steps_s, costs)]) for costs in step_costs}


def _run_S(resolved: ResolvedScenario, lengths_S: IntArray, *, cap_tokens: int) -> IntArray:
    """Lengths as they are run, without dropped samples; whether one may be over the cap is for plans to say."""
    oversize = resolved.scenario.workload.oversize
    if oversize == "drop":
        return lengths_S[lengths_S <= cap_tokens]
    return np.minimum(lengths_S, cap_tokens) if oversize == "truncate" else lengths_S


def _optimizer_s(resolved: ResolvedScenario) -> float:
    """The same in all cases."""
    return resolved.cases[0].schedule.optimizer_s


def _step_costs(resolved: ResolvedScenario, case: ResolvedCase) -> tuple[TokenCost, ...]:
    """What a microbatch costs of which all ranks wait for the slowest: any of these; none where they need not wait."""
    if case.case.sync == "odc":
        return ()
    outer_VF = resolved.coefficients_FV[:, [0, -1]].T
    if case.schedule.overlap != "prefetch" or not outer_VF.any(axis=1).all():
        return (resolved.cost,)
    whole_F = np.array([resolved.cost.quadratic, resolved.cost.linear, resolved.cost.constant])
    return tuple(TokenCost(*np.maximum(whole_F - visit_F, 0.0).tolist()) for visit_F in outer_VF)
