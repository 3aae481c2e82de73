"""Whatever a file or an override holds, the answer is a scenario or an `InputError` of one printable line."""

from __future__ import annotations

import copy

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.scenario import Scenario, load_scenario, parse_scenario, scenario_schema

SECTIONS = [scenario_schema(), *scenario_schema()["$defs"].values()]
KEYS = sorted({key for section in SECTIONS for key in section["properties"]})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63, 0.5, "odc", "lb-mini", "a100", "80 GB/s", "5 us", "1e999", "-1 s"]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.dates(),
    st.binary(max_size=4),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), SCALARS), inner, max_size=4),
    ),
    max_leaves=12,
)
SLOW_DRAWS = settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))


def is_answered(parse):
    """A scenario, or one printable line."""
    try:
        scenario = parse()
    except InputError as error:
        message = str(error)
    else:
        assert isinstance(scenario, Scenario)
        return
    assert message.isprintable()
    assert len(message) < 5000


@SLOW_DRAWS
@given(JUNK)
@example({"[key]": None})  # pydantic's own word for the key of a mapping
def test_any_document(junk):
    is_answered(lambda: parse_scenario(junk))


def places(value, place=()):
    """The path of everything inside a document."""
    yield place
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*place, key))


@SLOW_DRAWS
@given(st.data())
def test_a_scenario_with_junk_somewhere(document, data):
    """Close to valid documents go deeper than junk throughout."""
    changed = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from([place for place in places(changed) if place]))
        section = changed
        for key in place[:-1]:
            section = section[key]
        if isinstance(section, dict) and data.draw(st.booleans()):
            section[data.draw(st.sampled_from(KEYS))] = data.draw(JUNK)
        else:
            section[place[-1]] = data.draw(JUNK)
    is_answered(lambda: parse_scenario(changed))


YAML_SIGNS = st.text(alphabet="ab:-[]{}&*!<>|'\"#%@`,?~ \n\t0.1eE\x00\x1b\u2028é", max_size=40)


@SLOW_DRAWS
@given(text=st.one_of(st.text(max_size=40), YAML_SIGNS, JUNK.map(yaml.dump)))
def test_any_text(tmp_path, text):
    path = tmp_path / "s.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    is_answered(lambda: load_scenario(path))


DOTTED = st.lists(
    st.one_of(st.sampled_from(KEYS), st.integers(-1, 3).map(str), st.text(max_size=3)), min_size=1, max_size=4
).map(".".join)


@SLOW_DRAWS
@given(
    overrides=st.lists(
        st.one_of(
            st.text(max_size=20),
            st.tuples(DOTTED, st.one_of(YAML_SIGNS, SCALARS.map(str))).map("=".join),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_override(tmp_path, document, overrides):
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    is_answered(lambda: load_scenario(path, overrides=overrides))


@pytest.mark.parametrize("name", ["quickstart.yaml", *[f"published/{name}.yaml" for name in ("odc-golden", "odc-14b")]])
def test_shipped_scenarios_are_valid(root, name):
    assert isinstance(load_scenario(root / "scenarios" / name), Scenario)
