"""The schema: what is refused at each key, with the value and what is allowed; defaults; the JSON Schema."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest
from pydantic import BaseModel

from odcsim.errors import InputError
from odcsim.scenario import Scenario, parse_scenario, scenario_schema

HUGE = 10**400


@pytest.fixture
def refused(changed):
    """What a change of the small document is refused with."""

    def message(changes):
        with pytest.raises(InputError) as caught:
            parse_scenario(changed(changes), file="s.yaml")
        return str(caught.value)

    return message


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("modle", "model"),
        ("cluster.gpus", "gpu"),
        ("cluster.intra_node.bandwith", "bandwidth"),
        ("cluster.inter_node.port", "ports"),
        ("cluster.one_sided.inter_node_eficiency", "inter_node_efficiency"),
        ("cluster.slowdowns.probabilty", "probability"),
        ("workload.sample_per_rank", "samples_per_rank"),
        ("workload.lengths.trase", "trace"),
        ("workload.lengths.lognormal.men", "mean"),
        ("compute.analitic", "analytic"),
        ("compute.fitted.per_token", "per_tokens"),
        ("training.recompte", "recompute"),
        ("on_demand.gather_type", "gather_dtype"),
        ("planning.keep_group", "keep_groups"),
        ("cluster.compute_nois", "compute_noise"),
        ("cases.1.polcy", "policy"),
        ("runtime.devise", "device"),
    ],
)
def test_an_unknown_key_at_each_level(refused, key, nearest):
    message = refused({key: 1})
    assert message.startswith(f"s.yaml: {key}: 1: unknown key; did you mean '{nearest}'? (known: ")
    assert message.endswith(")")


def test_an_unknown_key_of_a_mixture(refused):
    assert refused({"workload.lengths": {"mixture": [{"weight": 1, "constnt": 5}]}}).startswith(
        "s.yaml: workload.lengths.mixture.0.constnt: 5: unknown key; did you mean 'constant'?"
    )


def test_an_unknown_key_like_no_other_lists_what_is_known(refused):
    assert refused({"zzz": 1}) == (
        "s.yaml: zzz: 1: unknown key (known: cases, cluster, compute, model, name, on_demand, overlap, planning, "
        "runtime, training, workload)"
    )


def test_a_mistyped_key_says_more_than_the_missing_one(changed):
    document = changed()
    document["workload"]["max_token"] = document["workload"].pop("max_tokens")
    with pytest.raises(InputError, match=r"workload.max_token: 8192: unknown key; did you mean 'max_tokens'\?"):
        parse_scenario(document)


@pytest.mark.parametrize("key", ["name", "model", "cluster", "workload", "cases"])
def test_a_missing_key(document, key):
    del document[key]
    with pytest.raises(InputError) as caught:
        parse_scenario(document, file="s.yaml")
    assert str(caught.value) == f"s.yaml: {key}: required key is missing"


@pytest.mark.parametrize("key", ["cluster.gpu", "workload.lengths", "workload.max_tokens", "cases.1.sync"])
def test_a_missing_key_further_down(document, key):
    *above, last = key.split(".")
    section = document
    for part in above:
        section = section[int(part)] if isinstance(section, list) else section[part]
    del section[last]
    with pytest.raises(InputError) as caught:
        parse_scenario(document, file="s.yaml")
    assert str(caught.value) == f"s.yaml: {key}: required key is missing"


SYNCS, OVERLAPS = "allowed: 'fsdp' or 'odc'", "allowed: 'prefetch', 'gather-only' or 'none'"
FILE_NAME = "allowed: 1 to 100 letters, digits, dots, dashes and underscores, a letter or digit first"
SECONDS = 'allowed: "5 us", "0.15 s" or a number of seconds'
BANDWIDTH = 'allowed: "400 Gb/s", "300 GB/s" or a number of bytes a second'
CASE_KEYS = "must be a mapping with keys of: sync, policy, overlap, pad, name"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("name", 3, "3: must be a text"),
        ("name", None, "None: must be a text"),
        ("name", "", f"'': {FILE_NAME}"),
        ("name", "../up", f"'../up': {FILE_NAME}"),
        ("name", ".hidden", f"'.hidden': {FILE_NAME}"),
        ("name", "[red]x", f"'[red]x': {FILE_NAME}"),
        ("name", "a\n", rf"'a\n': {FILE_NAME}"),
        ("name", "\x1b[31mred", rf"'\x1b[31mred': {FILE_NAME}"),
        ("name", "a" * 101, f"'{'a' * 101}': {FILE_NAME}"),
        ("model", 3, "3: allowed: a name or a mapping"),
        ("model", ["a"], "['a']: allowed: a name or a mapping"),
        ("model", None, "None: allowed: a name or a mapping"),
        ("cluster", 3, "3: must be a mapping with keys of: gpu, gpus_per_node, nodes, "),
        ("cluster", "a100", "'a100': must be a mapping with keys of: gpu, "),
        ("cluster.gpu", 3, "3: allowed: a name or a mapping"),
        ("cluster.gpus_per_node", 0, "0: must be at least 1"),
        ("cluster.gpus_per_node", 1025, "1025: must be at most 1024"),
        ("cluster.gpus_per_node", 8.0, "8.0: must be a whole number"),
        ("cluster.gpus_per_node", "8", "'8': must be a whole number"),
        ("cluster.gpus_per_node", True, "True: must be a whole number"),
        ("cluster.nodes", 0, "0: must be at least 1"),
        ("cluster.nodes", 10**9, "1000000000: must be at most 131072"),
        ("cluster.nodes", HUGE, "a number of 1329 bits: must be at most 131072"),
        ("cluster.contention", "maybe", "'maybe': must be true or false"),
        ("cluster.contention", 2, "2: must be true or false"),
        ("cluster.contention", None, "None: must be true or false"),
        ("cluster.intra_node.bandwidth", "80 GX", f"'80 GX': unknown unit 'GX' for bytes/s; {BANDWIDTH}"),
        ("cluster.intra_node.bandwidth", -1, f"-1: must not be negative; {BANDWIDTH}"),
        ("cluster.intra_node.bandwidth", 0, "0: must be more than 0"),
        ("cluster.intra_node.bandwidth", float("nan"), f"nan: must be finite; {BANDWIDTH}"),
        ("cluster.intra_node.bandwidth", HUGE, f"a number of 1329 bits: must be finite; {BANDWIDTH}"),
        ("cluster.intra_node.bandwidth", [1], f"[1]: not a quantity in bytes/s; {BANDWIDTH}"),
        ("cluster.intra_node.latency", "-1 us", f"'-1 us': must not be negative; {SECONDS}"),
        ("cluster.intra_node.latency", float("inf"), f"inf: must be finite; {SECONDS}"),
        ("cluster.intra_node.efficiency", 0, "0: must be more than 0"),
        ("cluster.intra_node.efficiency", 1.01, "1.01: must be at most 1"),
        ("cluster.intra_node.efficiency", "80%", "'80%': must be a number"),
        ("cluster.intra_node.efficiency", True, "True: must be a number"),
        ("cluster.inter_node.ports", 0, "0: must be at least 1"),
        ("cluster.inter_node.ports", 1.5, "1.5: must be a whole number"),
        ("cluster.one_sided.inter_node_efficiency", float("nan"), "nan: must be finite"),
        ("cluster.rank_speeds", [0.5], "[0.5]: must be a mapping"),
        ("cluster.rank_speeds.a", 1, "'a': must be a whole number"),
        ("cluster.rank_speeds.-1", 1, "'-1': must be at least 0"),
        ("cluster.rank_speeds.0", 0, "0: must be more than 0"),
        ("cluster.rank_speeds.0", float("inf"), "inf: must be finite"),
        ("cluster.rank_speeds.0", False, "False: must be a number"),
        ("cluster.link_speeds.0", 2, "2: must be at most 1"),
        ("cluster.slowdowns", 0.1, "0.1: must be a mapping with keys of: probability, factor"),
        ("cluster.compute_noise", -0.1, "-0.1: must be at least 0"),
        ("cluster.compute_noise", 11, "11: must be at most 10"),
        ("cluster.compute_noise", float("nan"), "nan: must be finite"),
        ("cluster.compute_noise", True, "True: must be a number"),
        ("cluster.compute_noise", "10%", "'10%': must be a number"),
        ("workload.lengths", 5, "5: must be a mapping with keys of: trace, lognormal, "),
        ("workload.samples_per_rank", 0, "0: must be at least 1"),
        ("workload.samples_per_rank", 10**12, "1000000000000: must be at most 50000000"),
        ("workload.max_tokens", 0, "0: must be at least 1"),
        ("workload.max_tokens", None, "None: must be a whole number"),
        ("workload.max_tokens", "8K", "'8K': must be a whole number"),
        ("workload.max_tokens", HUGE, "a number of 1329 bits: must be at most 1073741824"),
        ("workload.cut_tokens", -5, "-5: must be at least 1"),
        ("workload.oversize", "drp", "'drp': allowed: 'error', 'truncate', 'drop' or 'own-microbatch'"),
        ("workload.minibatches", 0, "0: must be at least 1"),
        ("workload.minibatches", -1, "-1: must be at least 1"),
        ("workload.minibatches", 10**12, "1000000000000: must be at most 1000000"),
        ("workload.minibatches", 1.5, "1.5: must be a whole number"),
        ("workload.seed", -1, "-1: must be at least 0"),
        ("workload.seed", 2**63, "9223372036854775808: must be less than 9223372036854775808"),
        ("compute", "fitted", "'fitted': allowed: analytic, {analytic: ...}, {fitted: ...} or {calibrated: FILE}"),
        ("compute", None, "None: must be a mapping with keys of: analytic, fitted"),
        ("compute.fitted", 3, "3: must be a mapping with keys of: quadratic, "),
        ("compute.fitted.quadratic", -1, "-1: must be at least 0"),
        ("compute.fitted.quadratic", "fast", "'fast': must be a number"),
        ("compute.fitted.per_tokens", 0, "0: must be more than 0"),
        ("compute.fitted.scale", float("nan"), "nan: must be finite"),
        ("training.recompute", True, "True: allowed: 'full' or 'none'"),
        ("training.param_dtype", "fp8", "'fp8': allowed: 'bf16', 'fp16' or 'fp32'"),
        ("training.optimizer", "lion", "'lion': allowed: 'adamw' or 'sgd'"),
        ("on_demand.minibatch_overhead", "1 day", f"'1 day': unknown unit 'day' for seconds; {SECONDS}"),
        ("planning", "tokens", "'tokens': must be a mapping with keys of: cost, known_speeds, keep_groups"),
        ("planning.cost", "flops", "'flops': allowed: 'model' or 'tokens'"),
        ("planning.known_speeds", {0: 0.5}, "{0: 0.5}: must be true or false"),
        ("planning.keep_groups", "always", "'always': must be true or false"),
        ("overlap", "prefetsh", f"'prefetsh': {OVERLAPS}"),
        ("cases", [], "[]: must have at least 1 entry"),
        ("cases", 3, "3: must be a list"),
        ("cases", "lb-mini", "'lb-mini': must be a list"),
        ("cases", {"sync": "odc"}, "{'sync': 'odc'}: must be a list"),
        ("cases.0", "lb-mini", f"'lb-mini': {CASE_KEYS}"),
        ("cases.0", None, f"None: {CASE_KEYS}"),
        ("cases.0.sync", "osc", f"'osc': {SYNCS}"),
        ("cases.0.sync", ["odc"], f"['odc']: {SYNCS}"),
        ("cases.1.overlap", "non", f"'non': {OVERLAPS}"),
        ("cases.1.pad", "please", "'please': must be true or false"),
        ("cases.1.policy", 3, "3: must be a text"),
        ("cases.1.name", "", "'': must not be empty"),
        ("cases.1.name", "a\x1b[31mb", r"'a\x1b[31mb': must hold printable characters only, on one line"),
        ("cases.1.name", "two\nlines", r"'two\nlines': must hold printable characters only, on one line"),
        ("runtime.device", "tpu", "'tpu': allowed: 'cpu' or 'cuda'"),
    ],
)
def test_a_value_that_is_not_allowed(refused, key, value, problem):
    assert refused({key: value}).startswith(f"s.yaml: {key}: {problem}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cluster.slowdowns": {"probability": 1.5, "factor": 2}},
            "cluster.slowdowns.probability: 1.5: must be at most 1",
        ),
        (
            {"cluster.slowdowns": {"probability": 0.5, "factor": 0.5}},
            "cluster.slowdowns.factor: 0.5: must be at least 1",
        ),
        (
            {"cluster.slowdowns": {"probability": float("nan"), "factor": 2}},
            "cluster.slowdowns.probability: nan: must be finite",
        ),
        (
            {"workload.lengths": {"lognormal": {"mean": float("nan"), "sigma": 1}}},
            "workload.lengths.lognormal.mean: nan: must be finite",
        ),
        ({"cluster.slowdowns": {"probability": 0.5}}, "cluster.slowdowns.factor: required key is missing"),
        ({"workload.lengths": {"constant": 0}}, "workload.lengths.constant: 0: must be at least 1"),
        ({"workload.lengths": {"values": []}}, "workload.lengths.values: []: needs at least one entry"),
        ({"workload.lengths": {"values": [1, -3]}}, "workload.lengths.values.1: -3: must be at least 1"),
        ({"workload.lengths": {"values": [1, "abc"]}}, "workload.lengths.values.1: 'abc': must be a whole number"),
        (
            {"workload.lengths": {}},
            "workload.lengths: exactly one of trace, lognormal, uniform, constant, values, histogram, mixture is "
            "needed",
        ),
        ({"cases.1.name": "x" * 61}, f"cases.1.name: '{'x' * 61}': must have at most 60 characters"),
    ],
)
def test_what_lies_deeper(refused, changes, message):
    assert refused(changes).startswith(f"s.yaml: {message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster.rank_speeds": {4: 0.5}}, "cluster: rank_speeds names rank 4; ranks here are 0 to 3"),
        ({"cluster.link_speeds": {9: 0.5}}, "cluster: link_speeds names rank 9; ranks here are 0 to 3"),
        (
            {"cluster.nodes": 131072, "cluster.gpus_per_node": 2},
            "cluster: nodes x gpus_per_node = 262144 ranks; at most 131072 are simulated",
        ),
        (
            {"workload.samples_per_minibatch": 8},
            "workload: give one of samples_per_rank and samples_per_minibatch",
        ),
        ({"workload.samples_per_rank": None}, "workload: give one of samples_per_rank and samples_per_minibatch"),
        (
            {"workload.samples_per_rank": 10_000, "workload.minibatches": 1_000_000},
            "workload: 1000000 minibatches x 40000 samples = 40000000000 samples; at most 50000000 are simulated in "
            "one run (the mean needs a few hundred minibatches, not more)",
        ),
        ({"compute": {}}, "compute: give one of analytic, fitted and calibrated"),
        ({"compute.analytic": {}}, "compute: give one of analytic, fitted and calibrated"),
        (
            {"compute.fitted": {"quadratic": 0, "linear": 0, "per_tokens": 1}},
            "compute.fitted: quadratic, linear and constant are all 0; at least one must be positive",
        ),
    ],
)
def test_keys_that_do_not_go_together(refused, changes, message):
    assert refused(changes) == f"s.yaml: {message}"


def test_too_many_cases(refused):
    message = refused({"cases": [{"sync": "odc", "policy": "lb-mini"}] * 1001})
    assert message.startswith("s.yaml: cases: [")
    assert message.endswith("...: must have at most 1000 entries")


@pytest.mark.parametrize("junk", [None, 3, "text", [1], []])
def test_a_document_that_is_no_mapping(junk):
    with pytest.raises(InputError, match="must be a mapping with keys of: name, model, cluster, workload, "):
        parse_scenario(junk)


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"name", (1, 2)])
def test_keys_are_texts(document, key):
    with pytest.raises(InputError, match="keys must be texts here"):
        parse_scenario(document | {key: 1})


def test_any_mapping_will_do(document):
    assert parse_scenario(MappingProxyType(document)) == parse_scenario(document)


def test_numbers_may_be_texts_as_yaml_has_them(changed):
    assert parse_scenario(changed({"compute.fitted.quadratic": "1e-3"})).compute.fitted.quadratic == 0.001


def test_the_word_analytic(changed):
    assert parse_scenario(changed({"compute": "analytic"})) == parse_scenario(changed({"compute": {"analytic": {}}}))


def test_samples_of_a_minibatch(changed):
    per_rank = parse_scenario(changed()).workload
    whole = parse_scenario(changed({"workload.samples_per_rank": None, "workload.samples_per_minibatch": 9})).workload
    assert (per_rank.samples_of(4), per_rank.samples_of(16), whole.samples_of(4), whole.samples_of(16)) == (8, 32, 9, 9)


def test_a_scenario_can_be_written_and_read_again(changed):
    changes = {
        "cluster.rank_speeds": {1: 0.5},
        "cluster.compute_noise": 0.1,
        "on_demand.minibatch_overhead": "0.15 s",
        "planning": {"cost": "tokens", "known_speeds": True},
    }
    scenario = parse_scenario(changed(changes))
    assert parse_scenario(json.loads(scenario.model_dump_json(exclude_none=True))) == scenario


def test_a_scenario_cannot_be_changed(document):
    scenario = parse_scenario(document)
    with pytest.raises(ValueError, match="frozen"):
        scenario.name = "other"


def test_json_schema_is_closed_and_described():
    schema = scenario_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    sections = [schema, *schema["$defs"].values()]
    assert {"Scenario", "Cluster", "Workload", "Case"} <= {section["title"] for section in sections}
    for section in sections:
        assert section["additionalProperties"] is False, section["title"]
    assert schema["required"] == ["name", "model", "cluster", "workload", "cases"]
    assert schema["properties"]["name"]["pattern"] == "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def test_json_schema_has_units_bounds_and_choices():
    schemas = scenario_schema()["$defs"]
    bandwidth = schemas["Link"]["properties"]["bandwidth"]["anyOf"][0]
    assert bandwidth["examples"] == ["300 GB/s", "400 Gb/s"]
    assert {option.get("type") for option in bandwidth["anyOf"]} == {"number", "string"}
    efficiency = schemas["Link"]["properties"]["efficiency"]["anyOf"][0]
    assert (efficiency["exclusiveMinimum"], efficiency["maximum"]) == (0, 1)
    assert schemas["Case"]["properties"]["sync"]["enum"] == ["fsdp", "odc"]
    assert schemas["Workload"]["properties"]["minibatches"]["maximum"] == 1_000_000


def test_json_schema_and_schema_have_the_same_keys():
    def sections(model):
        yield model
        for field in model.model_fields.values():
            for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    yield from sections(part)

    schema = scenario_schema()
    by_title = {section["title"]: section for section in [schema, *schema["$defs"].values()]}
    for model in sections(Scenario):
        assert set(by_title[model.__name__]["properties"]) == set(model.model_fields), model


def test_plans_are_told_the_models_cost_and_nothing_else_by_default(document):
    scenario = parse_scenario(document)
    assert scenario.planning.model_dump() == {"cost": "model", "known_speeds": False, "keep_groups": False}
    assert scenario.cluster.compute_noise == 0.0
