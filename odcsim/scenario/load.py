"""From a scenario file, and `key=value` overrides, to a `Scenario`; every mistake becomes one line naming file and
key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from odcsim.errors import InputError
from odcsim.files import read_text
from odcsim.scenario.schema import Scenario
from odcsim.suggest import unknown_name

__all__ = ["load_scenario", "parse_scenario", "scenario_schema"]


def load_scenario(path: Path, *, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a YAML file.

    Args:
        path: the file.
        overrides: `key=value` texts: a dotted key ("workload.seed", "cases.0.policy") and a value in YAML.

    Raises:
        InputError: the file cannot be read, is not YAML, or says something that the schema does not allow.
    """
    document = _parse_yaml(read_text(path, what="scenario file"), file=path)
    for override in overrides:
        _override(document, override)
    return parse_scenario(document, file=path)


def parse_scenario(document: Mapping[str, Any], *, file: object | None = None) -> Scenario:
    """The scenario of a document already read.

    Raises:
        InputError: the first thing that the schema does not allow.
    """
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise _first_problem(error, file) from None


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML in which a key given twice is a mistake, not a silent choice of the last."""


def _mapping_with_unique_keys(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_with_unique_keys)


def _parse_yaml(text: str, *, file: object) -> dict[str, Any]:
    try:
        document = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        line = f"line {mark.line + 1}" if mark is not None else None
        raise InputError(f"not valid YAML: {problem}", file=file, key=line) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"not valid YAML: {error}", file=file) from None
    if not isinstance(document, dict):
        raise InputError("allowed: a mapping with the keys name, model, cluster, workload, cases, ...", file=file)
    return document


def _override(document: dict[str, Any], override: str) -> None:
    """Set one dotted key of a document."""
    key, equals, text = override.partition("=")
    parts = [part for part in re.split(r"[.\[\]]+", key.strip()) if part]
    if not equals or not parts:
        raise InputError(
            "allowed: key=value, such as workload.seed=1 or cases.0.policy=lb-mini", key="--set", value=override
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError("the value is not valid YAML", key="--set", value=override) from None
    holder: Any = document
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        where = ".".join(parts[: depth + 1])
        if isinstance(holder, list):
            if not part.isdecimal() or int(part) >= len(holder):
                raise InputError(
                    f"{where}: allowed: a position from 0 to {len(holder) - 1}", key="--set", value=override
                )
            if last:
                holder[int(part)] = value
            else:
                holder = holder[int(part)]
        elif isinstance(holder, dict):
            # Keys that are numbers in the file (rank_speeds) are numbers here too.
            name: Any = int(part) if part.isdecimal() else part
            if last:
                holder[name] = value
            else:
                if not isinstance(holder.get(name), dict | list):
                    holder[name] = {}
                holder = holder[name]
        else:
            raise InputError(f"{where}: the value above it holds no keys", key="--set", value=override)


def _first_problem(error: ValidationError, file: object | None) -> InputError:
    """The first problem in a validation error, as one line."""
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    key = _dotted(location) or None
    given = first["input"]
    if first["type"] == "extra_forbidden":
        known = _fields_at(location[:-1])
        if known:
            problem = unknown_name("key", location[-1], known, file=file, key=key).problem
            return InputError(problem, file=file, key=key, value=given)
        return InputError("unknown key", file=file, key=key, value=given)
    if first["type"] == "missing":
        return InputError("required key is missing", file=file, key=key)
    problem = first["msg"].removeprefix("Value error, ")
    problem = problem[0].lower() + problem[1:]
    if isinstance(given, BaseModel | Mapping):
        return InputError(problem, file=file, key=key)
    return InputError(problem, file=file, key=key, value=given)


def _dotted(location: Iterable[str | int]) -> str:
    return ".".join(str(part) for part in location)


def _fields_at(location: Sequence[str | int]) -> list[str]:
    """The keys that the schema knows at a location; empty if the location is no section."""
    section: type[BaseModel] | None = Scenario
    for part in location:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section is not None else None
        if field is None:
            return []
        section = _section_in(field.annotation)
    return list(section.model_fields) if section is not None else []


def _section_in(annotation: object) -> type[BaseModel] | None:
    """The section that a field holds: itself, or inside an optional or a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _section_in(argument)
        if found is not None:
            return found
    return None
