"""The ways to say what a microbatch costs. Only the proportions matter to a plan; the times here are in seconds.

By default a microbatch costs what it does with a 7B decoder on an A100, forward, recomputation and backward: the fit in
the code of the ODC paper (arXiv 2601.19362), 4.348357 x^2 + 8.768377 x + 0.950719 with x in 32000 tokens. A sample's
attention then takes as long as the rest of it at 64,500 tokens, and a microbatch more as long as 3,470 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from pathlib import Path

import numpy as np

from odcsim.catalog import load_gpu
from odcsim.costs.compute import analytic_compute, microbatch_cost
from odcsim.costs.token_cost import TokenCost
from odcsim.errors import InputError
from odcsim.model_shape import load_model
from odcsim.schedule import decoder_visits

__all__ = ["DEFAULT_COST", "CostLike", "token_cost"]

_PER_TOKENS = 32_000.0

DEFAULT_COST = TokenCost(quadratic=4.348357 / _PER_TOKENS**2, linear=8.768377 / _PER_TOKENS, constant=0.950719)
"""A 7B decoder on an A100; see the module."""

CostLike = TokenCost | tuple[float, float, float] | tuple[str, str]
"""A cost; its (quadratic, linear, constant) in seconds per squared token, per token and per microbatch; or the names of
a model and a GPU of the catalog."""


def token_cost(cost: CostLike | None = None) -> TokenCost:
    """What a microbatch costs.

    Args:
        cost: see `CostLike`; None: `DEFAULT_COST`. For a model and a GPU the time follows from FLOPs, with the blocks'
            forward run again in backward, and without a constant: (quadratic, linear, constant) can say more.

    Raises:
        InputError: something else, a term that is negative or not finite, or nothing but zeros.
        UnknownNameError: the catalog has no such model or GPU.
    """
    if cost is None:
        return DEFAULT_COST
    if isinstance(cost, TokenCost):
        return _checked(cost)
    given: object = cost  # A list does as well as a tuple.
    parts: tuple[object, ...] = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    match parts:
        case (str() as model, str() as gpu):
            return _of_model(model, gpu)
        case (Real() as quadratic, Real() as linear, Real() as constant):
            return _checked(TokenCost(float(quadratic), float(linear), float(constant)))
    raise InputError(
        "must be a TokenCost, (quadratic, linear, constant) in seconds, or the names of a model and a GPU",
        key="cost",
        value=cost,
    )


def _checked(cost: TokenCost) -> TokenCost:
    terms = np.array([cost.quadratic, cost.linear, cost.constant], dtype=np.float64)
    if not np.isfinite(terms).all() or (terms < 0).any() or not terms.any():
        raise InputError("terms must be finite and not negative, and one of them above 0", key="cost", value=cost)
    return cost


def _of_model(model: str, gpu: str) -> TokenCost:
    shape, device = load_model(model, base_folder=Path(), key="cost"), load_gpu(gpu, key="cost")
    coefficients_FV = analytic_compute(
        shape,
        decoder_visits(shape.layers),
        peak_flops_per_s=device.peak_flops_per_s,
        linear_efficiency=device.linear_efficiency,
        attention_efficiency=device.attention_efficiency,
        recompute=True,
    )
    return microbatch_cost(coefficients_FV)
