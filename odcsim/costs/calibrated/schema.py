"""What a file of calibrated costs says. Seconds, bytes, tokens.

Every figure is a `Term`: a value with the 95% interval of its fit. A term that the run could not tell from the others
is marked so; then its value is 0, and what it would stand for is in the other terms.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from odcsim.model_shape import ModelShape
from odcsim.schedule import ROOT_UNIT, Visit

__all__ = [
    "COSTS_SCHEMA",
    "ONE_SIDED_BASE",
    "VISIT_KINDS",
    "CalibratedCosts",
    "ComputeCosts",
    "MemoryCosts",
    "Origin",
    "StepCosts",
    "Term",
    "TransferCost",
    "TransferPair",
    "VisitCost",
    "VisitKind",
    "visit_kind",
]

COSTS_SCHEMA = "odcsim.costs/2"

ONE_SIDED_BASE = "one_sided"
"""Of `MemoryCosts.base`, the key of what training holds under ODC; other keys are transports of collectives."""

VisitKind = Literal[
    "embedding_forward", "block_forward", "head_forward", "head_backward", "block_backward", "embedding_backward"
]
VISIT_KINDS: tuple[VisitKind, ...] = (
    "embedding_forward",
    "block_forward",
    "head_forward",
    "head_backward",
    "block_backward",
    "embedding_backward",
)


def _no_flag(value: object) -> object:
    # pydantic would take true for 1.
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False), BeforeValidator(_no_flag)]
_Count = Annotated[int, Field(ge=1, strict=True)]


def visit_kind(visit: Visit) -> VisitKind:
    """What a visit of a decoder computes."""
    if visit.unit != ROOT_UNIT:
        return "block_forward" if visit.phase == "forward" else "block_backward"
    if visit.phase == "forward":
        return "embedding_forward" if visit.gathers else "head_forward"
    return "embedding_backward" if visit.reduces else "head_backward"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Term(_Section):
    """A figure with its interval."""

    value: _NotNegative
    low: _NotNegative
    high: _NotNegative
    identified: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"value {self.value:g} must lie in its interval, {self.low:g} to {self.high:g}")
        return self


class VisitCost(_Section):
    """Seconds of one unit's forward or backward = squared_tokens x sum(s^2) + tokens x sum(s) + constant."""

    squared_tokens: Term
    tokens: Term
    constant: Term
    spread: _NotNegative
    """Standard deviation of the residuals, relative to the fit."""
    observations: _Count


class ComputeCosts(_Section):
    """Of every kind of visit."""

    embedding_forward: VisitCost
    block_forward: VisitCost
    head_forward: VisitCost
    head_backward: VisitCost
    block_backward: VisitCost
    embedding_backward: VisitCost

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not any(term.value > 0 for _, cost in self for term in (cost.squared_tokens, cost.tokens, cost.constant)):
            raise ValueError("every term of every visit is 0; at least one must be positive")
        return self


class TransferCost(_Section):
    """Seconds of a transfer = latency (for each step of a ring; once, if one-sided) + bytes x seconds_per_byte, the
    bytes that one rank moves over the busier tier.
    """

    latency: Term
    seconds_per_byte: Term
    contention: Term | None = None
    """One-sided: how much longer each other transfer under way at the same time makes this one, as a share."""
    others: _NotNegative = 0.0
    """One-sided: how many others were under way in the mean."""
    lag: Term | None = None
    """Collectives: how much later than ranks do in the mean the last one leaves, as a share of the time."""
    spread: _NotNegative
    observations: _Count


class TransferPair(_Section):
    """Of one way to move data: collectives over one transport, or one-sided transfers."""

    gather: TransferCost
    scatter_accumulate: TransferCost


class StepCosts(_Section):
    """Seconds of a minibatch's other steps; what the run did not show is left out."""

    meeting: Term | None = None
    """A barrier, for each rank beyond the first."""
    publish: Term | None = None
    settle: Term | None = None
    optimizer: Term | None = None


class MemoryCosts(_Section):
    """Bytes of a rank: what its process has before training, and what training adds."""

    process: Term
    base: Annotated[dict[str, Term], Field(min_length=1)]
    """Of training, whatever a microbatch holds, by what moved the data: one-sided transfers, or collectives over a
    transport. Under FSDP without the gradients' shard, which is held from a minibatch's second microbatch on.
    """
    per_token: Term
    """Of the largest microbatch."""
    staging: Term | None = None
    """Shared memory in which collectives over `collective` are staged, of one rank; null where no run shows it."""
    spread: _NotNegative
    observations: _Count

    def base_bytes(self, *, on_demand: bool, transport: str) -> float:
        """The base under ODC, or under FSDP over a transport; of the nearest that was run, where that was not."""
        wanted = ONE_SIDED_BASE if on_demand else transport
        collectives = [way for way in self.base if way != ONE_SIDED_BASE]
        nearest = next((way for way in (wanted, *collectives) if way in self.base), ONE_SIDED_BASE)
        return float(self.base[nearest].value)


class Origin(_Section):
    """What the costs were fitted to."""

    runs: Annotated[tuple[str, ...], Field(min_length=1)]
    digests: tuple[str, ...]
    """Of the runs, so that a prediction of one of them is not taken for a test."""
    cases: tuple[dict[str, Any], ...]
    scenario: str | None
    ranks: _Count
    ranks_per_node: _Count
    processors: _Count | None
    """CPUs that the ranks of a host shared; null where ranks have an accelerator each, or it is not known."""
    minibatches: _Count
    microbatches: _Count
    versions: dict[str, str]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ranks % self.ranks_per_node:
            raise ValueError(f"ranks_per_node {self.ranks_per_node} does not divide ranks {self.ranks}")
        return self


class CalibratedCosts(_Section):
    """A file of calibrated costs."""

    schema_: Annotated[Literal["odcsim.costs/2"], Field(alias="schema")] = "odcsim.costs/2"
    origin: Origin
    model: dict[str, Any] | None
    """Shape of the decoder; null where the run does not say."""
    training: dict[str, Any] | None
    compute: ComputeCosts
    one_sided: TransferPair | None = None
    collectives: dict[str, TransferPair] = Field(default_factory=dict)
    """By transport: `collective`, `gloo`, `nccl`."""
    steps: StepCosts = StepCosts()
    memory: MemoryCosts | None = None
    warnings: tuple[str, ...] = ()

    def is_of_shape(self, shape: ModelShape) -> bool:
        """Whether the costs were fitted to a decoder of that shape, or it is not known what they were fitted to."""
        if self.model is None:
            return True
        return all(self.model.get(key) == value for key, value in vars(shape).items() if key != "name")
