"""From a scenario file, and `key=value` overrides, to a `Scenario`; every mistake becomes one line naming file and
key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from odcsim.files import read_text
from odcsim.scenario.document import override_key, parse_yaml_document
from odcsim.scenario.problems import first_problem
from odcsim.scenario.schema import Scenario

__all__ = ["load_scenario", "parse_scenario", "scenario_schema"]


def load_scenario(path: Path, *, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a YAML file.

    Args:
        path: the file.
        overrides: `key=value` texts: a dotted key ("workload.seed", "cases.0.policy") and a value in YAML.

    Raises:
        InputError: the file cannot be read, is not YAML, or says something that the schema does not allow.
    """
    document = parse_yaml_document(read_text(path, what="scenario file"), file=path)
    for override in overrides:
        override_key(document, override)
    return parse_scenario(document, file=path)


def parse_scenario(document: Mapping[str, Any], *, file: object | None = None) -> Scenario:
    """The scenario of a document already read.

    Raises:
        InputError: the first thing that the schema does not allow.
    """
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise first_problem(error, file=file) from None


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
