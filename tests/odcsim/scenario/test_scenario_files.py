"""Scenario files: what is read from YAML, and one line with file and line for what is not."""

from __future__ import annotations

import math

import pytest
import yaml

from odcsim.errors import InputError
from odcsim.scenario import load_scenario


@pytest.fixture
def load(tmp_path):
    """Loads a text as a scenario file named s.yaml; folders in messages are left out."""

    def loaded(text, *overrides):
        path = tmp_path / "s.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return load_scenario(path, overrides=overrides)

    return loaded


@pytest.fixture
def refused(load, tmp_path):
    """What a text is refused with."""

    def message(text, *overrides):
        with pytest.raises(InputError) as caught:
            load(text, *overrides)
        return str(caught.value).removeprefix(f"{tmp_path}/")

    return message


@pytest.fixture
def text(document):
    return yaml.safe_dump(document, sort_keys=False)


NO_MAPPING = "s.yaml: allowed: a mapping with the keys name, model, cluster, workload, cases, ..."


def test_a_file_is_read(load, text):
    scenario = load(text)
    assert scenario.name == "small"
    assert scenario.cluster.ranks == 4
    assert scenario.workload.samples_of(scenario.cluster.ranks) == 8
    assert [case.policy for case in scenario.cases] == ["lb-micro", "lb-mini"]


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "no.yaml")
    assert str(caught.value) == f"{tmp_path}/no.yaml: no such file; give the path of a scenario file"


def test_a_folder(tmp_path):
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is a folder; give the path of a scenario file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", NO_MAPPING),
        ("# nothing but a comment\n", NO_MAPPING),
        ("- a\n- b\n", NO_MAPPING),
        ("just a text", NO_MAPPING),
        ("3", NO_MAPPING),
        ("!!set {a, b}", NO_MAPPING),
        (b"name: \xff\xfe", "s.yaml: is not UTF-8 text; give the path of a scenario file"),
        ("name: [1, 2\nmodel: 3\n", "s.yaml: line 2: not valid YAML: expected ',' or ']', but got ':'"),
        ("name: a: b\n", "s.yaml: line 1: not valid YAML: mapping values are not allowed here"),
        ("name: a\n\tb: c", "s.yaml: line 2: not valid YAML: found character '\\t' that cannot start any token"),
        ("name: 'open\n", "s.yaml: line 2: not valid YAML: found unexpected end of stream"),
        ("a: 1\nb:\n  c: 1\na: 2\n", "s.yaml: line 4: not valid YAML: key 'a' is given twice"),
        ("cases:\n- {a: 1, b: 2, a: 1}", "s.yaml: line 2: not valid YAML: key 'a' is given twice"),
        ("? [1, 2]\n: 3\n", "s.yaml: line 1: not valid YAML: a key must be a plain word"),
        ("a: *nowhere", "s.yaml: line 1: not valid YAML: found undefined alias 'nowhere'"),
        ("a: &a [1, *a]", "s.yaml: line 1: not valid YAML: an alias to what it is part of"),
        ("a: &a {b: *a}", "s.yaml: line 1: not valid YAML: an alias to what it is part of"),
        ("a: 1\n---\nb: 2\n", "s.yaml: line 2: not valid YAML: expected a single document in the stream, but found"),
        ("a: 1\nb: \x1b[31m", "s.yaml: line 2: not valid YAML: character #x001b is not allowed"),
        ("a: \0", "s.yaml: line 1: not valid YAML: character #x0000 is not allowed"),
        ("a: 1\nb: 2026-13-45", "s.yaml: line 2: not valid YAML: cannot be read as timestamp"),
        ("a: !!int abc", "s.yaml: line 1: not valid YAML: cannot be read as int"),
        ("a: !!int ''", "s.yaml: line 1: not valid YAML: cannot be read as int"),
        ("a: !!bool abc", "s.yaml: line 1: not valid YAML: cannot be read as bool"),
        ("a: !!float abc", "s.yaml: line 1: not valid YAML: cannot be read as float"),
        ("a: !!timestamp abc", "s.yaml: line 1: not valid YAML: cannot be read as timestamp"),
        (f"a: {'9' * 5000}", "s.yaml: line 1: not valid YAML: cannot be read as int"),
        ("a: !!python/object/apply:os.getcwd []", "s.yaml: line 1: not valid YAML: could not determine a constructor"),
        ("<<: 3", "s.yaml: line 1: not valid YAML: expected a mapping or list of mappings for merging"),
    ],
)
def test_what_is_no_scenario_file(refused, text, message):
    assert refused(text).startswith(message)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
