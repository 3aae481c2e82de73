"""Resolving: names looked up, costs worked out, labels, and every setting that has no effect told."""

from __future__ import annotations

import numpy as np
import pytest

from odcsim.errors import InputError, UnknownNameError
from odcsim.resolve import collective_transport, over_collectives, resolve
from odcsim.scenario import parse_scenario

# Of the small document's decoder: a block, the root.
BLOCK = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
ROOT = 2 * 1000 * 64 + 64


@pytest.fixture
def resolved(changed, tmp_path):
    """Resolves the small document with dotted keys set."""
    return lambda changes=(): resolve(parse_scenario(changed(changes)), base_folder=tmp_path, file=tmp_path / "s.yaml")


@pytest.fixture
def refused(resolved, tmp_path):
    """What resolving is refused with; the folder is left out."""

    def message(changes):
        with pytest.raises(InputError) as caught:
            resolved(changes)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return message


def with_policies(*cases):
    return {"cases": [dict(zip(("sync", "policy"), case.split(), strict=True)) for case in cases]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "qwen2.5-1.4b"},
            "s.yaml: model: 'qwen2.5-1.4b': unknown model; did you mean 'qwen2.5-14b'? (known: ",
        ),
        (
            {"model": "config.json"},
            "s.yaml: model: 'config.json': no such file; give the path of a Hugging Face config",
        ),
        ({"model": {"layrs": 3}}, "s.yaml: model: 'layrs': unknown model key; did you mean 'layers'? (known: "),
        ({"model.layers": 0}, "s.yaml: model.layers: 0: must be a whole number from 1 to 10000"),
        (
            {"cluster.gpu": "a100-80g-sxn"},
            "s.yaml: cluster.gpu: 'a100-80g-sxn': unknown GPU; did you mean 'a100-80g-sxm'?",
        ),
        (
            {"cluster.gpu": {"bas": "a100"}},
            "s.yaml: cluster.gpu: 'bas': unknown GPU key; did you mean 'base'? (known: ",
        ),
        (
            {"cluster.gpu": {"base": "a100", "memory_bytes": "80 GX"}},
            "s.yaml: cluster.gpu.memory_bytes: '80 GX': unknown unit 'GX' for bytes; allowed: ",
        ),
        ({"cases.1.policy": "lb-minni"}, "s.yaml: cases.1.policy: 'lb-minni': unknown policy; did you mean 'lb-mini'?"),
        (
            {"workload.lengths": {"trace": "no.csv"}},
            "no.csv: workload.lengths.trace: no such file; give the path of a ",
        ),
        (
            {"workload.lengths": {"histogram": "no.json"}},
            "no.json: workload.lengths.histogram: no such file; give the ",
        ),
    ],
)
def test_what_is_not_there(refused, changes, message):
    assert refused(changes).startswith(message)


def test_names_not_known_have_an_error_of_their_own(resolved):
    with pytest.raises(UnknownNameError):
        resolved({"cases.0.policy": "?"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lengths.csv: workload.lengths.trace: holds no length; each line "),
        ("# nothing\n\n", "lengths.csv: workload.lengths.trace: holds no length; each line "),
        ("12\n0\n", "lengths.csv: line 2: '0': must be a whole number of tokens from 1 to "),
        ("12\n\n-3\n", "lengths.csv: line 3: '-3': must be a whole number of tokens from 1 to "),
        ("abc\n", "lengths.csv: line 1: 'abc': must be a whole number of tokens from 1 to "),
        ("5\n6,7\n", "lengths.csv: line 2: '6,7': must be a whole number of tokens from 1 to "),
        (f"5\n{10**12}\n", "lengths.csv: line 2: '1000000000000': must be a whole number of tokens from 1 to "),
    ],
)
def test_a_length_file_at_fault(refused, tmp_path, text, message):
    (tmp_path / "lengths.csv").write_text(text)
    assert refused({"workload.lengths": {"trace": "lengths.csv"}}).startswith(message)


def test_unequal_counts_are_refused_under_fsdp(refused):
    assert refused({"cases.0.policy": "lb-mini"}) == (
        "s.yaml: cases.0.policy: 'lb-mini': lb-mini gives ranks unequal numbers of microbatches, which deadlocks under "
        "fsdp; allowed: sync: odc, or pad: true (padding microbatches), or a policy with equal counts"
    )


