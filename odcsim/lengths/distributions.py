"""Distributions of lengths given by parameters: what a scenario writes, and how lengths are drawn from it.

Every distribution draws element by element from one stream of random numbers, so drawing 3 lengths and then 5 more
gives the same eight as drawing 8 at once.

Unit: tokens. Legend: S samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from odcsim.arrays import IntArray
from odcsim.lengths.limits import LONGEST_TOKENS

__all__ = ["Constant", "Distribution", "Lognormal", "Number", "Tokens", "Uniform"]


def _finite_number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 - pydantic reports ValueErrors
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be finite")
    return value


Tokens = Annotated[int, Field(strict=True, ge=1, le=LONGEST_TOKENS)]
"""A length in tokens."""

Number = Annotated[float, BeforeValidator(_finite_number), Field(allow_inf_nan=False)]
"""A finite number; `true` is none."""

_MODEL = ConfigDict(extra="forbid", frozen=True)


class Distribution(Protocol):
    """Anything that independent lengths can be drawn from."""

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw `count` lengths [count], in tokens, element by element from `rng`."""


@dataclass(frozen=True)
class Constant:
    """The same length again and again."""

    tokens: int

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:  # noqa: ARG002 - as the other distributions
        """`count` times the length [count], in tokens."""
        return np.full(count, self.tokens, dtype=np.int64)


class _Bounded(BaseModel):
    model_config = _MODEL

    min: Tokens = Field(default=1, description="shortest length, in tokens")
    max: Tokens = Field(default=LONGEST_TOKENS, description="longest length, in tokens")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be more than max ({self.max})")
        return self


class Uniform(_Bounded):
    """Every whole number from `min` to `max`, both included, with equal chances."""

    min: Tokens = Field(description="shortest length, in tokens")
    max: Tokens = Field(description="longest length, in tokens")

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw `count` lengths [count], in tokens."""
        return rng.integers(self.min, self.max, size=count, dtype=np.int64, endpoint=True)


class Lognormal(_Bounded):
    """exp(mu + sigma z) for a standard normal z, clipped to `min` and `max`, rounded to whole tokens.

    `mean` is that of the distribution before it is clipped, so mu = ln(mean) - sigma^2 / 2.
    """

    mean: Number = Field(gt=0, le=LONGEST_TOKENS, description="mean before clipping, in tokens")
    # At most 10: wider is a mistake, and could overflow the exponential.
    sigma: Number = Field(ge=0, le=10, description="standard deviation of the logarithm")

    @property
    def mu(self) -> float:
        """Mean of the natural logarithm."""
        return math.log(self.mean) - self.sigma**2 / 2

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw `count` lengths [count], in tokens."""
        tokens_S = np.rint(np.exp(self.mu + self.sigma * rng.standard_normal(count)))
        return np.clip(tokens_S, self.min, self.max).astype(np.int64)
