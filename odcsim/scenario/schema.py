"""The schema of a scenario. Quantities are written with units and held in bytes, seconds, FLOP/s and bytes/s.

A scenario says what the user wants; nothing here looks into a catalog or opens a file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from odcsim.lengths import LengthSpec
from odcsim.schedule import Overlap, Sync
from odcsim.units import Dimension, parse_quantity

__all__ = [
    "MOST_RANKS",
    "MOST_SAMPLES",
    "AnalyticCompute",
    "Case",
    "Cluster",
    "Compute",
    "FittedCompute",
    "Link",
    "NodeLink",
    "OnDemand",
    "OneSided",
    "Planning",
    "Runtime",
    "Scenario",
    "Slowdowns",
    "Training",
    "Workload",
]

# Beyond these a laptop would compute for days, or run out of memory: a slip of the pen, not a plan.
MOST_RANKS = 1 << 17
MOST_SAMPLES = 50_000_000
MOST_MINIBATCHES = 1_000_000
LONGEST_SAMPLE_TOKENS = 1 << 30

_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def _quantity(dimension: Dimension) -> BeforeValidator:
    return BeforeValidator(lambda value: parse_quantity(value, dimension))


def _quantity_schema(*examples: str, least: Literal["minimum", "exclusiveMinimum"] = "minimum") -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "number", least: 0}, {"type": "string"}], "examples": list(examples)})


def _no_flag(value: object) -> object:
    # pydantic would take true for 1.
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _file_name(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(_FILE_NAME, value):
        raise ValueError("allowed: 1 to 100 letters, digits, dots, dashes and underscores, a letter or digit first")
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must hold printable characters only, on one line")
    return value


def _path(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a null character")
    return value


def _name_or_mapping(value: object) -> object:
    if not isinstance(value, str | dict):
        raise ValueError("allowed: a name or a mapping")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


NameOrMapping = Annotated[str | dict[str, Any], BeforeValidator(_name_or_mapping)]
Bandwidth = Annotated[
    float, _quantity("bytes/s"), Field(gt=0), _quantity_schema("300 GB/s", "400 Gb/s", least="exclusiveMinimum")
]
Seconds = Annotated[float, _quantity("seconds"), _quantity_schema("5 us", "0.15 s")]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_no_flag)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(_no_flag)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_flag)]
# As of the lengths' distribution: wider is a mistake, and could overflow the exponential.
Sigma = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), BeforeValidator(_no_flag)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_flag)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False), BeforeValidator(_no_flag)]
Tokens = Annotated[int, Field(ge=1, le=LONGEST_SAMPLE_TOKENS, strict=True)]
RankNumber = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Link(_Section):
    """A link inside a node; whatever is left out comes from the GPU's catalog entry."""

    bandwidth: Bandwidth | None = None
    """Bytes a second of one GPU, in one direction."""
    latency: Seconds | None = None
    """Seconds before the first byte arrives."""
    efficiency: Fraction | None = None
    """Share of the bandwidth that collectives reach."""


class NodeLink(_Section):
    """The network between nodes; whatever is left out comes from the GPU's catalog entry."""

    bandwidth: Bandwidth | None = None
    """Bytes a second of a whole node, in one direction."""
    latency: Seconds | None = None
    """Seconds before the first byte arrives."""
    efficiency: Fraction | None = None
    """Share of the bandwidth that collectives reach."""
    ports: Annotated[int, Field(ge=1)] | None = None
    """Network ports of a node, which its ranks share; with `contention` a rank alone has a whole port."""


class OneSided(_Section):
    """How well one-sided transfers use the links; left out, as well as collectives do."""

    intra_node_efficiency: Fraction | None = None
    """Share of the bandwidth that they reach inside a node."""
    inter_node_efficiency: Fraction | None = None
    """Share of the bandwidth that they reach between nodes."""


class Slowdowns(_Section):
    """Random stragglers: a microbatch of a rank is slowed down, each independently of the others."""

    probability: Probability
    """Chance of a microbatch to be slow."""
    factor: AtLeastOne
    """How many times longer its compute takes then."""


