"""Scenarios on calibrated costs: which are taken, which are refused and in what words, and what comes of them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import yaml
from known_costs import known_costs, term

from odcsim.cli import main
from odcsim.costs.calibrated import MemoryCosts, write_costs
from odcsim.errors import InputError
from odcsim.policies import find_policy, policy_names
from odcsim.scenario import load_scenario, parse_scenario
from odcsim.scenario.schema import Scenario
from odcsim.simulation import simulate

LENGTHS = {"lognormal": {"mean": 3000, "sigma": 1.0, "max": 8192}}
CALIBRATED = {"calibrated": "costs.yaml"}
ALL_CASES = [
    {"sync": sync, "policy": policy, "pad": sync == "fsdp" and not find_policy(policy).equal_counts}
    for sync in ("fsdp", "odc")
    for policy in policy_names()
    if sync == "odc" or not find_policy(policy).is_pulled
]
SIZES = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 128, "vocab": 1000}
FLAGS = dict.fromkeys(["tied_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm"], False)


@pytest.fixture
def costs_file(tmp_path):
    """Known costs in the folder of scenarios."""
    write_costs(tmp_path / "costs.yaml", known_costs())
    return tmp_path / "costs.yaml"


@pytest.fixture
def refused(tmp_path, changed):
    """What is said of a scenario in s.yaml: one line that names it and the key."""

    def refuse(changes, text):
        file = tmp_path / "s.yaml"
        document = changed({"compute": CALIBRATED, **changes})
        with pytest.raises(InputError) as caught:
            simulate(parse_scenario(document), base_folder=tmp_path, file=file)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(text.format(file=file)), str(caught.value)

    return refuse


# What comes of them


@pytest.mark.parametrize("overlap", ["none", "gather-only", "prefetch"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_engines_agree_on_calibrated_costs(changed, run, costs_file, overlap, nodes):
    document = changed(
        {
            "compute": CALIBRATED,
            "cases": ALL_CASES,
            "workload.lengths": LENGTHS,
            "workload.minibatches": 2,
            "overlap": overlap,
            "cluster.nodes": nodes,
            "cluster.rank_speeds": {1: 0.5},
        }
    )
    one, other = (run(document, engine=engine) for engine in ("recurrence", "events"))
    assert len(one.cases) == len(ALL_CASES)
    for left, right in zip(one.cases, other.cases, strict=True):
        np.testing.assert_allclose(left.minibatch_s_N, right.minibatch_s_N, rtol=1e-9)
        np.testing.assert_allclose(
            list(left.fractions.to_document().values()), list(right.fractions.to_document().values()), atol=1e-9
        )
        assert sum(left.fractions.to_document().values()) == pytest.approx(1)
        assert (left.minibatch_s_N >= left.lower_bound_s_N * (1 - 1e-12)).all()


def test_one_microbatch_by_hand(changed, run, costs_file):
    """One rank, one sample: compute, and the optimizer's step."""
    document = changed(
        {
            "compute": CALIBRATED,
            "cluster.gpus_per_node": 1,
            "workload.lengths": {"values": [1000]},
            "workload.samples_per_rank": 1,
            "cases": [{"sync": "fsdp", "policy": "lb-micro"}],
        }
    )
    cost = known_costs().compute
    expected_s = sum(
        blocks * (visit.squared_tokens.value * 1e6 + visit.tokens.value * 1e3 + visit.constant.value)
        for visit, blocks in (
            (cost.embedding_forward, 1),
            (cost.block_forward, 2),
            (cost.head_forward, 1),
            (cost.head_backward, 1),
            (cost.block_backward, 2),
            (cost.embedding_backward, 1),
        )
    )
    # Of four ranks' optimizer step, what moves the shard takes four times as long on one: 32 bytes a parameter.
    moving_s = 202048 / 4 * 32 / (2039e9 * 0.8)
    expected_s += known_costs().steps.optimizer.value + 3 * moving_s
    (case,) = run(document).cases
    np.testing.assert_allclose(case.minibatch_s_N, expected_s, rtol=1e-9)


def test_nothing_measured_leaves_the_model_of_memory_as_it_is(changed, run, costs_file):
    calibrated, fitted = run(changed({"compute": CALIBRATED})), run(changed())
    for one, other in zip(calibrated.cases, fitted.cases, strict=True):
        assert one.memory.peak_bytes == other.memory.peak_bytes


def test_the_result_says_where_costs_come_from(changed, run, costs_file):
    result = run(changed({"compute": CALIBRATED}))
    assert result.scenario["compute"] == CALIBRATED
    assert result.warnings == ()


