"""Files of calibrated costs: what is written is what is read, and what cannot be is named with its place."""

from __future__ import annotations

import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from known_costs import known_costs, term, transfer_cost

from odcsim.costs.calibrated import CalibratedCosts, MemoryCosts, StepCosts, Term, costs_text, load_costs, write_costs
from odcsim.errors import InputError
from odcsim.model_shape import ModelShape


def full_costs():
    """Costs with everything that a file can hold."""
    contended = transfer_cost(2.3e-4, 3.1e-9, contention=term(0.2), others=1.7)
    pair = known_costs().one_sided.model_copy(update={"gather": contended})
    return known_costs(
        one_sided=pair,
        collectives={name: known_costs().collectives["collective"] for name in ("collective", "gloo")},
        memory=MemoryCosts(
            process=term(2e8),
            base={"one_sided": term(3e7), "gloo": term(2e7)},
            per_token=term(0.0, identified=False),
            spread=0.01,
            observations=7,
        ),
        model={"name": "tiny", "layers": 2},
        training={"recompute": "full"},
        warnings=("something: is not known; {really}",),
    )


@pytest.fixture
def file(tmp_path):
    """A file of such costs."""
    write_costs(tmp_path / "costs.yaml", full_costs())
    return tmp_path / "costs.yaml"


# What is written is what is read


def test_costs_are_read_back_as_they_were_written(file):
    assert load_costs(file) == full_costs()


@pytest.mark.parametrize(
    "costs",
    [
        known_costs(one_sided=None, steps=StepCosts(), collectives={}),
        known_costs(steps=StepCosts(optimizer=term(1.0))),
        known_costs(warnings=("a",)),
    ],
)
def test_what_a_run_did_not_show_stays_unknown(tmp_path, costs):
    write_costs(tmp_path / "costs.yaml", costs)
    assert load_costs(tmp_path / "costs.yaml") == costs


NUMBERS = st.floats(0, 1e12) | st.floats(0, 1e-6)


@settings(max_examples=12, deadline=None)
@given(numbers=st.lists(NUMBERS, min_size=3, max_size=3))
def test_any_term_survives_to_the_printed_digits(tmp_path_factory, numbers):
    low, value, high = sorted(numbers)
    wanted = Term(value=value, low=low, high=high)
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    write_costs(file, known_costs(steps=StepCosts(meeting=wanted)))
    found = load_costs(file).steps.meeting
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), rel=1e-6, abs=1e-300)
    # What is read is what would be written again.
    assert costs_text(load_costs(file)) == file.read_text()


def test_a_file_is_for_people(file):
    """It says what it is, a term takes a line, and numbers are as long as they are known."""
    lines = file.read_text().splitlines()
    assert lines[0].startswith("# Costs fitted to a recorded run by `odcsim calibrate`")
    write_costs(file, known_costs(steps=StepCosts(meeting=Term(value=1 / 3, low=0.1, high=2 / 3))))
    assert "  meeting: {value: 0.3333333, low: 0.1, high: 0.6666667, identified: true}" in file.read_text().splitlines()


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"costs\.yaml: "):
        write_costs(tmp_path / "file" / "costs.yaml", full_costs())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# What cannot be is named


def spoilt(file, dotted, value=None, *, drop=False):
    document = yaml.safe_load(file.read_text())
    *above, last = dotted.split(".")
    section = document
    for key in above:
        section = section[key]
    if drop:
        del section[last]
    else:
        section[last] = copy.deepcopy(value)
    file.write_text(yaml.safe_dump(document, sort_keys=False))


def refused(file, text):
    with pytest.raises(InputError) as caught:
        load_costs(file)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{file}: {text}"), str(caught.value)


@pytest.mark.parametrize(
    ("dotted", "value", "text"),
    [
        (
            "schema",
            "odcsim.costs/1",
            "schema: 'odcsim.costs/1': this version reads 'odcsim.costs/2' alone; calibrate again",
        ),
        ("schema", 1, "schema: 1: this version reads 'odcsim.costs/2' alone"),
        ("compute.block_forward.tokens.value", -1e-9, "compute.block_forward.tokens.value: -1e-09: must be at least 0"),
        ("compute.block_forward.tokens.value", float("nan"), "compute.block_forward.tokens.value: nan: must be"),
        ("compute.block_forward.tokens.high", float("inf"), "compute.block_forward.tokens.high: inf: must be finite"),
        ("compute.block_forward.tokens.low", "few", "compute.block_forward.tokens.low: 'few': must be a number"),
        ("compute.block_forward.tokens.low", True, "compute.block_forward.tokens.low: True: must be a number"),
        (
            "compute.block_forward.tokens",
            3e-6,
            "compute.block_forward.tokens: 3e-06: must be a mapping with keys of: value",
        ),
        (
            "one_sided.gather.latency",
            {"value": 3.0, "low": 1.0, "high": 2.0},
            "one_sided.gather.latency: value 3 must lie in its interval, 1 to 2",
        ),
        (
            "collectives.gloo.gather.latency",
            {"value": 0.5, "low": 1.0, "high": 2.0},
            "collectives.gloo.gather.latency: value 0.5 must lie in its interval, 1 to 2",
        ),
        ("one_sided.gather.contention.value", -1, "one_sided.gather.contention.value: -1: must be at least 0"),
        ("one_sided.gather.others", -1, "one_sided.gather.others: -1: must be at least 0"),
        ("steps.settle.high", None, "steps.settle.high: None: must be a number"),
        ("memory.per_token.identified", "perhaps", "memory.per_token.identified: 'perhaps': must be true or false"),
        ("memory.base", {}, "memory.base: {}: must have at least 1 entry"),
        ("memory.base", 3e7, "memory.base: 30000000.0: must be a mapping"),
        ("memory.base.gloo.value", -1, "memory.base.gloo.value: -1: must be at least 0"),
        ("memory.observations", 0, "memory.observations: 0: must be at least 1"),
        ("origin.ranks", 1.5, "origin.ranks: 1.5: must be a whole number"),
        ("origin.ranks", 6, "origin: ranks_per_node 4 does not divide ranks 6"),
        ("origin.runs", [], "origin.runs: []: must have at least 1 entry"),
        ("origin.processors", 0, "origin.processors: 0: must be at least 1"),
        ("origin.versions", 3, "origin.versions: 3: must be a mapping"),
        ("compute.block_forwards", {}, "compute.block_forwards: "),
        ("collectives", [], "collectives: []: must be a mapping"),
        ("warnings", "none", "warnings: 'none': must be a list"),
    ],
)
def test_values_that_cannot_be(file, dotted, value, text):
    spoilt(file, dotted, value)
    refused(file, text)