class Cluster(_Section):
    """The machines: `nodes` x `gpus_per_node` data-parallel ranks, parameters sharded over all of them."""

    gpu: NameOrMapping
    """Catalog name, or an inline specification (which may start from a catalog entry by `base`)."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024, strict=True)] = 8
    """GPUs of a node."""
    nodes: Annotated[int, Field(ge=1, le=MOST_RANKS, strict=True)] = 1
    """Nodes."""
    intra_node: Link = Link()
    """Links between the GPUs of a node."""
    inter_node: NodeLink = NodeLink()
    """Links between nodes."""
    one_sided: OneSided = OneSided()
    """One-sided transfers over the same links."""
    contention: bool = False
    """Whether one-sided transfers under way at the same time share their node's ports (events engine only)."""
    rank_speeds: dict[RankNumber, Positive] = Field(default_factory=dict)
    """Compute speed of single ranks; 1 for all others, 0.5 for a rank that takes twice as long."""
    link_speeds: dict[RankNumber, Fraction] = Field(default_factory=dict)
    """Link speed of single ranks, at most 1, which all others have. Everyone reads from every rank: all are slowed."""
    slowdowns: Slowdowns | None = None
    """Random stragglers."""
    compute_noise: Sigma = 0.0
    """How far compute strays from what the model says, unknown to plans: each microbatch takes a log-normal factor of
    mean 1, whose logarithm has this standard deviation."""

    @property
    def ranks(self) -> int:
        """Data-parallel ranks D."""
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ranks > MOST_RANKS:
            raise ValueError(f"nodes x gpus_per_node = {self.ranks} ranks; at most {MOST_RANKS} are simulated")
        for key in ("rank_speeds", "link_speeds"):
            beyond = [rank for rank in getattr(self, key) if rank >= self.ranks]
            if beyond:
                raise ValueError(f"{key} names rank {beyond[0]}; ranks here are 0 to {self.ranks - 1}")
        return self


class Workload(_Section):
    """What is trained on, and how much of it."""

    lengths: LengthSpec
    """Where sequence lengths come from."""
    samples_per_rank: Annotated[int, Field(ge=1, le=MOST_SAMPLES, strict=True)] | None = None
    """Samples of a minibatch per rank (the ODC paper's "minibatch size")."""
    samples_per_minibatch: Annotated[int, Field(ge=1, le=MOST_SAMPLES, strict=True)] | None = None
    """Samples of a minibatch over all ranks (the global batch size); instead of `samples_per_rank`."""
    length_scale: Positive = 1.0
    """Lengths are multiplied by it and rounded (to 1 token at least), before anything else."""
    cut_tokens: Tokens | None = None
    """Longest sequence of the data set: longer ones are cut to it, after scaling."""
    max_tokens: Tokens
    """Hard cap on the tokens of a microbatch."""
    oversize: Literal["error", "truncate", "drop", "own-microbatch"] = "error"
    """What happens to a sample longer than the cap."""
    minibatches: Annotated[int, Field(ge=1, le=MOST_MINIBATCHES, strict=True)] = 100
    """Minibatches simulated; every case sees the same ones."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Fixes everything random."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.samples_per_rank is None) == (self.samples_per_minibatch is None):
            raise ValueError("give one of samples_per_rank and samples_per_minibatch")
        return self

    def samples_of(self, ranks: int) -> int:
        """Samples of a minibatch over all ranks."""
        return self.samples_per_minibatch or (self.samples_per_rank or 0) * ranks


class FittedCompute(_Section):
    """Compute of a microbatch fitted to measurements: quadratic sum((s/n)^2) + linear sum(s/n) + constant, in
    seconds.
    """

    quadratic: NotNegative
    linear: NotNegative
    constant: NotNegative = 0.0
    per_tokens: Positive
    """n, the tokens that lengths are divided by."""
    scale: Positive = 1.0
    """Every term is multiplied by it: 0.5 for a device twice as fast as the measured one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.quadratic + self.linear + self.constant <= 0:
            raise ValueError("quadratic, linear and constant are all 0; at least one must be positive")
        return self


class AnalyticCompute(_Section):
    """Compute from FLOPs; efficiencies that are left out come from the GPU's catalog entry."""

    linear_efficiency: Fraction | None = None
    """Share of peak FLOP/s that matrix products reach."""
    attention_efficiency: Fraction | None = None
    """Share of peak FLOP/s that attention reaches."""
    visit_overhead: Seconds = 0.0
    """Fixed cost of one unit's forward, and of its backward (launches, copies); the root's is its head."""