@pytest.mark.parametrize("engine", ["recurrence", "events"])
def test_the_command_runs_all_cases(changed, tmp_path, monkeypatch, capsys, engine):
    """The path starts from the scenario's folder, not from where the command runs."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_costs(tmp_path / "costs.yaml", known_costs())
    document = changed({"compute": {"calibrated": "../costs.yaml"}, "cases": ALL_CASES})
    (tmp_path / "scenarios" / "s.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "argv", ["odcsim", "run", "../scenarios/s.yaml", "--json", "--engine", engine])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert not caught.value.code, err
    result = json.loads(out)
    assert (len(result["cases"]), result["engine"]) == (len(ALL_CASES), engine)
    assert result["scenario"]["compute"] == {"calibrated": "../costs.yaml"}


def test_the_command_ends_with_2_where_the_file_is_missing(changed, tmp_path, monkeypatch, capsys):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(changed({"compute": CALIBRATED})))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["odcsim", "run", "s.yaml"])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    assert (caught.value.code, out) == (2, "")
    (line,) = err.splitlines()
    assert "s.yaml: compute.calibrated: " in line
    assert "costs.yaml: no such file" in line


def test_contention_is_what_was_measured(changed, run, costs_file):
    """It has no effect, and that is told; either engine runs it."""
    document = changed(
        {
            "compute": CALIBRATED,
            "cluster.nodes": 2,
            "cluster.contention": True,
            "cluster.inter_node.ports": 1,
            "cases": [{"sync": "odc", "policy": "lb-mini"}],
        }
    )
    result = run(document)
    assert result.engine == "recurrence"
    assert any(warning.startswith("cluster.contention has no effect") for warning in result.warnings)


# Which are refused


def test_costs_of_another_model(refused, tmp_path):
    write_costs(tmp_path / "costs.yaml", known_costs(model={"name": "large", **SIZES, **FLAGS, "ffn": 129}))
    refused({}, "{file}: compute.calibrated: 'costs.yaml': was fitted to another model (large); allowed: ")


def test_costs_of_a_model_of_the_same_shape(changed, run, tmp_path):
    """Names are for people."""
    write_costs(tmp_path / "costs.yaml", known_costs(model={"name": "other", **SIZES, **FLAGS}))
    assert len(run(changed({"compute": CALIBRATED})).cases) == 2


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("recompute", "none"),
        ("param_dtype", "fp16"),
        ("reduce_dtype", "bf16"),
        ("optimizer", "sgd"),
        ("fused_loss", False),
    ],
)
def test_costs_of_another_training(refused, changed, run, tmp_path, setting, value):
    training = parse_scenario(changed()).training.model_dump(mode="json")
    write_costs(tmp_path / "costs.yaml", known_costs(training=training))
    refused(
        {f"training.{setting}": value},
        f"{{file}}: compute.calibrated: 'costs.yaml': was fitted to a run with training.{setting}: "
        f"{training[setting]}, and this scenario has {value}",
    )
    assert len(run(changed({"compute": CALIBRATED})).cases) == 2


def test_a_file_that_is_not_there(refused):
    refused({}, "{file}: compute.calibrated: ")
    refused({"compute": {"calibrated": "no/where.yaml"}}, "{file}: compute.calibrated: ")


def test_a_folder(refused, tmp_path):
    (tmp_path / "costs.yaml").mkdir()
    refused({}, "{file}: compute.calibrated: ")


def test_a_file_with_a_fault_is_named_itself(refused, costs_file):
    """The fault is in the file of costs, so that is where the line points to."""
    costs_file.write_text(costs_file.read_text().replace("ranks: 4", "ranks: 0"))
    refused({}, f"{costs_file}: origin.ranks: 0: must be at least 1")


def test_something_else_under_its_name(refused, costs_file, changed):
    costs_file.write_text(yaml.safe_dump(changed()))
    refused({}, f"{costs_file}: schema: None: this version reads 'odcsim.costs/2' alone")


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        ({"calibrated": "c.yaml", "analytic": {}}, "compute: give one of analytic, fitted and calibrated"),
        (
            {"calibrated": "c.yaml", "fitted": {"quadratic": 1, "linear": 1, "per_tokens": 1}},
            "compute: give one of analytic, fitted and calibrated",
        ),
        ({}, "compute: give one of analytic, fitted and calibrated"),
        ({"calibrated": ""}, "compute.calibrated: '': must not be empty"),
        ({"calibrated": 3}, "compute.calibrated: 3: must be a text"),
        ({"calibrated": ["c.yaml"]}, "compute.calibrated: ['c.yaml']: must be a text"),
        ({"calibrated": "a\0b"}, "compute.calibrated: 'a\\x00b': must not hold a null character"),
        ({"calibrate": "c.yaml"}, "compute.calibrate: "),
        (
            "calibrated",
            "compute: 'calibrated': allowed: analytic, {analytic: ...}, {fitted: ...} or {calibrated: FILE}",
        ),
    ],
)
def test_a_scenario_has_one_model_of_compute(changed, compute, text):
    with pytest.raises(InputError) as caught:
        parse_scenario(changed({"compute": compute}))
    assert str(caught.value).startswith(text), str(caught.value)


@pytest.mark.parametrize("path", ["a" * 5000, "s.yaml/costs.yaml"])
def test_paths_that_lead_nowhere(refused, tmp_path, path):
    (tmp_path / "s.yaml").write_text("")
    refused({"compute": {"calibrated": path}}, "{file}: compute.calibrated: ")


def test_an_override_may_name_the_file(tmp_path, changed, costs_file):
    """As `--set compute.calibrated=costs.yaml` does, of a scenario that has no compute of its own."""
    document = changed()
    del document["compute"]
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(document))
    scenario = load_scenario(tmp_path / "s.yaml", overrides=["compute.calibrated=costs.yaml"])
    assert scenario.compute.calibrated == "costs.yaml"


def test_the_json_schema_knows_it():
    compute = Scenario.model_json_schema()["$defs"]["Compute"]
    calibrated = compute["properties"]["calibrated"]
    assert {"type": "string", "minLength": 1} in calibrated["anyOf"]
    assert "odcsim calibrate" in calibrated["description"]


def counted():
    base = {"one_sided": term(300e6), "collective": term(280e6), "gloo": term(260e6)}
    return MemoryCosts(
        process=term(250e6), base=base, per_token=term(9000.0), staging=term(7e6), spread=0.0, observations=8
    )


def test_memory_that_was_counted_takes_the_place_of_formulas(changed, run, costs_file):
    write_costs(costs_file, known_costs(memory=counted()))
    result = run(changed({"compute": CALIBRATED}))
    # Under FSDP the largest microbatch may be any of its minibatch: gradients of an earlier one are counted.
    gradients = result.scenario["model"]["total_parameters"] / 4 * 4
    for case in result.cases:
        parts, tokens = case.memory.parts_bytes, case.memory.largest_microbatch_tokens
        assert set(parts) == {"process", "training", "shared_memory"}
        assert parts["process"] == 250e6
        base = 300e6 if case.sync == "odc" else 280e6 + gradients
        assert parts["training"] == pytest.approx(base + 9000 * tokens)
        assert (parts["shared_memory"] == 7e6) == (case.sync == "fsdp")
    fsdp = run(changed({"compute": CALIBRATED, "runtime.transport": "gloo"})).cases[0]
    assert fsdp.memory.parts_bytes["shared_memory"] == 0
    tokens = fsdp.memory.largest_microbatch_tokens
    assert fsdp.memory.parts_bytes["training"] == pytest.approx(260e6 + gradients + 9000 * tokens)


@pytest.mark.parametrize(
    ("known", "on_demand", "transport", "taken"),
    [
        (("one_sided", "collective", "gloo"), True, "gloo", "one_sided"),
        (("one_sided", "collective", "gloo"), False, "gloo", "gloo"),
        (("one_sided", "collective"), False, "nccl", "collective"),
        (("one_sided",), False, "collective", "one_sided"),
        (("gloo", "collective"), True, "collective", "gloo"),
    ],
)
def test_memory_that_nobody_counted_is_taken_from_the_nearest_run(known, on_demand, transport, taken):
    base = {way: term(float(1 + place)) for place, way in enumerate(known)}
    costs = MemoryCosts(process=term(1.0), base=base, per_token=term(1.0), spread=0.0, observations=1)
    assert costs.base_bytes(on_demand=on_demand, transport=transport) == base[taken].value


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
def test_counted_memory_on_more_ranks_holds_a_smaller_share_of_the_state(changed, run, costs_file, sync):
    write_costs(costs_file, known_costs(memory=counted()))

    def memory_on(ranks):
        result = run(changed({"compute": CALIBRATED, "cluster.gpus_per_node": ranks}))
        return next(case.memory for case in result.cases if case.sync == sync)

    few, many = memory_on(4), memory_on(8)
    parameters = run(changed()).scenario["model"]["total_parameters"]

    def base(memory):
        return memory.parts_bytes["training"] - 9000 * memory.largest_microbatch_tokens

    # Parameters and AdamW's two states, each in fp32; gradients under FSDP, as ODC has them in the accumulator.
    sharded = 16 if sync == "fsdp" else 12
    assert base(few) - base(many) == pytest.approx(sharded * parameters * (1 / 4 - 1 / 8))
    if sync == "odc":
        assert few.parts_bytes["shared_memory"] == pytest.approx(2 * many.parts_bytes["shared_memory"])


def test_a_huge_scale_of_lengths_is_one_line_that_names_the_file(changed, tmp_path):
    scenario = parse_scenario(changed({"workload.length_scale": 1e300}))
    with pytest.raises(InputError, match=r"s\.yaml: workload\.length_scale: 1e\+300: makes sequences of"):
        simulate(scenario, base_folder=tmp_path, file=tmp_path / "s.yaml")
