"""The catalog: every entry loads and says where its figures come from; whatever is wrong is refused in one line."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import fields

import pytest

from odcsim.catalog import Gpu, _entries, gpu_names, load_gpu, model_entries, model_names
from odcsim.errors import InputError, UnknownNameError

FIGURES = [field.name for field in fields(Gpu) if field.name not in ("name", "sources")]
EFFICIENCIES = ("linear_efficiency", "attention_efficiency", "link_efficiency")
INLINE = {
    "peak_flops_per_s": "100 TFLOP/s",
    "memory_bytes": "24 GiB",
    "memory_bandwidth": "1 TB/s",
    "intra_node_bandwidth": "64 GB/s",
    "intra_node_latency": "5 us",
    "inter_node_bandwidth_per_gpu": "100 Gb/s",
    "inter_node_latency": "10 us",
    "linear_efficiency": 0.5,
    "attention_efficiency": 0.25,
    "link_efficiency": 1,
}


def refusal(value: object) -> str:
    with pytest.raises(InputError) as caught:
        load_gpu(value, file="s.yaml")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_promised_gpus_are_there():
    assert gpu_names() == (
        "a100-80g-sxm",
        "a100-40g-sxm",
        "h100-80g-sxm",
        "h100-80g-pcie",
        "h200-141g-sxm",
        "h800-80g-sxm",
        "h20-96g-sxm",
        "b200-180g-sxm",
        "mi300x-192g",
        "l40s-48g",
        "cpu",
    )


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_loads_with_a_source_for_every_figure(name: str):
    gpu = load_gpu(name)
    assert gpu.name == name
    assert set(gpu.sources) == set(FIGURES)
    assert all(source.strip() for source in gpu.sources.values())
    for attribute in FIGURES:
        assert math.isfinite(getattr(gpu, attribute))
        assert getattr(gpu, attribute) > 0
    assert all(getattr(gpu, attribute) <= 1 for attribute in EFFICIENCIES)


# Device memory in GiB as drivers list it (nvidia-smi in MiB, rocm-smi in bytes): a little less than the label.
DRIVER_GIB = {
    "a100-40g-sxm": 40960 / 1024,
    "a100-80g-sxm": 81920 / 1024,
    "h100-80g-sxm": 81559 / 1024,
    "h200-141g-sxm": 143771 / 1024,
    "h20-96g-sxm": 97871 / 1024,
    "b200-180g-sxm": 183359 / 1024,
    "l40s-48g": 46068 / 1024,
    "mi300x-192g": 206141652992 / 2**30,
}


@pytest.mark.parametrize(("name", "driver_gib"), DRIVER_GIB.items())
def test_memory_is_what_drivers_report(name: str, driver_gib: float):
    assert load_gpu(name).memory_bytes / 2**30 == pytest.approx(driver_gib, rel=0.006)


@pytest.mark.parametrize(
    ("name", "tflops", "memory_gb_per_s", "node_gb_per_s", "network_gbit_per_s"),
    [
        ("a100-40g-sxm", 312, 1555, 300, 200),
        ("a100-80g-sxm", 312, 2039, 300, 200),
        ("h100-80g-sxm", 989.4, 3350, 450, 400),
        ("h100-80g-pcie", 756, 2000, 64, 200),
        ("h200-141g-sxm", 989.4, 4800, 450, 400),
        ("h800-80g-sxm", 989.4, 3350, 200, 400),
        ("h20-96g-sxm", 148, 4000, 450, 400),
        ("b200-180g-sxm", 2250, 8000, 900, 400),
        ("mi300x-192g", 1307.4, 5300, 448, 400),
        ("l40s-48g", 362.05, 864, 32, 100),
    ],
)
def test_figures_are_dense_and_of_one_direction(
    name: str, tflops: float, memory_gb_per_s: float, node_gb_per_s: float, network_gbit_per_s: float
):
    gpu = load_gpu(name)
    assert gpu.peak_flops_per_s == pytest.approx(tflops * 1e12)
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(memory_gb_per_s * 1e9)
    assert gpu.intra_node_bandwidth_bytes_per_s == pytest.approx(node_gb_per_s * 1e9)
    assert gpu.inter_node_bandwidth_bytes_per_s == pytest.approx(network_gbit_per_s * 1e9 / 8)


def test_the_a100_efficiencies_lie_within_the_cost_fit_they_come_from():
    gpu = load_gpu("a100-80g-sxm")
    assert 151e12 <= gpu.linear_efficiency * gpu.peak_flops_per_s <= 206e12
    assert 200e12 <= gpu.attention_efficiency * gpu.peak_flops_per_s <= 213e12


@pytest.mark.parametrize("name", gpu_names())
def test_efficiencies_say_what_stands_behind_them(name: str):
    for key in EFFICIENCIES:
        source = load_gpu(name).sources[key]
        assert ";" in source, f"{name}.{key} has a source but no note"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("a100", "a100-80g-sxm"),
        ("h100", "h100-80g-sxm"),
        ("h200", "h200-141g-sxm"),
        ("h800", "h800-80g-sxm"),
        ("h20", "h20-96g-sxm"),
        ("b200", "b200-180g-sxm"),
        ("mi300x", "mi300x-192g"),
        ("l40s", "l40s-48g"),
        (" H100-80G-SXM ", "h100-80g-sxm"),
    ],
)
def test_aliases_and_any_case_are_found(alias: str, name: str):
    assert load_gpu(alias) == load_gpu(name)
    assert load_gpu(alias.upper()).name == name


@pytest.mark.parametrize("file_name", ["gpus.yaml", "models.yaml"])
def test_no_name_or_alias_is_given_twice(file_name: str):
    names = Counter(known for name, entry in _entries(file_name).items() for known in (name, *entry.get("aliases", ())))
    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name in names if name != name.lower()] == []


def test_an_entry_that_starts_from_another_keeps_the_rest():
    small, large = load_gpu("a100-40g-sxm"), load_gpu("a100-80g-sxm")
    assert (small.memory_bytes, large.memory_bytes) == (40 * 2**30, 80 * 2**30)
    assert small.linear_efficiency == large.linear_efficiency
    assert small.sources["linear_efficiency"] == large.sources["linear_efficiency"]


def test_an_inline_gpu_has_its_quantities_in_base_units():
    gpu = load_gpu(INLINE)
    assert gpu == Gpu(
        name="inline",
        peak_flops_per_s=100e12,
        memory_bytes=24 * 2**30,
        memory_bandwidth_bytes_per_s=1e12,
        intra_node_bandwidth_bytes_per_s=64e9,
        intra_node_latency_s=pytest.approx(5e-6),
        inter_node_bandwidth_bytes_per_s=12.5e9,
        inter_node_latency_s=pytest.approx(10e-6),
        linear_efficiency=0.5,
        attention_efficiency=0.25,
        link_efficiency=1.0,
    )
    assert set(gpu.sources.values()) == {"the scenario"}


def test_an_inline_gpu_may_start_from_the_catalog():
    base = load_gpu("h100-80g-sxm")
    gpu = load_gpu(
        {
            "base": "H100",
            "memory_bytes": {"value": "94 GB", "source": "our cluster", "note": "measured"},
            "inter_node_latency": 0,
        }
    )
    assert gpu.name == "H100 (modified)"
    assert gpu.memory_bytes == 94e9
    assert gpu.inter_node_latency_s == 0
    assert gpu.peak_flops_per_s == base.peak_flops_per_s
    assert gpu.sources["memory_bytes"] == "our cluster; measured"
    assert gpu.sources["inter_node_latency_s"] == "the scenario"
    assert gpu.sources["peak_flops_per_s"] == base.sources["peak_flops_per_s"]
    assert load_gpu({"base": "h100", "name": "ours"}).name == "ours"


def test_changing_one_gpus_sources_leaves_the_catalog_alone():
    load_gpu("h100").sources["memory_bytes"] = "spoilt"
    assert load_gpu("h100").sources["memory_bytes"] != "spoilt"
    assert hash(load_gpu("h100")) == hash(load_gpu("h100-80g-sxm"))


def test_an_unknown_gpu_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        load_gpu("h100-80gb-sxm", file="s.yaml")
    assert str(caught.value).startswith(
        "s.yaml: cluster.gpu: 'h100-80gb-sxm': unknown GPU; did you mean 'h100-80g-sxm'? (known: a100, a100-40g, "
    )
    assert refusal({"base": "a1000"}).startswith(
        "s.yaml: cluster.gpu.base: 'a1000': unknown GPU; did you mean 'a100'? (known: "
    )


def test_every_name_and_alias_fits_into_the_refusal():
    assert "..." not in refusal("none of them")


def test_an_unknown_key_is_refused_with_the_nearest():
    assert refusal(INLINE | {"memory_byte": "1 GB"}) == (
        "s.yaml: cluster.gpu: 'memory_byte': unknown GPU key; did you mean 'memory_bytes'? (known: "
        "attention_efficiency, base, inter_node_bandwidth_per_gpu, inter_node_latency, intra_node_bandwidth, "
        "intra_node_latency, linear_efficiency, link_efficiency, memory_bandwidth, memory_bytes, name, "
        "peak_flops_per_s)"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peak_flops_per_s": 0}, "peak_flops_per_s: 0: must be more than 0 FLOP/s"),
        ({"memory_bytes": "0 GB"}, "memory_bytes: '0 GB': must be more than 0 bytes"),
        ({"link_efficiency": 0}, "link_efficiency: 0: must be a number above 0 and at most 1"),
        ({"link_efficiency": 1.01}, "link_efficiency: 1.01: must be a number above 0 and at most 1"),
        ({"link_efficiency": math.nan}, "link_efficiency: nan: must be a number above 0 and at most 1"),
        ({"link_efficiency": True}, "link_efficiency: True: must be a number above 0 and at most 1"),
        ({"linear_efficiency": "57%"}, "linear_efficiency: '57%': must be a number above 0 and at most 1"),
        (
            {"intra_node_bandwidth": math.nan},
            'intra_node_bandwidth: nan: must be finite; allowed: "400 Gb/s", "300 GB/s" or a number of bytes a second',
        ),
        (
            {"intra_node_latency": "-5 us"},
            'intra_node_latency: \'-5 us\': must not be negative; allowed: "5 us", "0.15 s" or a number of seconds',
        ),
        (
            {"memory_bytes": "80 GHz"},
            "memory_bytes: '80 GHz': unknown unit 'GHz' for bytes; allowed: \"80 GB\", \"80 GiB\" or a number of bytes",
        ),
        (
            {"memory_bytes": {"source": "us"}},
            "memory_bytes: {'source': 'us'}: must be a quantity or {value, source, note}",
        ),
        ({"name": 7}, "name: 7: must be a printable text"),
        ({"base": 7}, "base: 7: must be the name of a GPU"),
    ],
)
def test_a_figure_that_cannot_be_used_is_refused(change: dict[str, object], text: str):
    assert refusal(INLINE | change) == f"s.yaml: cluster.gpu.{text}"


def test_missing_figures_are_named():
    incomplete = {key: value for key, value in INLINE.items() if key not in ("memory_bytes", "link_efficiency")}
    assert refusal(incomplete) == (
        "s.yaml: cluster.gpu: missing: memory_bytes, link_efficiency (or start from a catalog entry by base)"
    )


@pytest.mark.parametrize("value", [None, 8, ["h100"]])
def test_neither_a_name_nor_a_mapping_is_refused(value: object):
    assert refusal(value) == f"s.yaml: cluster.gpu: {value!r}: must be the name of a GPU or a mapping of its figures"


def test_the_promised_models_are_there():
    distilled = {f"deepseek-r1-distill-qwen-{size}" for size in ("1.5b", "7b", "14b", "32b")}
    qwen25 = {f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b")}
    qwen3 = {f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")}
    others = {"llama-3.1-8b", "llama-3.1-70b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b-v0.3"}
    assert set(model_names()) == distilled | qwen25 | qwen3 | others


@pytest.mark.parametrize("name", model_names())
def test_every_model_names_its_config(name: str):
    source = model_entries()[name]["source"]
    repository, file_name = source.split()
    assert file_name == "config.json"
    assert repository.split("/")[1].lower() == name


def test_importing_the_catalog_reads_no_yaml():
    program = "import sys, odcsim.catalog; print('yaml' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "False\n"
