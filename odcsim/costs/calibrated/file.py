"""Reading and writing files of calibrated costs: YAML, a figure a line, so that a person can read and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from odcsim.costs.calibrated.schema import COSTS_SCHEMA, CalibratedCosts, Term
from odcsim.errors import InputError
from odcsim.files import read_text, write_atomically
from odcsim.scenario.document import parse_yaml_document
from odcsim.scenario.problems import first_problem

__all__ = ["costs_text", "load_costs", "write_costs"]

_HEADER = """\
# Costs fitted to a recorded run by `odcsim calibrate`. A scenario takes them by `compute: {calibrated: THIS FILE}`.
# Seconds, bytes, tokens; low and high are 95% intervals. docs/calibrate.md explains every figure.
"""
_DIGITS = 7


class _Dumper(yaml.SafeDumper):
    """YAML with terms on one line each."""


def _represent_flow(dumper: yaml.SafeDumper, term: _OneLine) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", dict(term), flow_style=True)


class _OneLine(dict[str, Any]):
    """A mapping to be written on one line."""


_Dumper.add_representer(_OneLine, _represent_flow)


def load_costs(path: Path, *, key: str | None = None, file: object | None = None) -> CalibratedCosts:
    """The costs that a file holds.

    Args:
        path: the file.
        key: of the scenario that named it.
        file: the scenario's, for messages.

    Raises:
        InputError: no such file, one of another version, or something that the schema does not allow.
    """
    try:
        text = read_text(path, what="file of calibrated costs (made by odcsim calibrate)", key=key)
    except InputError as error:
        if file is None:
            raise
        raise InputError(f"{path}: {error.problem}", file=file, key=key) from None
    document = parse_yaml_document(text, file=path, keys="schema, origin, model, training, compute")
    if document.get("schema") != COSTS_SCHEMA:
        raise InputError(
            f"this version reads {COSTS_SCHEMA!r} alone; calibrate again",
            file=path,
            key="schema",
            value=document.get("schema"),
        )
    try:
        return CalibratedCosts.model_validate(document)
    except ValidationError as error:
        raise first_problem(error, file=path, schema=CalibratedCosts) from None


def write_costs(path: Path, costs: CalibratedCosts) -> None:
    """Write a file of costs, whole or not at all.

    Raises:
        InputError: it cannot be written there.
    """
    write_atomically(path, costs_text(costs))


def costs_text(costs: CalibratedCosts) -> str:
    """What the file of these costs says."""
    document = _plain(costs.model_dump(mode="python", by_alias=True, exclude_none=False))
    return _HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a model dumps
    """Lists for tuples, numbers of a sensible length, and terms on one line."""
    if isinstance(value, dict):
        plain = {key: _plain(entry) for key, entry in value.items()}
        return _OneLine(plain) if set(plain) == set(Term.model_fields) else plain
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return value