class Compute(_Section):
    """How long compute takes: exactly one of the models; the bare word `analytic` stands for its defaults."""

    analytic: AnalyticCompute | None = None
    fitted: FittedCompute | None = None
    calibrated: Annotated[str, Field(min_length=1), AfterValidator(_path)] | None = None
    """A file that `odcsim calibrate` wrote. What its run showed of transfers, publishing, settling and the optimizer is
    taken from it too."""

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        if isinstance(value, str):
            if value != "analytic":
                raise ValueError("allowed: analytic, {analytic: ...}, {fitted: ...} or {calibrated: FILE}")
            return {"analytic": {}}
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(model is not None for model in (self.analytic, self.fitted, self.calibrated)) != 1:
            raise ValueError("give one of analytic, fitted and calibrated")
        return self


class Training(_Section):
    """How the model is trained, as far as time and memory depend on it."""

    recompute: Literal["full", "none"] = "full"
    """`full`: every block's forward is run again in its backward (activation checkpointing)."""
    fused_loss: bool = True
    """Whether the loss is fused with the head, so that logits are never held whole."""
    param_dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Type in which parameters are gathered and computed with; master parameters are fp32."""
    reduce_dtype: Literal["bf16", "fp16", "fp32"] = "fp32"
    """Type in which gradients are reduced."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Its state is fp32: two values a parameter for adamw, one (momentum) for sgd."""


class OnDemand(_Section):
    """What is particular to `odc`."""

    gather_dtype: Literal["param", "fp32"] = "param"
    """`param`: shards are published in param_dtype; `fp32`: the master parameters are read (twice the traffic of
    bf16)."""
    minibatch_overhead: Seconds = 0.0
    """Fixed cost of a minibatch beside publish, barriers and settle."""


class Planning(_Section):
    """What policies are told. What microbatches cost when they run does not depend on it."""

    cost: Literal["model", "tokens"] = "model"
    """What plans are balanced by: `model`: the time that the compute model gives a microbatch; `tokens`: its tokens."""
    known_speeds: bool = False
    """Whether policies that use speeds know `cluster.rank_speeds`; otherwise they plan as if all ranks were alike."""
    keep_groups: bool = False
    """Whether samples that share a prompt stay on one rank."""


class Case(_Section):
    """One combination to simulate."""

    sync: Sync
    policy: str
    overlap: Overlap | None = None
    """As the scenario's `overlap`, for this case alone."""
    pad: bool = False
    """Whether ranks run padding microbatches until all have as many (a padding microbatch costs its fixed time)."""
    name: Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_printable)] | None = None
    """Shown in tables and charts; made of the other keys when left out."""


class Runtime(_Section):
    """How `odcrt` runs the scenario; the simulator does not read it."""

    device: Literal["cpu", "cuda"] = "cpu"
    transport: Literal["shm", "collective", "gloo", "cuda"] = "shm"
    compute: Literal["real", "emulated"] = "real"


class Scenario(_Section):
    """One workload on one cluster, and the cases to compare."""

    name: Annotated[str, Field(pattern=_FILE_NAME), BeforeValidator(_file_name)]
    """Names the output files: letters, digits, dot, dash and underscore."""
    model: NameOrMapping
    """Catalog name, path of a Hugging Face config.json, or an inline shape."""
    cluster: Cluster
    workload: Workload
    compute: Compute = Compute(analytic=AnalyticCompute())
    training: Training = Training()
    on_demand: OnDemand = OnDemand()
    planning: Planning = Planning()
    overlap: Overlap = "prefetch"
    """`prefetch`: transfers run beside compute; `gather-only`: reduces do not; `none`: nothing does."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1, max_length=1000)]
    """The first is the baseline of every speedup."""
    runtime: Runtime = Runtime()

    @model_validator(mode="after")
    def _check(self) -> Self:
        samples = self.workload.samples_of(self.cluster.ranks)
        total = self.workload.minibatches * samples
        if total > MOST_SAMPLES:
            raise ValueError(
                f"workload: {self.workload.minibatches} minibatches x {samples} samples = {total} samples; at most "
                f"{MOST_SAMPLES} are simulated in one run (the mean needs a few hundred minibatches, not more)"
            )
        return self