def test_unequal_counts_with_padding_are_not(resolved):
    found = resolved({"cases.0": {"sync": "fsdp", "policy": "lb-mini", "pad": True}})
    assert [case.label for case in found.cases] == ["FSDP lb-mini padded", "ODC lb-mini"]
    assert found.warnings == ()


@pytest.mark.parametrize("pad", [False, True])
def test_a_pulled_policy_is_refused_under_fsdp_padded_or_not(refused, pad):
    assert refused({"cases.0": {"sync": "fsdp", "policy": "dynamic", "pad": pad}}) == (
        "s.yaml: cases.0.policy: 'dynamic': dynamic decides as it runs which rank runs a microbatch, and under fsdp "
        "all ranks run each of theirs together; allowed: sync: odc, or a policy with equal counts"
    )


def grouped(tmp_path):
    """Lengths that come in groups of two."""
    (tmp_path / "grouped.csv").write_text("1\n2\n3\n4\n")
    (tmp_path / "grouped.json").write_text('{"group_size": 2}')
    return {"workload.lengths": {"trace": "grouped.csv"}, "planning.keep_groups": True}


def test_a_policy_that_cannot_keep_groups_is_refused_where_they_are_to_be_kept(refused, tmp_path):
    changes = {**grouped(tmp_path), **with_policies("fsdp lockstep", "odc independent", "odc lb-mini")}
    assert refused(changes) == (
        "s.yaml: cases.2.policy: 'lb-mini': lb-mini cannot keep the samples of a group on one rank, as "
        "planning.keep_groups asks; allowed: lockstep, independent"
    )


def test_policies_that_keep_groups_are_not_refused(resolved, tmp_path):
    found = resolved({**grouped(tmp_path), **with_policies("fsdp lockstep", "odc independent")})
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compute.fitted.quadratic": 1e308},
            "compute: compute of 8192 tokens would take 6.5536e+306 s; at most 1e+15 s",
        ),
        (
            {"compute.fitted.per_tokens": 1e-200},
            "compute.fitted: TokenCost(quadratic=inf, linear=3e+200, constant=0.5): gives times that no number holds",
        ),
        ({"compute.fitted.per_tokens": 5e-324}, "compute.fitted: TokenCost(quadratic=inf, linear=inf, constant=0.5): "),
        ({"compute": {"analytic": {"visit_overhead": 1e300}}}, "compute: compute of 8192 tokens would take 6e+300 s"),
        ({"compute": {"analytic": {"linear_efficiency": 5e-324}}}, "compute: compute of 8192 tokens would take inf s"),
        ({"cluster.rank_speeds": {0: 1e-320}}, "compute: compute of 8192 tokens would take inf s"),
        ({"cluster.slowdowns": {"probability": 0, "factor": 1e300}}, "compute: compute of 8192 tokens would take "),
        ({"cluster.intra_node.bandwidth": 5e-324}, "cluster: the longest gather under fsdp would take inf s"),
        ({"cluster.intra_node.efficiency": 5e-324}, "cluster: the longest gather under fsdp would take inf s"),
        ({"cluster.link_speeds": {0: 5e-324}}, "cluster: the longest gather under fsdp would take inf s"),
        ({"cluster.intra_node.latency": 1e308}, "cluster: the longest gather under fsdp would take inf s"),
        ({"on_demand.minibatch_overhead": "1e300 h"}, "cluster: on_demand.minibatch_overhead would take 3.6e+303 s"),
        (
            {"cluster.gpu": {"base": "a100", "peak_flops_per_s": 1e-300}},
            "cluster.gpu: 1e-300: peak_flops_per_s of the GPU must be from 1 to 1e+30",
        ),
        (
            {"cluster.gpu": {"base": "a100", "memory_bandwidth": 1e300}},
            "cluster.gpu: 1e+300: memory_bandwidth_bytes_per_s of the GPU must be from 1 to 1e+30",
        ),
    ],
)
def test_figures_far_from_any_device_are_refused_not_overflowed(refused, changes, message):
    assert refused(changes).startswith(f"s.yaml: {message}")


@pytest.mark.parametrize(
    "changes",
    [
        {"compute.fitted.per_tokens": 1e200},
        {"compute.fitted.scale": 1e-310},
        {"cluster.rank_speeds": {0: 1e300}},
        {"cluster.gpu": {"base": "a100", "memory_bytes": 1e300}},
        {"cluster.inter_node.ports": 10**400, "cluster.nodes": 2, "cluster.contention": True},
        {"workload.max_tokens": 1 << 30},
    ],
)
def test_figures_on_the_harmless_side_give_finite_results(run, changed, changes):
    for case in run(changed(changes)).cases:
        assert np.isfinite(case.minibatch_s_N).all()
        assert np.isfinite([case.mfu, case.speedup, case.tokens_per_second, case.lower_bound_ratio]).all()


