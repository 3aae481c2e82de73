"""The catalog: models and GPUs by name, kept as data (models.yaml, gpus.yaml) and read by one loader.

Names and aliases are found whatever their case. GPUs are understood here; a model's entry is handed out as it is
written, for `odcsim.model_shape` to understand. Everything is in base units once loaded: bytes, FLOP/s, bytes/s,
seconds, and fractions of a peak. The files are read at the first look-up and kept.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odcsim.errors import InputError
from odcsim.suggest import unknown_name
from odcsim.units import Dimension, parse_quantity

__all__ = ["Gpu", "gpu_names", "load_gpu", "model_entries", "model_names"]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU with its links. Bandwidths are of one GPU, in one direction; rates are peaks, before the efficiencies.

    Attributes:
        name: catalog name, or what the user calls it.
        peak_flops_per_s: dense bf16.
        memory_bytes: device memory.
        memory_bandwidth_bytes_per_s: of the device memory.
        intra_node_bandwidth_bytes_per_s: to the other GPUs of the node together.
        intra_node_latency_s: before the first byte of a transfer inside the node arrives.
        inter_node_bandwidth_bytes_per_s: this GPU's part of its node's network.
        inter_node_latency_s: before the first byte of a transfer between nodes arrives.
        linear_efficiency: share of the peak that matrix products reach in training.
        attention_efficiency: share of the peak that attention reaches in training.
        link_efficiency: share of a link's bandwidth that collectives reach.
        sources: where each figure comes from, by the attribute's name; not part of equality.
    """

    name: str
    peak_flops_per_s: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    intra_node_bandwidth_bytes_per_s: float
    intra_node_latency_s: float
    inter_node_bandwidth_bytes_per_s: float
    inter_node_latency_s: float
    linear_efficiency: float
    attention_efficiency: float
    link_efficiency: float
    sources: dict[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class _Figure:
    attribute: str
    dimension: Dimension | None
    """None: a fraction of a peak."""
    may_be_zero: bool = False


# What the user writes carries its unit; what the program reads has it in its name.
_FIGURES: dict[str, _Figure] = {
    "peak_flops_per_s": _Figure("peak_flops_per_s", "FLOP/s"),
    "memory_bytes": _Figure("memory_bytes", "bytes"),
    "memory_bandwidth": _Figure("memory_bandwidth_bytes_per_s", "bytes/s"),
    "intra_node_bandwidth": _Figure("intra_node_bandwidth_bytes_per_s", "bytes/s"),
    "intra_node_latency": _Figure("intra_node_latency_s", "seconds", may_be_zero=True),
    "inter_node_bandwidth_per_gpu": _Figure("inter_node_bandwidth_bytes_per_s", "bytes/s"),
    "inter_node_latency": _Figure("inter_node_latency_s", "seconds", may_be_zero=True),
    "linear_efficiency": _Figure("linear_efficiency", None),
    "attention_efficiency": _Figure("attention_efficiency", None),
    "link_efficiency": _Figure("link_efficiency", None),
}
_INLINE_KEYS = (*_FIGURES, "base", "name")
_FIGURE_PARTS = frozenset({"value", "source", "note"})


@functools.cache
def _entries(file_name: str) -> dict[str, dict[str, Any]]:
    # Both imports cost more than the rest of the package; a command that needs no catalog does not pay for them.
    from importlib import resources

    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files(__name__).joinpath(file_name).read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.load(text, Loader=loader)  # noqa: S506 - either loader is a safe one
    return entries


@functools.cache
def _canonical_names(file_name: str) -> dict[str, str]:
    """Every name and alias, in lower case, with the name of its entry."""
    return {
        known.lower(): name
        for name, entry in _entries(file_name).items()
        for known in (name, *entry.get("aliases", ()))
    }


def model_entries() -> Mapping[str, Mapping[str, Any]]:
    """The models as their file has them: name -> `source`, `shape`, `published_parameters` and, for some, `note`."""
    return _entries("models.yaml")


def model_names() -> tuple[str, ...]:
    """Names of the models, in the order of their file."""
    return tuple(model_entries())


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs (without aliases), in the order of their file."""
    return tuple(_entries("gpus.yaml"))


def load_gpu(value: object, *, file: object | None = None, key: str = "cluster.gpu") -> Gpu:
    """The GPU that `value` stands for.

    Args:
        value: a catalog name or alias, or a mapping with the figures of gpus.yaml. A figure is a quantity with its unit
            ("312 TFLOP/s"), a number in the base unit, or `{value, source, note}`. A mapping may start from a catalog
            entry (`base`) and may give the GPU a `name`; without `base` it must hold every figure.
        file: the file that holds `value`, for errors.
        key: the key that holds `value`, for errors.

    Raises:
        InputError: an unknown name or key, a figure that is missing, not a quantity of its kind, zero or not finite
            (latencies may be zero), or an efficiency outside (0, 1].
    """
    if isinstance(value, str):
        return _from_catalog(value, file=file, key=key)
    if not isinstance(value, Mapping):
        raise InputError("must be the name of a GPU or a mapping of its figures", file=file, key=key, value=value)
    for name in value:
        if name not in _INLINE_KEYS:
            raise unknown_name("GPU key", name, _INLINE_KEYS, file=file, key=key)
    name = value.get("name", f"{value['base']} (modified)" if "base" in value else "inline")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InputError("must be a printable text", file=file, key=f"{key}.name", value=name)
    return _from_mapping(value, name=name, default_source="the scenario", file=file, key=key)


def _from_catalog(name: str, *, file: object | None, key: str) -> Gpu:
    names = _canonical_names("gpus.yaml")
    canonical = names.get(name.strip().lower())
    if canonical is None:
        raise unknown_name("GPU", name, names, file=file, key=key)
    entry = _entries("gpus.yaml")[canonical]
    return _from_mapping(entry, name=canonical, default_source="", file="gpus.yaml", key=canonical)


def _from_mapping(entry: Mapping[str, Any], *, name: str, default_source: str, file: object | None, key: str) -> Gpu:
    figures: dict[str, float] = {}
    sources: dict[str, str] = {}
    if "base" in entry:
        base = entry["base"]
        if not isinstance(base, str):
            raise InputError("must be the name of a GPU", file=file, key=f"{key}.base", value=base)
        start = _from_catalog(base, file=file, key=f"{key}.base")
        figures = {figure.attribute: getattr(start, figure.attribute) for figure in _FIGURES.values()}
        sources = dict(start.sources)
    for figure_key, figure in _FIGURES.items():
        if figure_key in entry:
            where = f"{key}.{figure_key}"
            value, source = _value_and_source(entry[figure_key], default_source, file=file, key=where)
            figures[figure.attribute] = _checked(value, figure, file=file, key=where)
            sources[figure.attribute] = source
    missing = [figure_key for figure_key, figure in _FIGURES.items() if figure.attribute not in figures]
    if missing:
        raise InputError(f"missing: {', '.join(missing)} (or start from a catalog entry by base)", file=file, key=key)
    return Gpu(name=name, sources=sources, **figures)


def _value_and_source(written: object, default_source: str, *, file: object | None, key: str) -> tuple[object, str]:
    if not isinstance(written, Mapping):
        return written, default_source
    if "value" not in written or not _FIGURE_PARTS.issuperset(written):
        raise InputError("must be a quantity or {value, source, note}", file=file, key=key, value=dict(written))
    parts = [str(written[part]) for part in ("source", "note") if written.get(part)]
    return written["value"], "; ".join(parts) or default_source


def _checked(value: object, figure: _Figure, *, file: object | None, key: str) -> float:
    if figure.dimension is None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InputError("must be a number above 0 and at most 1", file=file, key=key, value=value)
        return float(value)
    try:
        number = parse_quantity(value, figure.dimension)
    except ValueError as error:
        raise InputError(str(error), file=file, key=key, value=value) from None
    if number == 0 and not figure.may_be_zero:
        raise InputError(f"must be more than 0 {figure.dimension}", file=file, key=key, value=value)
    return number