@pytest.mark.parametrize(
    "dotted",
    [
        "origin",
        "model",
        "training",
        "compute",
        "compute.head_backward",
        "compute.head_backward.constant",
        "compute.head_backward.constant.low",
        "one_sided.scatter_accumulate",
        "collectives.collective.gather.spread",
        "memory.process",
        "origin.digests",
    ],
)
def test_keys_that_are_missing(file, dotted):
    spoilt(file, dotted, drop=True)
    refused(file, f"{dotted}: required key is missing")


def test_a_file_of_no_version(file):
    spoilt(file, "schema", drop=True)
    refused(file, "schema: None: this version reads 'odcsim.costs/2' alone")


def test_a_mistyped_key_is_told_by_its_neighbour(file):
    document = yaml.safe_load(file.read_text())
    document["compute"]["blok_forward"] = document["compute"].pop("block_forward")
    file.write_text(yaml.safe_dump(document))
    refused(file, "compute.blok_forward: ")
    with pytest.raises(InputError, match="block_forward"):
        load_costs(file)


def test_compute_that_takes_no_time_at_all(file):
    document = yaml.safe_load(file.read_text())
    for cost in document["compute"].values():
        for name in ("squared_tokens", "tokens", "constant"):
            cost[name] = {"value": 0.0, "low": 0.0, "high": 1.0}
    file.write_text(yaml.safe_dump(document))
    refused(file, "compute: every term of every visit is 0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "allowed: a mapping with the keys schema, origin, model, training, compute, ..."),
        ("[1, 2]", "allowed: a mapping with the keys schema, origin, model, training, compute, ..."),
        ("a: [", "line 1: not valid YAML"),
        ("a: 1\na: 2", "line 2: not valid YAML: key 'a' is given twice"),
        ("\x00", "line 1: not valid YAML"),
        ("schema: odcsim.costs/2", "origin: required key is missing"),
    ],
    ids=["nothing", "a list", "not YAML", "a key twice", "no text", "no content"],
)
def test_what_is_no_file_of_costs(tmp_path, text, problem):
    file = tmp_path / "costs.yaml"
    file.write_text(text)
    refused(file, problem)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such file; give the path of a file of calibrated costs"):
        load_costs(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match=r"s\.yaml: compute\.calibrated: .*nowhere\.yaml: no such file"):
        load_costs(tmp_path / "nowhere.yaml", key="compute.calibrated", file="s.yaml")


def test_costs_know_which_shape_they_are_of():
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 128, "vocab": 1000}
    shape = ModelShape(name="tiny", **sizes)
    assert known_costs(model=None).is_of_shape(shape)
    written = {**vars(shape), "name": "another name", "total_parameters": 202048}
    assert known_costs(model=written).is_of_shape(shape)
    assert not known_costs(model={**written, "ffn": 129}).is_of_shape(shape)
    assert not known_costs(model={**written, "tied_embeddings": True}).is_of_shape(shape)


def test_the_schema_has_a_text_on_every_section():
    definitions = CalibratedCosts.model_json_schema()["$defs"]
    assert {"Term", "TransferCost", "Origin"} <= definitions.keys()
    assert all(definition.get("description") for definition in definitions.values())


def test_keys_are_told_as_they_are_written(tmp_path):
    write_costs(tmp_path / "costs.yaml", known_costs())
    text = (tmp_path / "costs.yaml").read_text(encoding="utf-8")
    (tmp_path / "costs.yaml").write_text(text.replace("\ncompute:", "\ncomptue:"), encoding="utf-8")
    with pytest.raises(InputError, match=r"comptue: .*did you mean 'compute'.*steps, training") as raised:
        load_costs(tmp_path / "costs.yaml")
    assert "schema," in str(raised.value)
    assert "schema_" not in str(raised.value)