def test_labels_tell_cases_apart(resolved):
    cases = [
        {"sync": "fsdp", "policy": "lb-micro"},
        {"sync": "odc", "policy": "lb-mini"},
        {"sync": "odc", "policy": "lb-mini", "pad": True},
        {"sync": "odc", "policy": "lb-mini", "overlap": "none"},
        {"sync": "odc", "policy": "lb-mini", "overlap": "prefetch"},
        {"sync": "odc", "policy": "local-sort", "name": "mine"},
        {"sync": "odc", "policy": "local-sort", "name": "mine"},
    ]
    assert [case.label for case in resolved({"cases": cases}).cases] == [
        "FSDP lb-micro",
        "ODC lb-mini (#2)",
        "ODC lb-mini padded",
        "ODC lb-mini overlap none",
        "ODC lb-mini (#5)",
        "mine (#6)",
        "mine (#7)",
    ]


def test_a_case_has_its_own_overlap_or_the_scenarios(resolved):
    found = resolved({"overlap": "none", "cases.1.overlap": "gather-only"})
    assert [case.schedule.overlap for case in found.cases] == ["none", "gather-only"]


def test_speeds_of_ranks(resolved):
    assert resolved({"cluster.rank_speeds": {2: 0.5, 0: 1.25}}).speeds_D.tolist() == [1.25, 1, 0.5, 1]


@pytest.fixture
def plain_links():
    """Links of round figures: a rank has 100 bytes a second inside a node, and 10 of the 40 between nodes."""
    return {
        "cluster.intra_node": {"bandwidth": 100, "latency": 0.5, "efficiency": 1},
        "cluster.inter_node": {"bandwidth": 40, "latency": 7, "efficiency": 1},
    }


def transfers(case):
    """Seconds of a block's gather and reduce, and of the root's."""
    schedule = case.schedule
    return schedule.gather_s_V[1], schedule.reduce_s_V[5], schedule.gather_s_V[0], schedule.reduce_s_V[7]


def test_transfers_inside_a_node(resolved, plain_links):
    """bf16 gathers, fp32 reduces; 3/4 of a unit moves; a ring has three steps, a one-sided transfer one."""
    fsdp, odc = resolved(plain_links).cases
    assert transfers(fsdp) == pytest.approx([0.0075 * x + 1.5 for x in (2 * BLOCK, 4 * BLOCK, 2 * ROOT, 4 * ROOT)])
    assert transfers(odc) == pytest.approx([0.0075 * x + 0.5 for x in (2 * BLOCK, 4 * BLOCK, 2 * ROOT, 4 * ROOT)])
    # Visits without a transfer take no time for one.
    assert odc.schedule.gather_s_V[[3, 4, 7]].tolist() == odc.schedule.reduce_s_V[:5].tolist()[:3] == [0, 0, 0]


def test_transfers_between_nodes(resolved, plain_links):
    """Of M bytes, 4 of 32 ths cross the network in a ring, and 4 of 8 ths one-sided, at 10 bytes a second."""
    fsdp, odc = resolved({"cluster.nodes": 2, **plain_links}).cases
    assert transfers(fsdp)[0] == pytest.approx(2 * BLOCK * 4 / 32 / 10 + 3 * 0.5 + 7)
    assert transfers(odc)[0] == pytest.approx(2 * BLOCK * 4 / 8 / 10 + 7)


@pytest.mark.parametrize(
    ("changes", "gather_bytes", "reduce_bytes"),
    [
        ({"on_demand.gather_dtype": "fp32"}, 4, 4),
        ({"training.param_dtype": "fp32"}, 4, 4),
        ({"training.reduce_dtype": "bf16"}, 2, 2),
    ],
)
def test_types_of_transfers(resolved, plain_links, changes, gather_bytes, reduce_bytes):
    _, odc = resolved({**plain_links, **changes}).cases
    gather_s, reduce_s, _, _ = transfers(odc)
    assert (gather_s, reduce_s) == pytest.approx([0.0075 * BLOCK * x + 0.5 for x in (gather_bytes, reduce_bytes)])


