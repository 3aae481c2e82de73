"""The document of a scenario, before its schema is known: YAML text, and `key=value` overrides laid over it.

Whatever the text, the answer is a document or an `InputError`, in time and memory that the length of the text bounds:
aliases that grow without end, or nesting that would exhaust the stack, are refused.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import yaml

from odcsim.errors import InputError

__all__ = ["override_key", "parse_yaml_document"]

_DEEPEST = 50
# Values, counting those that aliases repeat. A longer list of lengths belongs in a file of its own.
_MOST_VALUES = 1_000_000
_MOST_DIGITS_OF_A_POSITION = 9


class _Loader(yaml.SafeLoader):
    """YAML without what makes a short text large, and without a silent choice among keys given twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values_below: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth == _DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"nested more than {_DEEPEST} deep", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None or (isinstance(event, yaml.AliasEvent) and id(node) not in self._values_below):
            raise yaml.composer.ComposerError(None, None, "an alias to what it is part of", event.start_mark)
        if id(node) not in self._values_below:
            self._values_below[id(node)] = 1 + sum(self._values_below[id(child)] for child in _children(node))
        if self._values_below[id(node)] > _MOST_VALUES:
            problem = f"more than {_MOST_VALUES} values, those that aliases repeat included"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a key must be a plain word", key_node.start_mark)
            key = (key_node.tag, key_node.value)
            if key in seen:
                problem = f"key {key_node.value!r} is given twice"
                raise yaml.composer.ComposerError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - as in yaml
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # What its constructors raise for a tag, or a form, that the text does not fit: `!!int abc`, 2026-13-45.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"cannot be read as {kind}", node.start_mark) from None


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


class _NotYamlError(Exception):
    """The problem, and its line if it is known."""

    def __init__(self, problem: str, line: int | None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


def _parse(text: str) -> object:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        problem = f"character #x{error.character:04x} is not allowed"
        raise _NotYamlError(problem, text.count("\n", 0, error.position) + 1) from None
    except yaml.MarkedYAMLError as error:
        problem = error.problem or "syntax error"
        if error.context and problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        raise _NotYamlError(problem, error.problem_mark.line + 1 if error.problem_mark else None) from None


def parse_yaml_document(
    text: str, *, file: object, keys: str = "name, model, cluster, workload, cases"
) -> dict[Any, Any]:
    """The mapping that a YAML text holds.

    Args:
        text: of the file.
        file: for messages.
        keys: of the mapping, for messages.

    Raises:
        InputError: not YAML, or no mapping.
    """
    try:
        document = _parse(text)
    except _NotYamlError as error:
        line = None if error.line is None else f"line {error.line}"
        raise InputError(f"not valid YAML: {error.problem}", file=file, key=line) from None
    if not isinstance(document, dict):
        raise InputError(f"allowed: a mapping with the keys {keys}, ...", file=file)
    return document


def override_key(document: dict[Any, Any], override: str) -> None:
    """Set one dotted key of a document.

    Sections above the key are copied before they are changed: aliases let several places hold the same one.

    Args:
        document: changed in place.
        override: `key=value`, such as "workload.seed=1" or "cases.0.policy=lb-mini"; the value is YAML.

    Raises:
        InputError: no such form, a place that a list does not have, or a value that is not YAML.
    """
    key, equals, text = override.partition("=")
    parts = [part for part in re.split(r"[.\[\]]+", key.strip()) if part]
    if not equals or not parts:
        raise InputError(
            "allowed: key=value, such as workload.seed=1 or cases.0.policy=lb-mini", key="--set", value=override
        )
    try:
        value = _parse(text)
    except _NotYamlError as error:
        raise InputError(f"the value is not valid YAML: {error.problem}", key="--set", value=override) from None
    holder: dict[Any, Any] | list[Any] = document
    for depth, part in enumerate(parts):
        place = _place(holder, part, where=".".join(parts[: depth + 1]), override=override)
        if depth == len(parts) - 1:
            holder[place] = value
            return
        below = holder[place] if isinstance(holder, list) else holder.get(place)
        # What is no section gives way to one: `cluster.gpu.base=a100` where the GPU was a name.
        holder[place] = copy.copy(below) if isinstance(below, dict | list) else {}
        holder = holder[place]


def _place(holder: dict[Any, Any] | list[Any], part: str, *, where: str, override: str) -> Any:  # noqa: ANN401
    """The key or the position that a part of a dotted key names."""
    is_number = part.isdecimal() and len(part) <= _MOST_DIGITS_OF_A_POSITION
    if isinstance(holder, dict):
        # Keys that are numbers in the file (rank_speeds) are numbers here too.
        return int(part) if is_number else part
    if is_number and int(part) < len(holder):
        return int(part)
    allowed = f"allowed: a position from 0 to {len(holder) - 1}" if holder else "the list is empty"
    raise InputError(f"{where}: {allowed}", key="--set", value=override)