@pytest.mark.timeout(5)
def test_deep_nesting_is_refused(refused, opening):
    assert refused(f"a:\n  {opening * 5000}") == "s.yaml: line 2: not valid YAML: nested more than 50 deep"


def test_nesting_of_use_is_not_refused(refused):
    assert refused("a: " + "[" * 40 + "]" * 40).startswith("s.yaml: a: [[[...]]]: unknown key")


def _bomb(first, each, count=12):
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{level}: &a{level} {each.format(*[f'*a{level - 1}'] * 10)}" for level in range(1, count)]
    return "\n".join(lines)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "bomb",
    [
        _bomb("[x, x, x, x, x, x, x, x, x, x]", "[{}, {}, {}, {}, {}, {}, {}, {}, {}, {}]"),
        _bomb("{k: 1}", "{{a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}, h: {}, i: {}, j: {}}}"),
        _bomb("{k: 1}", "{{<<: [{}, {}, {}, {}, {}, {}, {}, {}, {}, {}]}}"),
    ],
    ids=["lists", "mappings", "merges"],
)
def test_aliases_that_repeat_each_other_are_refused(refused, bomb):
    message = refused(bomb)
    assert message.startswith("s.yaml: line ")
    assert message.endswith("not valid YAML: more than 1000000 values, those that aliases repeat included")


def test_a_long_list_of_lengths_is_no_bomb(load, changed):
    document = changed({"workload.lengths": {"values": [7] * 3000}})
    assert len(load(yaml.safe_dump(document)).workload.lengths.values) == 3000


def test_aliases_and_merges(load, text):
    """Keys that are written win over merged ones; that is no key given twice."""
    text = text[: text.index("cases:")] + (
        "cases:\n- &base {sync: fsdp, policy: lb-micro}\n- *base\n- {<<: *base, sync: odc}\n- {sync: odc, <<: *base}\n"
    )
    assert [(case.sync, case.policy) for case in load(text).cases] == [
        ("fsdp", "lb-micro"),
        ("fsdp", "lb-micro"),
        ("odc", "lb-micro"),
        ("odc", "lb-micro"),
    ]


@pytest.mark.parametrize(
    ("override", "look", "value"),
    [
        ("name=other", lambda s: s.name, "other"),
        ("workload.seed=7", lambda s: s.workload.seed, 7),
        ("  workload.seed = 7", lambda s: s.workload.seed, 7),
        ("cases.1.policy=local-sort", lambda s: s.cases[1].policy, "local-sort"),
        ("cases[1].policy=local-sort", lambda s: s.cases[1].policy, "local-sort"),
        ("cases=[{sync: odc, policy: x}]", lambda s: len(s.cases), 1),
        ("cases.0={sync: odc, policy: x}", lambda s: s.cases[0].sync, "odc"),
        ("cluster.rank_speeds.3=0.5", lambda s: s.cluster.rank_speeds, {3: 0.5}),
        ("cluster.rank_speeds={3: 0.5}", lambda s: s.cluster.rank_speeds, {3: 0.5}),
        ("cluster.gpu.base=a100", lambda s: s.cluster.gpu, {"base": "a100"}),
        ("cluster.intra_node.bandwidth=80 GB/s", lambda s: s.cluster.intra_node.bandwidth, 80e9),
        ("workload.lengths.values.5=41", lambda s: s.workload.lengths.values[5], 41),
        ("workload.cut_tokens=", lambda s: s.workload.cut_tokens, None),
        ("cases.0.name=a=b", lambda s: s.cases[0].name, "a=b"),
    ],
)
def test_overrides(load, text, override, look, value):
    assert look(load(text, override)) == value