def test_reading_masters_changes_odc_alone(resolved, plain_links):
    found = resolved({**plain_links, "on_demand.gather_dtype": "fp32"})
    assert transfers(found.cases[0])[0] == pytest.approx(0.0075 * 2 * BLOCK + 1.5)
    assert found.published_bytes == 0
    assert found.cases[1].schedule.publish_s == pytest.approx(2 * 0.5)  # the barrier alone, of two rounds


def test_one_sided_efficiencies(resolved, plain_links):
    slow = {"intra_node_efficiency": 0.5, "inter_node_efficiency": 0.25}
    fsdp, odc = resolved({**plain_links, "cluster.one_sided": slow}).cases
    assert transfers(fsdp)[0] == pytest.approx(0.0075 * 2 * BLOCK + 1.5)
    assert transfers(odc)[0] == pytest.approx(2 * 0.0075 * 2 * BLOCK + 0.5)


def test_a_slow_link_slows_everyone(resolved, plain_links):
    fsdp, odc = resolved({**plain_links, "cluster.link_speeds": {3: 0.5}}).cases
    assert transfers(fsdp)[0] == pytest.approx(2 * 0.0075 * 2 * BLOCK + 1.5)
    assert transfers(odc)[0] == pytest.approx(2 * 0.0075 * 2 * BLOCK + 0.5)


def test_a_lone_rank_transfers_nothing(resolved, plain_links):
    for case in resolved({**plain_links, "cluster.gpus_per_node": 1}).cases:
        assert not case.schedule.gather_s_V.any()
        assert not case.schedule.reduce_s_V.any()


def test_fixed_steps(resolved, plain_links):
    """The shard goes through 0.8 x 2039 GB/s: 6 bytes a parameter to publish, 16 to settle, 32 for adamw."""
    _, odc = resolved({**plain_links, "on_demand.minibatch_overhead": "0.15 s"}).cases
    a_byte_s = (2 * BLOCK + ROOT) / 4 / (0.8 * 2039e9)
    schedule = odc.schedule
    assert (schedule.publish_s, schedule.settle_s) == pytest.approx((6 * a_byte_s + 1, 16 * a_byte_s + 1), rel=1e-12)
    assert (schedule.fixed_s, schedule.optimizer_s) == pytest.approx((0.15, 32 * a_byte_s), rel=1e-12)


def test_figures_of_the_catalog_are_the_default(resolved):
    """An A100: 300 GB/s and 3.4 us inside a node, of which collectives reach 0.78."""
    fsdp, odc = resolved().cases
    moving_s = 2 * BLOCK * 0.75 / (300e9 * 0.78)
    assert transfers(fsdp)[0] == pytest.approx(moving_s + 3 * 3.4e-6, rel=1e-12)
    assert transfers(odc)[0] == pytest.approx(moving_s + 3.4e-6, rel=1e-12)


def test_contention_gives_a_lone_transfer_a_whole_port(resolved, plain_links):
    ports = {"cluster.nodes": 2, **plain_links, "cluster.contention": True}
    ports["cluster.inter_node"] = {**ports["cluster.inter_node"], "ports": 1}
    fsdp, odc = resolved(ports).cases
    assert fsdp.schedule.shared_links is None
    assert odc.schedule.shared_links.group_of_rank == (0, 0, 0, 0, 1, 1, 1, 1)
    assert odc.schedule.shared_links.full_rate_transfers == 1
    assert transfers(odc)[0] == pytest.approx(2 * BLOCK * 4 / 8 / 40 + 7)


