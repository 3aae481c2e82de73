"""Sources of lengths: a specification with its files read, from which the minibatches of a run are drawn.

Minibatches are consecutive windows of an endless stream (`odcsim.lengths.streams`), as a data loader makes them: an
epoch that ends within a minibatch is followed by the next one. They depend on the source and the seed alone, and more
minibatches only go on where fewer stop.

Unit: tokens. Legend: N minibatches, S samples of one minibatch.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.arrays import IntArray
from odcsim.errors import InputError
from odcsim.lengths.distributions import Constant
from odcsim.lengths.histogram import read_histogram
from odcsim.lengths.limits import LONGEST_TOKENS, MOST_SAMPLES_PER_DRAW
from odcsim.lengths.spec import LengthSpec, MixtureComponent
from odcsim.lengths.statistics import describe_lengths
from odcsim.lengths.streams import Independent, Mixed, Recipe, Shuffled, Stream, Units
from odcsim.lengths.trace import read_trace
from odcsim.units import format_count

__all__ = ["LengthSource", "LengthsWarning", "load_source"]

# Keeps lengths apart from whatever else is drawn from the same seed (delays of ranks, say).
_SPAWN_KEY = (0x6C656E,)

# Units are drawn in blocks of about this many samples, so that temporary arrays stay small beside the result.
_BLOCK_SAMPLES = 1 << 20


class LengthsWarning(UserWarning):
    """Lengths were drawn, but not quite as their source suggests."""


@dataclass(frozen=True, eq=False)
class LengthSource:
    """Where minibatches come from.

    Attributes:
        name: of the trace or histogram, or the distribution with its parameters.
        synthetic: whether any part of it is known to be made up: a distribution by parameters, or a file that says so.
        provenance: what the files say about their origin, or the parameters; ready for JSON.
        summary: the kind of source and its size or parameters, on one line.
        recipe: what the stream of lengths is made of.
        file: the scenario that asked for it, for error messages.
    """

    name: str
    synthetic: bool
    provenance: Mapping[str, Any]
    summary: str
    recipe: Recipe
    file: Path | str | None = None

    @property
    def group_size(self) -> int:
        """Samples that share a prompt and stay consecutive: 1 for independent ones, the largest of a mixture's."""
        return self.recipe.group_size

    def describe(self) -> str:
        """One line for people: the kind of source, its size or parameters, its groups, and whether it is synthetic."""
        groups = f", in groups of {self.group_size}" if self.group_size > 1 else ""
        return f"{self.summary}{groups}{', synthetic' if self.synthetic else ''}"

    def draw(self, count_minibatches: int, samples_per_minibatch: int, seed: int) -> IntArray:
        """Draw the lengths of minibatches [N, S], in tokens.

        Rows that share a prompt stay consecutive, and in one minibatch as long as its samples are a multiple of the
        group size and all groups are of that size; otherwise a `LengthsWarning` tells how many groups were cut in two.

        Args:
            count_minibatches: N, at least 1.
            samples_per_minibatch: S over all ranks, at least 1.
            seed: fixes the result; a whole number, not negative. The first k minibatches do not depend on N >= k.

        Raises:
            InputError: a number out of range, or `MOST_SAMPLES_PER_DRAW` samples or more.
        """
        minibatches = self._whole("count_minibatches", count_minibatches, least=1)
        samples = self._whole("samples_per_minibatch", samples_per_minibatch, least=1)
        seeds = np.random.SeedSequence(self._whole("seed", seed, least=0), spawn_key=_SPAWN_KEY)
        if minibatches * samples >= MOST_SAMPLES_PER_DRAW:
            raise InputError(
                f"{minibatches:,} minibatches of {samples:,} samples are {minibatches * samples:,} lengths, too many "
                f"to hold in memory with their plans; fewer than {MOST_SAMPLES_PER_DRAW:,} are allowed",
                file=self.file,
            )
        lengths_S, cut_groups = self._read(self.recipe.open(seeds), minibatches * samples, window=samples)
        if cut_groups:
            uneven = samples % self.group_size == 0
            advice = "not all groups are of that size" if uneven else f"use a multiple of {self.group_size}"
            warnings.warn(
                f"{self.name}: groups of up to {self.group_size} samples that are cut by the end of a minibatch of "
                f"{samples}: {cut_groups} ({advice})",
                LengthsWarning,
                stacklevel=2,
            )
        return lengths_S.reshape(minibatches, samples)

    def draw_groups(self, count_minibatches: int, samples_per_minibatch: int, seed: int) -> IntArray:
        """The group of each sample that `draw` gives for the same arguments [N, S]: groups are numbered as they come.

        Args:
            count_minibatches: N, at least 1.
            samples_per_minibatch: S over all ranks, at least 1.
            seed: as given to `draw`.
        """
        seeds = np.random.SeedSequence(seed, spawn_key=_SPAWN_KEY)
        groups_S = np.empty(count_minibatches * samples_per_minibatch, dtype=np.int64)
        filled = groups = 0
        stream = self.recipe.open(seeds)
        while filled < groups_S.size:
            sizes_U = self._take(stream, groups_S.size - filled).sizes_U
            numbers_S = np.repeat(np.arange(groups, groups + sizes_U.size), sizes_U)[: groups_S.size - filled]
            groups_S[filled : filled + numbers_S.size] = numbers_S
            filled += numbers_S.size
            groups += sizes_U.size
        return groups_S.reshape(count_minibatches, samples_per_minibatch)

    def _take(self, stream: Stream, missing: int) -> Units:
        """Units of about as many samples as are missing, or of a block."""
        return stream.take(max(1, round(min(missing, _BLOCK_SAMPLES) / self.recipe.samples_per_unit)))

    def _read(self, stream: Stream, count: int, *, window: int) -> tuple[IntArray, int]:
        """The first `count` lengths, and how many groups lie across the end of a window."""
        lengths_S = np.empty(count, dtype=np.int64)
        filled = cut_groups = 0
        while filled < count:
            units = self._take(stream, count - filled)
            end = min(filled + units.lengths_S.size, count)
            lengths_S[filled:end] = units.lengths_S[: end - filled]
            if self.group_size > 1:
                start_U = filled + np.cumsum(units.sizes_U) - units.sizes_U
                last_U = start_U + units.sizes_U - 1
                cut_U = (start_U // window != last_U // window) & (start_U < count)
                cut_groups += int(np.count_nonzero(cut_U))
            filled = end
        return lengths_S, cut_groups

    def _whole(self, name: str, value: int, *, least: int) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = least - 1
        if number < least:
            raise InputError(f"must be a whole number, {least} or more", file=self.file, key=name, value=value)
        return number


def load_source(
    spec: LengthSpec, *, base_folder: Path, file: Path | str | None = None, key: str = "workload.lengths"
) -> LengthSource:
    """Read the files that a specification names.

    Args:
        spec: what the scenario says.
        base_folder: the folder that relative paths start from.
        file: the scenario's file, for error messages.
        key: where in it the specification is, for error messages.

    Raises:
        InputError: a file cannot be read, or is not what it should be.
    """
    if spec.mixture is None:
        return _load_one(spec, base_folder=base_folder, file=file, key=key)
    parts = [
        _load_one(component, base_folder=base_folder, file=file, key=f"{key}.mixture.{index}")
        for index, component in enumerate(spec.mixture)
    ]
    weights = [component.weight for component in spec.mixture]
    shares = [f"{100 * weight / sum(weights):.3g}%" for weight in weights]
    return LengthSource(
        name="mixture of " + ", ".join(f"{share} {part.name}" for share, part in zip(shares, parts, strict=True)),
        synthetic=any(part.synthetic for part in parts),
        provenance={
            "mixture": [
                {"weight": weight, "name": part.name, "synthetic": part.synthetic, "provenance": part.provenance}
                for weight, part in zip(weights, parts, strict=True)
            ]
        },
        summary="mixture of " + ", ".join(f"{share} {part.summary}" for share, part in zip(shares, parts, strict=True)),
        recipe=Mixed(weights, [part.recipe for part in parts]),
        file=file,
    )


def _load_one(
    spec: LengthSpec | MixtureComponent, *, base_folder: Path, file: Path | str | None, key: str
) -> LengthSource:
    if spec.trace is not None:
        trace = read_trace(base_folder / spec.trace, key=f"{key}.trace")
        return LengthSource(
            name=trace.name,
            synthetic=trace.synthetic,
            provenance=trace.provenance,
            summary=f"trace {trace.name} ({_sizes(trace.lengths_S)})",
            recipe=Shuffled(trace.lengths_S, trace.group_size),
            file=file,
        )
    if spec.values is not None:
        lengths_S = np.array(spec.values, dtype=np.int64)
        return LengthSource(
            name="values",
            synthetic=False,
            provenance={"values": list(spec.values)},
            summary=f"values ({_sizes(lengths_S)})",
            recipe=Shuffled(lengths_S),
            file=file,
        )
    if spec.histogram is not None:
        histogram = read_histogram(base_folder / spec.histogram, key=f"{key}.histogram")
        extent = f"mean {format_count(histogram.mean)}, max {format_count(histogram.max)}"
        return LengthSource(
            name=histogram.name,
            synthetic=histogram.synthetic,
            provenance=histogram.provenance,
            summary=f"histogram {histogram.name} ({extent})",
            recipe=Independent(histogram),
            file=file,
        )
    if spec.lognormal is not None:
        parameters = spec.lognormal
        bounds = (
            f"{parameters.min} to {parameters.max}" if parameters.max < LONGEST_TOKENS else f"from {parameters.min}"
        )
        name = f"lognormal(mean {parameters.mean:g}, sigma {parameters.sigma:g}, {bounds})"
        recipe = Independent(parameters)
    elif spec.uniform is not None:
        name = f"uniform({spec.uniform.min} to {spec.uniform.max})"
        recipe = Independent(spec.uniform)
    else:
        assert spec.constant is not None, "a specification names exactly one source"
        name = f"constant({spec.constant})"
        recipe = Independent(Constant(spec.constant))
    provenance: dict[str, Any] = {spec.kind: spec.model_dump(mode="json")[spec.kind]}
    return LengthSource(name=name, synthetic=True, provenance=provenance, summary=name, recipe=recipe, file=file)


def _sizes(lengths_S: IntArray) -> str:
    facts = describe_lengths(lengths_S)
    return f"{facts['count']:,} lengths, mean {format_count(facts['mean'])}, max {format_count(facts['max'])}"