def test_the_last_override_of_a_key_counts(load, text):
    assert load(text, "workload.seed=1", "workload.seed=2").workload.seed == 2


def test_an_override_of_one_place_leaves_its_aliases_alone(load, text):
    text = text[: text.index("cases:")] + "cases:\n- &base {sync: fsdp, policy: lb-micro}\n- *base\n"
    scenario = load(text, "cases.1.sync=odc")
    assert [case.sync for case in scenario.cases] == ["fsdp", "odc"]


FORM = "allowed: key=value, such as workload.seed=1 or cases.0.policy=lb-mini"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("", FORM),
        ("workload.seed", FORM),
        ("=3", FORM),
        (".=3", FORM),
        ("[]=3", FORM),
        ("cases.9.policy=x", "cases.9: allowed: a position from 0 to 1"),
        ("cases.2=x", "cases.2: allowed: a position from 0 to 1"),
        ("cases.-1.policy=x", "cases.-1: allowed: a position from 0 to 1"),
        ("cases.first.policy=x", "cases.first: allowed: a position from 0 to 1"),
        (f"cases.{'9' * 30}=x", f"cases.{'9' * 30}: allowed: a position from 0 to 1"),
        ("cases.0.policy=[", "the value is not valid YAML: expected the node content, but found '<stream end>'"),
        ("cases.0.policy=a: b: c", "the value is not valid YAML: mapping values are not allowed here"),
        ("cases.0={sync: odc, sync: odc}", "the value is not valid YAML: key 'sync' is given twice"),
        ("workload.seed=!!int x", "the value is not valid YAML: cannot be read as int"),
        ("workload.seed=&a [*a]", "the value is not valid YAML: an alias to what it is part of"),
    ],
)
def test_overrides_refused(refused, text, override, problem):
    assert refused(text, override) == f"--set: {override!r}: {problem}"


@pytest.mark.parametrize("override", [f"workload.seed={'9' * 5000}", f"cases.{'9' * 5000}.policy=x", "a=" + "[" * 5000])
def test_endless_overrides_are_shown_short(refused, text, override):
    assert len(refused(text, override).replace("9" * 5000, "")) < 300


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.sed=1", "s.yaml: workload.sed: 1: unknown key; did you mean 'seed'?"),
        ("workload.seed=", "s.yaml: workload.seed: None: must be a whole number"),
        ("name.a.b=1", "s.yaml: name: {'a': {'b': 1}}: must be a text"),
        ("cases.0.policy.a=1", "s.yaml: cases.0.policy: {'a': 1}: must be a text"),
        ("name=- a", "s.yaml: name: ['a']: must be a text"),
        ("\x1b[31m=3", r"s.yaml: \x1b: {'31m': 3}: unknown key"),
        (".".join("a" * 3000) + "=1", "s.yaml: a: {'a': {'a': {...}}}: unknown key; did you mean 'name'?"),
    ],
)
def test_what_an_override_sets_is_checked_like_the_file(refused, text, override, message):
    assert refused(text, override).startswith(message)


def test_an_override_into_an_empty_list(refused, changed):
    text = yaml.safe_dump(changed({"cases": []}))
    assert refused(text, "cases.0.policy=x") == "--set: 'cases.0.policy=x': cases.0: the list is empty"


def test_numbers_as_yaml_has_them(load, changed):
    """YAML 1.1 takes 1e-3 for a text; it is meant as a number."""
    text = yaml.safe_dump(changed()).replace("quadratic: 2.0", "quadratic: 1e-3")
    assert math.isclose(load(text).compute.fitted.quadratic, 0.001)