NO_ODC = with_policies("fsdp lb-micro", "fsdp local-sort")
TWO_NODES = {"cluster.nodes": 2}


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"cases.0.pad": True}, "cases.0.pad has no effect: lb-micro gives equal counts already"),
        (
            {"cases.1": {"sync": "odc", "policy": "dynamic", "pad": True}},
            "cases.1.pad has no effect: under dynamic no rank has microbatches to match",
        ),
        (
            {"planning.keep_groups": True},
            "planning.keep_groups has no effect: the samples of workload.lengths come in no groups",
        ),
        (
            {"planning.known_speeds": True, "cluster.rank_speeds": {1: 0.5}},
            "planning.known_speeds has no effect: no case's policy looks at speeds",
        ),
        (
            {"planning.known_speeds": True, "cases.1.policy": "independent"},
            "planning.known_speeds has no effect: all ranks are alike (see cluster.rank_speeds)",
        ),
        (
            {"planning.cost": "tokens", **with_policies("fsdp local-sort", "odc verl-native")},
            "planning.cost has no effect: no case's policy balances by it",
        ),
        ({**NO_ODC, "on_demand.gather_dtype": "fp32"}, "on_demand has no effect: no case uses sync: odc"),
        (
            {**NO_ODC, "cluster.one_sided": {"intra_node_efficiency": 0.5}},
            "cluster.one_sided has no effect: no case uses sync: odc",
        ),
        (
            {**NO_ODC, **TWO_NODES, "cluster.contention": True, "cluster.inter_node.ports": 2},
            "cluster.contention has no effect: no case uses sync: odc",
        ),
        ({"cluster.inter_node.latency": "1 us"}, "cluster.inter_node has no effect: there is one node only"),
        (
            {"cluster.one_sided.inter_node_efficiency": 0.5},
            "cluster.one_sided.inter_node_efficiency has no effect: there is one node only",
        ),
        ({"cluster.contention": True}, "cluster.contention has no effect: there is one node only"),
        (
            {**TWO_NODES, "cluster.inter_node.ports": 2},
            "cluster.inter_node.ports has no effect without cluster.contention: true",
        ),
        (
            {**TWO_NODES, "cluster.contention": True},
            "cluster.contention has no effect: every rank has a port of its own (see cluster.inter_node.ports)",
        ),
        (
            {**TWO_NODES, "cluster.contention": True, "cluster.inter_node.ports": 8},
            "cluster.contention has no effect: every rank has a port of its own (see cluster.inter_node.ports)",
        ),
        (
            {"training.recompute": "none"},
            "training.recompute: none changes memory, but not the total of compute.fitted: it holds what was measured",
        ),
    ],
)
def test_a_setting_without_effect_is_told(resolved, changes, warning):
    assert resolved(changes).warnings == (warning,)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        NO_ODC,
        {"on_demand.gather_dtype": "param", **NO_ODC},
        {"cluster.contention": False},
        {"cluster.one_sided": {}},
        {"cluster.inter_node.ports": None},
        {**TWO_NODES, "cluster.inter_node.latency": "1 us", "cluster.one_sided.inter_node_efficiency": 0.5},
        {**TWO_NODES, "cluster.contention": True, "cluster.inter_node.ports": 2},
        {"compute": "analytic", "training.recompute": "none"},
        {"planning.cost": "tokens"},
        {"planning.known_speeds": True, "cluster.rank_speeds": {1: 0.5}, "cases.1.policy": "independent"},
        {"cluster.compute_noise": 0.1},
        {"runtime.device": "cuda"},
    ],
)
def test_no_false_alarm(resolved, changes):
    assert resolved(changes).warnings == ()


def test_the_document_tells_what_was_understood(resolved):
    document = resolved({"cluster.intra_node.bandwidth": "100 GB/s"}).to_document()
    assert document["cluster"]["intra_node"] == {"bandwidth": 100e9}
    assert document["cluster"]["gpu"]["peak_flops_per_s"] == 312e12
    assert document["cluster"]["gpu"]["sources"]["peak_flops_per_s"] == "NVIDIA A100 datasheet"
    assert document["model"]["total_parameters"] == 2 * BLOCK + ROOT
    assert document["workload"]["source"]["name"] == "values"
    assert document["workload"]["source"]["synthetic"] is False
    assert document["overlap"] == "prefetch"


def test_the_document_keeps_a_traces_provenance(resolved, root):
    trace = root / "traces" / "lengths" / "synthetic_longalign_10k_qwen.csv"
    source = resolved({"workload.lengths": {"trace": str(trace)}}).to_document()["workload"]["source"]
    assert source["name"] == "synthetic_longalign_10k_qwen"
    assert source["synthetic"] is True


@pytest.mark.parametrize("setting", ["shm", "collective", "gloo", "cuda"])
@pytest.mark.parametrize("moving", ["collective", "gloo", "nccl"])
def test_collectives_are_put_over_what_a_run_had(changed, setting, moving):
    scenario = parse_scenario(changed({"runtime.transport": setting}))
    put = over_collectives(scenario, moving)
    assert collective_transport(put) == moving
    assert (put is scenario) == (collective_transport(scenario) == moving)
    assert over_collectives(scenario, "carrier pigeon") is scenario
