"""What a scenario may write under `workload.lengths`, and where a fault is found."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from odcsim.lengths import LengthSpec

ALL_FORMS = [
    {"trace": "a.csv"},
    {"lognormal": {"mean": 16600, "sigma": 0.75, "min": 1, "max": 65536}},
    {"uniform": {"min": 512, "max": 8192}},
    {"constant": 4096},
    {"values": [3, 1, 2]},
    {"histogram": "h.json"},
    {"mixture": [{"weight": 0.7, "trace": "a.csv"}, {"weight": 0.3, "lognormal": {"mean": 16600, "sigma": 0.75}}]},
]


@pytest.mark.parametrize("written", ALL_FORMS)
def test_every_form_survives_a_dump(written: dict[str, Any]) -> None:
    spec = LengthSpec.model_validate(written)
    assert spec.kind == next(iter(written))
    assert list(spec.model_dump()) == list(written)
    assert LengthSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert LengthSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_lognormal_without_bounds_has_the_widest() -> None:
    spec = LengthSpec.model_validate({"lognormal": {"mean": 100, "sigma": 1}})
    assert spec.lognormal is not None
    assert (spec.lognormal.min, spec.lognormal.max) == (1, 1_000_000_000)


def test_a_spec_cannot_be_changed() -> None:
    spec = LengthSpec.model_validate({"constant": 5})
    with pytest.raises(ValidationError, match="frozen"):
        spec.constant = 6


@pytest.mark.parametrize(
    ("written", "where", "problem"),
    [
        ({}, "", "exactly one of trace, lognormal, uniform, constant, values, histogram, mixture is needed; none is"),
        ({"trace": None}, "", "none is given"),
        ({"trace": "a.csv", "constant": 5}, "", "trace and constant are given"),
        ({"lognorml": {}}, "lognorml", "not permitted"),
        ({"trace": ""}, "trace", "at least 1 character"),
        ({"trace": "a\0b"}, "trace", "null character"),
        ({"trace": 5}, "trace", "valid string"),
        ({"constant": 0}, "constant", "greater than or equal to 1"),
        ({"constant": 1_000_000_001}, "constant", "less than or equal to 1000000000"),
        ({"constant": True}, "constant", "valid integer"),
        ({"constant": "4096"}, "constant", "valid integer"),
        ({"values": []}, "values", "at least one"),
        ({"values": [4, 0]}, "values.1", "greater than or equal to 1"),
        ({"values": [4, 2.5]}, "values.1", "valid integer"),
        ({"uniform": {"min": 5}}, "uniform.max", "required"),
        ({"uniform": {"min": 5, "max": 4}}, "uniform", r"min \(5\) must not be more than max \(4\)"),
        ({"lognormal": {"mean": 9, "sigma": 1, "min": 5, "max": 4}}, "lognormal", "must not be more than max"),
        ({"lognormal": {"mean": 9, "sigma": 1, "median": 4}}, "lognormal.median", "not permitted"),
        ({"lognormal": {"mean": 0, "sigma": 1}}, "lognormal.mean", "greater than 0"),
        ({"lognormal": {"mean": float("nan"), "sigma": 1}}, "lognormal.mean", "finite"),
        ({"lognormal": {"mean": 9, "sigma": float("inf")}}, "lognormal.sigma", "finite"),
        ({"lognormal": {"mean": 9, "sigma": "inf"}}, "lognormal.sigma", "less than or equal|finite"),
        ({"lognormal": {"mean": 9, "sigma": -0.1}}, "lognormal.sigma", "greater than or equal to 0"),
        ({"lognormal": {"mean": True, "sigma": 1}}, "lognormal.mean", "not true or false"),
        ({"mixture": []}, "mixture", "at least one"),
        ({"mixture": [{"constant": 5}]}, "mixture.0.weight", "required"),
        ({"mixture": [{"weight": 0, "constant": 5}]}, "mixture.0.weight", "greater than 0"),
        ({"mixture": [{"weight": float("nan"), "constant": 5}]}, "mixture.0.weight", "finite"),
        ({"mixture": [{"weight": 1, "constant": 5}, {"weight": 1}]}, "mixture.1", "none is given"),
        ({"mixture": [{"weight": 1, "mixture": []}]}, "mixture.0.mixture", "not permitted"),
    ],
)
def test_a_fault_is_found_once_and_where_it_is(written: dict[str, Any], where: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem) as caught:
        LengthSpec.model_validate(written)
    found = [".".join(map(str, error["loc"])) for error in caught.value.errors()]
    assert found == [where]


def test_the_json_schema_asks_for_exactly_one_source_and_knows_no_null() -> None:
    schema = LengthSpec.model_json_schema()
    kinds = ["trace", "lognormal", "uniform", "constant", "values", "histogram", "mixture"]
    assert list(schema["properties"]) == kinds
    assert schema["oneOf"] == [{"required": [kind]} for kind in kinds]
    assert schema["properties"]["constant"]["maximum"] == 1_000_000_000
    assert schema["properties"]["mixture"]["minItems"] == 1
    component = schema["$defs"]["MixtureComponent"]
    assert component["required"] == ["weight"]
    assert component["oneOf"] == [{"required": [kind]} for kind in kinds[:-1]]
    assert "null" not in str(schema)
