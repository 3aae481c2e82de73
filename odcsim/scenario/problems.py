"""What pydantic finds wrong with a scenario, as one line in the user's words: key, value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from odcsim.errors import InputError
from odcsim.scenario.schema import Scenario
from odcsim.suggest import unknown_name

__all__ = ["first_problem"]

_Location = tuple[int | str, ...]

# By pydantic's error type; braces hold its context. What is missing here keeps pydantic's own words.
_WORDING = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "finite_number": "must be finite",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_type": "must be a whole number",
    "invalid_key": "keys must be texts here",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "allowed: {expected}",
    "missing": "required key is missing",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "string_type": "must be a text",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entry",
    "tuple_type": "must be a list",
    "value_error": "{error}",
}


def first_problem(error: ValidationError, *, file: object | None, schema: type[BaseModel] = Scenario) -> InputError:
    """The first problem in a validation error, as one line.

    Args:
        error: what validating a document raised.
        file: the document's file, for the message.
        schema: what it was validated as.
    """
    found = error.errors(include_url=False)
    first = found[0]
    if first["type"] == "missing":
        # A mistyped key goes missing too: the one that is written says more.
        section = first["loc"][:-1]
        first = next(
            (other for other in found if other["type"] == "extra_forbidden" and other["loc"][:-1] == section), first
        )
    # Where the key of a mapping is at fault, pydantic adds "[key]" to its place; a key of that name may be unknown too.
    location = first["loc"]
    if first["type"] != "extra_forbidden":
        location = tuple(part for part in location if part != "[key]")
    key = ".".join(map(str, location)) or None
    given = first["input"]
    if first["type"] == "missing" or (_is_section(given) and first["type"] == "value_error"):
        # There is no value to show, or it is a whole section.
        return InputError(_in_words(first, location, schema), file=file, key=key)
    return InputError(_in_words(first, location, schema), file=file, key=key, value=given)


def _in_words(problem: ErrorDetails, location: _Location, schema: type[BaseModel]) -> str:
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _keys_at(location[:-1], schema)
        return unknown_name("key", location[-1], known).problem if known else "unknown key"
    if kind in {"model_type", "model_attributes_type"}:
        keys = _keys_at(location, schema)
        return "must be a mapping" + (f" with keys of: {', '.join(keys)}" if keys else "")
    if kind in _WORDING:
        return _WORDING[kind].format(**{name: _plain(value) for name, value in problem.get("ctx", {}).items()})
    return problem["msg"][0].lower() + problem["msg"][1:]


def _plain(value: object) -> object:
    """A bound as a person would write it: 0, not 0.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_section(value: object) -> bool:
    return isinstance(value, BaseModel | dict)


def _keys_at(location: Sequence[int | str], schema: type[BaseModel]) -> list[str]:
    """The keys that the schema knows at a location; empty if the location is no section."""
    section: type[BaseModel] | None = schema
    for part in location:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section is not None else None
        if field is None:
            return []
        section = _section_in(field.annotation)
    return [field.alias or name for name, field in section.model_fields.items()] if section is not None else []


def _section_in(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - whatever a field can be annotated with
    """The section that a field holds: itself, or inside an optional or a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((section for part in get_args(annotation) if (section := _section_in(part)) is not None), None)
