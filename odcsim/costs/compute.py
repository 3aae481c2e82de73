"""Compute: seconds of every visit of a microbatch, per squared token, per token and per microbatch.

Both models say `time(visit) = coefficients[0] Q + coefficients[1] T + coefficients[2]` with Q the sum of the squared
lengths and T the sum of the lengths of the microbatch. docs/model.md derives them ("Compute").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.costs.token_cost import TokenCost
from odcsim.model_shape import ModelShape
from odcsim.schedule import ROOT_UNIT, Visit

__all__ = ["FACTORS", "analytic_compute", "fitted_compute", "microbatch_cost"]

FACTORS = ("squared_tokens", "tokens", "one")

# FlashAttention's backward runs five matrix products where its forward runs two (arXiv 2205.14135, algorithm 4).
ATTENTION_BACKWARD = 2.5
LINEAR_BACKWARD = 2.0


def _flops_FV(shape: ModelShape, visits: Sequence[Visit], *, recompute: bool) -> FloatArray:
    """FLOPs of each visit per squared token (row 0, attention) and per token (row 1, matrix products)."""
    flops_FV = np.zeros((2, len(visits)))
    recomputed = 1.0 if recompute else 0.0
    for position, visit in enumerate(visits):
        if visit.unit == ROOT_UNIT:
            # The root is visited twice each way: the embedding's look-up (no FLOPs) holds the transfers, the head none.
            if not visit.gathers and not visit.reduces:
                times = 1.0 if visit.phase == "forward" else LINEAR_BACKWARD
                flops_FV[1, position] = times * shape.forward_head_flops_per_token
        elif visit.phase == "forward":
            flops_FV[0, position] = shape.forward_attention_flops_per_squared_token
            flops_FV[1, position] = shape.forward_linear_flops_per_token
        else:
            flops_FV[0, position] = (ATTENTION_BACKWARD + recomputed) * shape.forward_attention_flops_per_squared_token
            flops_FV[1, position] = (LINEAR_BACKWARD + recomputed) * shape.forward_linear_flops_per_token
    return flops_FV


def analytic_compute(
    shape: ModelShape,
    visits: Sequence[Visit],
    *,
    peak_flops_per_s: float,
    linear_efficiency: float,
    attention_efficiency: float,
    recompute: bool,
    visit_overhead_s: float = 0.0,
) -> FloatArray:
    """Coefficients of the analytic model, shape (3, V): FLOPs over the rate that each kind of kernel reaches.

    Args:
        shape: the decoder.
        visits: V visits of a microbatch.
        peak_flops_per_s: dense peak of the device in the type computed with.
        linear_efficiency: share of the peak that matrix products reach.
        attention_efficiency: share of the peak that attention reaches.
        recompute: whether a block's backward runs its forward again.
        visit_overhead_s: fixed cost of each visit that computes.
    """
    flops_FV = _flops_FV(shape, visits, recompute=recompute)
    efficiencies_F1 = np.array([[attention_efficiency], [linear_efficiency]])
    # Not by the product of peak and efficiency: of two tiny numbers it would be 0. Whoever asks sees times too long.
    with np.errstate(over="ignore"):
        seconds_FV = flops_FV / peak_flops_per_s / efficiencies_F1
    # A unit pays once each way: the embedding's visits, which do nothing but hold the root's transfers, pay nothing.
    overhead_V = np.where(flops_FV.any(axis=0), visit_overhead_s, 0.0)
    return np.vstack([seconds_FV, overhead_V[None, :]])


def fitted_compute(shape: ModelShape, visits: Sequence[Visit], *, fit: TokenCost, recompute: bool) -> FloatArray:
    """Coefficients of a fit over whole microbatches, shape (3, V), shared out over the visits.

    The squared term is shared out as attention FLOPs are, the linear term as those of matrix products, the constant
    evenly over the blocks, with a backward weighing two forwards (three with recomputation).

    Args:
        shape: the decoder.
        visits: V visits of a microbatch.
        fit: seconds of a whole microbatch.
        recompute: whether a block's backward runs its forward again (as it did when the fit was made).
    """
    flops_FV = _flops_FV(shape, visits, recompute=recompute)
    backward = LINEAR_BACKWARD + (1.0 if recompute else 0.0)
    fixed_V = np.array(
        [0.0 if visit.unit == ROOT_UNIT else 1.0 if visit.phase == "forward" else backward for visit in visits]
    )
    shares_FV = np.vstack([flops_FV, fixed_V])
    shares_FV /= shares_FV.sum(axis=1, keepdims=True)
    terms_F1: FloatArray = np.array([[fit.quadratic], [fit.linear], [fit.constant]])
    return shares_FV * terms_F1


def microbatch_cost(coefficients_FV: FloatArray) -> TokenCost:
    """Seconds of a whole microbatch's compute, from the coefficients of its visits."""
    quadratic, linear, constant = coefficients_FV.sum(axis=1).tolist()
    return TokenCost(quadratic=quadratic, linear=linear, constant=constant)
