"""What a scenario writes under `workload.lengths`: one source of lengths, or a mixture of several.

    {trace: ../traces/lengths/NAME.csv}     {histogram: NAME.json}
    {lognormal: {mean: 16600, sigma: 0.75, min: 1, max: 65536}}
    {uniform: {min: 512, max: 8192}}        {constant: 4096}        {values: [512, 8192, 1024]}
    {mixture: [{weight: 0.7, trace: ...}, {weight: 0.3, lognormal: {...}}]}

Paths are as written; `odcsim.lengths.load_source` resolves them. A model is dumped as it was written, without the
sources that it does not name, so a dump can be read again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from odcsim.lengths.distributions import Lognormal, Number, Tokens, Uniform

__all__ = ["LengthSpec", "MixtureComponent", "SourceKind"]

SourceKind = Literal["trace", "lognormal", "uniform", "constant", "values", "histogram", "mixture"]


def _usable_path(path: str) -> str:
    if "\0" in path:
        raise ValueError("must not hold a null character")
    return path


def _not_empty(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    # Checked here, not by pydantic's min_length, which reports a list of faulty entries as an empty one too.
    if not entries:
        raise ValueError("needs at least one entry")
    return entries


_FilePath = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_usable_path)]


def _one_source_schema(schema: dict[str, Any]) -> None:
    """Say in JSON Schema what the validator says: one of the sources, and nothing is `null`."""
    kinds = []
    for name, prop in schema["properties"].items():
        if "anyOf" in prop:  # an optional field: its schema, or null
            given, null = prop.pop("anyOf")
            assert null == {"type": "null"}, f"{name} is not an optional source: {prop}"
            prop.update(given)
            del prop["default"]
            kinds.append(name)
    schema["oneOf"] = [{"required": [kind]} for kind in kinds]


class _OneSource(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_one_source_schema)

    trace: _FilePath | None = Field(default=None, description="a file with one length a line")
    lognormal: Lognormal | None = None
    uniform: Uniform | None = None
    constant: Tokens | None = Field(default=None, description="every length, in tokens")
    values: Annotated[tuple[Tokens, ...], AfterValidator(_not_empty)] | None = Field(
        default=None, description="a data set in full: lengths in tokens", json_schema_extra={"minItems": 1}
    )
    histogram: _FilePath | None = Field(default=None, description="a JSON file with 'bin_edges' and 'counts'")

    @classmethod
    def _kinds(cls) -> list[SourceKind]:
        return ["trace", "lognormal", "uniform", "constant", "values", "histogram"]

    @property
    def kind(self) -> SourceKind:
        """The key of the source that is given."""
        return next(kind for kind in self._kinds() if getattr(self, kind) is not None)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [kind for kind in self._kinds() if getattr(self, kind) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"exactly one of {', '.join(self._kinds())} is needed; {found}")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


class MixtureComponent(_OneSource):
    """One source of a mixture, and its share of the samples."""

    weight: Number = Field(gt=0, le=1e9, description="share of the samples, relative to the other weights")


class LengthSpec(_OneSource):
    """Where the lengths of a workload come from: exactly one of the fields is given."""

    mixture: Annotated[tuple[MixtureComponent, ...], AfterValidator(_not_empty)] | None = Field(
        default=None,
        description="several sources; weights need not add up to 1",
        json_schema_extra={"minItems": 1},
    )

    @classmethod
    def _kinds(cls) -> list[SourceKind]:
        return [*super()._kinds(), "mixture"]
