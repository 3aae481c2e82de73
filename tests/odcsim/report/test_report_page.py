"""The page: complete, true to the result, self-contained, safe against what users write, the same bytes every time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from page_checks import NASTY, Document, without_plotly
from report_samples import over_memory, sample_result, with_case

from odcsim.report import render_page
from odcsim.report.markup import definitions, element, value_text
from odcsim.results import RunResult
from odcsim.units import format_seconds


@pytest.fixture(scope="module")
def result() -> RunResult:
    return with_case(sample_result(), 2, speedup=1.294, speedup_ci95=(1.27, 1.31))


@pytest.fixture(scope="module")
def page(result: RunResult) -> str:
    return without_plotly(render_page(result))


@pytest.fixture(scope="module")
def document(page: str) -> Document:
    return Document(page)


def test_the_answer_comes_first(document: Document) -> None:
    answer = document.text.index("ODC lb-mini is 29% faster than FSDP lb-micro: a speedup of 1.29")
    assert answer < document.text.index("Comparison of the cases")


def test_the_comparison_holds_every_case_with_its_numbers(document: Document, result: RunResult) -> None:
    for case in result.cases:
        row = document.row(case.label)
        mean, p95 = float(case.minibatch_s_N.mean()), float(np.quantile(case.minibatch_s_N, 0.95))
        assert row[1:3] == [format_seconds(mean), format_seconds(p95)]
        assert row[6:9] == [
            f"{100 * case.fractions.compute:.1f}%",
            f"{100 * case.fractions.synchronization:.1f}%",
            "31.0%",
        ]
        assert row[10] == f"{mean / float(case.lower_bound_s_N.mean()):.3f}"
    assert document.row("FSDP lb-micro")[3] == "1"
    assert document.row("ODC lb-mini")[3] == "1.29 [1.27, 1.31]"
    assert document.row("FSDP lb-micro")[9] == "48.9 GB fits"
    assert "baseline" in document.row("FSDP lb-micro")[0]
    assert "fastest that fits" in document.row("ODC lb-mini")[0]


def test_a_case_that_does_not_fit_says_by_how_much_and_what_would_help(result: RunResult) -> None:
    memory = over_memory(result.cases[2], over_bytes=7.9e9, advice="would fit with cluster.nodes: 2")
    document = Document(without_plotly(render_page(with_case(result, 2, memory=memory))))
    assert document.row("ODC lb-mini")[9] == "88.6 GB OVER by 7.9 GB"
    assert "fastest that fits" in document.row("ODC lb-micro")[0]
    assert "ODC lb-mini does not fit: would fit with cluster.nodes: 2" in document.text.replace(" : ", ": ")
    assert "ODC lb-mini would be faster still" in document.text


def test_assumptions_are_written_out_with_units_and_sources(document: Document) -> None:
    for text in (
        "peak 312 TFLOP/s NVIDIA A100 datasheet",
        "intra node bandwidth 300 GB/s",
        "intra node latency 3.4 us",
        "quadratic 1.98212",
        "synthetic lengths",
        "licence none needed (synthetic numbers)",
        "layers 28",
        "seed 0",
    ):
        assert text in document.text
    assert "odcsim run sample.yaml" in document.text


def test_the_command_that_was_used_is_shown(result: RunResult) -> None:
    page = render_page(result, command="odcsim run s.yaml --set workload.seed=7 --set 'name=<b>'")
    assert "odcsim run s.yaml --set workload.seed=7 --set &#x27;name=&lt;b&gt;&#x27;" in page


def test_every_figure_has_data_a_place_a_description_and_its_numbers(page: str, document: Document) -> None:
    places = {attributes["id"]: attributes for tag, attributes in document.tags if attributes.get("class") == "plot"}
    data = re.findall(r'<script type="application/json" data-figure="([^"]+)">(.*?)</script>', page)
    assert [place for place, _ in data] == list(places)
    assert len(places) == 6
    for place, text in data:
        assert set(json.loads(text)) == {"data", "layout", "config"}
        assert places[place]["role"] == "img"
        assert len(places[place]["aria-label"] or "") > 40
    assert sum(tag == "details" for tag, _ in document.tags) == 7


def test_tables_say_what_their_headings_are_for(document: Document) -> None:
    headings = [attributes for tag, attributes in document.tags if tag == "th"]
    assert headings
    assert all(attributes.get("scope") in {"row", "col", "colgroup"} for attributes in headings)
    targets = {attributes["id"] for _, attributes in document.tags if "id" in attributes}
    links = {attributes["href"] for tag, attributes in document.tags if tag == "a"}
    assert {link.removeprefix("#") for link in links if link and link.startswith("#")} <= targets


def test_the_page_fetches_nothing(page: str, document: Document) -> None:
    for tag, attributes in document.tags:
        assert not {"src", "srcset", "data", "action", "background"} & set(attributes), tag
        assert tag not in {"link", "iframe", "img", "object", "embed", "base"}
    assert "@import" not in page
    assert "url(" not in page
    policies = [attributes["content"] for tag, attributes in document.tags if "http-equiv" in attributes]
    assert policies == [
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    ]


def test_what_users_write_is_text_everywhere(result: RunResult) -> None:
    memory = over_memory(result.cases[1], over_bytes=1e9, advice=f"advice {NASTY}")
    memory = dataclasses.replace(memory, parts_bytes={**memory.parts_bytes, f"part {NASTY}": 1e9})
    nasty = with_case(result, 1, label=f"label {NASTY}", policy=f"policy {NASTY}", memory=memory)
    scenario = {
        **nasty.scenario,
        "model": {"name": f"model {NASTY}", f"key {NASTY}": f"value {NASTY}"},
        "cluster": {"gpu": {"name": f"gpu {NASTY}", "memory_bytes": 1, "sources": {"memory_bytes": f"source {NASTY}"}}},
    }
    nasty = dataclasses.replace(nasty, name=f"name {NASTY}", scenario=scenario, warnings=(f"warning {NASTY}",))
    page = without_plotly(render_page(nasty, command=f"command {NASTY}"))
    document = Document(page)
    assert "<script>alert" not in page
    assert "<b>%" not in page
    for what in (
        "label",
        "policy",
        "advice",
        "part",
        "model",
        "key",
        "value",
        "gpu",
        "source",
        "name",
        "warning",
        "command",
    ):
        assert f"{what} {NASTY}" in document.text, what
    # In figures, plotly itself reads a subset of HTML.
    figures = re.findall(r'<script type="application/json" data-figure="[^"]+">(.*?)</script>', page)
    texts = [text for figure in figures for text in strings_of(json.loads(figure))]
    assert not [text for text in texts if "<script" in text or "<b>%" in text]
    assert [text for text in texts if "&lt;script&gt;" in text]
    # A template would have its %{...} replaced.
    assert not [figure for figure in figures if "hovertemplate" in figure or "texttemplate" in figure]


def strings_of(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for entry in value for text in strings_of(entry)] if isinstance(value, list) else []


def test_the_same_result_gives_the_same_bytes_in_any_process(result: RunResult) -> None:
    program = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]); from report_samples import sample_result; "
        "from odcsim.report import render_page; "
        "print(hashlib.sha256(render_page(sample_result()).encode()).hexdigest())"
    )
    here = str(Path(__file__).parent)
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program, here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    )
    again = hashlib.sha256(render_page(sample_result()).encode()).hexdigest()
    assert first.strip() == second.strip() == again


def test_importing_the_package_imports_neither_plotly_nor_rich_and_a_page_needs_neither() -> None:
    program = (
        "import sys; import odcsim.report; "
        "assert not {'plotly', 'rich', 'numpy'} & set(sys.modules); "
        "sys.path.insert(0, sys.argv[1]); from report_samples import sample_result; "
        "odcsim.report.render_page(sample_result(minibatches=2)); "
        "assert not {'plotly', 'rich'} & set(sys.modules)"
    )
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", program, here], check=True, timeout=60)


def test_one_case_and_one_minibatch_make_a_page() -> None:
    single = sample_result(minibatches=1)
    alone = dataclasses.replace(single, cases=single.cases[:1], sampled_lengths=None)
    document = Document(without_plotly(render_page(alone)))
    assert "FSDP lb-micro takes " in document.text
    assert "speedup over the baseline" not in document.text.lower()
    pair = Document(without_plotly(render_page(single)))
    assert "one minibatch, so no interval" in pair.text
    assert re.fullmatch(r"\d\.\d\d ", pair.row("ODC lb-mini")[3])


def test_a_bare_scenario_makes_a_page(result: RunResult) -> None:
    bare = dataclasses.replace(result, scenario={}, lengths={}, engine="measured")
    document = Document(without_plotly(render_page(bare)))
    assert "measured by odcrt" in document.text


def test_the_page_is_light_beyond_plotly() -> None:
    quick = sample_result()
    doubled = dataclasses.replace(
        quick, cases=(*quick.cases, *(dataclasses.replace(case, label=f"{case.label} 2") for case in quick.cases))
    )
    assert len(without_plotly(render_page(doubled))) < 1_500_000


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("peak_flops_per_s", 989.4e12, "989.4 TFLOP/s"),
        ("memory_bytes", 85_899_345_920, "85.9 GB"),
        ("bandwidth", 50e9, "50 GB/s"),
        ("inter_node_latency_s", 1.4e-5, "14 us"),
        ("minibatch_overhead", 0.0, "0 s"),
        ("per_tokens", 32_000.0, "32,000"),
        ("efficiency", 0.57, "0.57"),
        ("seed", 20_240_101, "20240101"),
        ("contention", False, "no"),
        ("slowdowns", None, "none"),
        ("values", [1, 2, 3], "1, 2, 3"),
        ("values", list(range(5000)), "5,000 values"),
    ],
)
def test_values_are_shown_in_the_unit_of_their_key(key: str, value: object, text: str) -> None:
    assert value_text(key, value) == text


def test_only_whole_addresses_become_links() -> None:
    assert 'href="https://example.org/a"' in definitions({"source": "https://example.org/a"})
    assert "href" not in definitions({"source": "javascript:alert(1)"})
    assert "href" not in definitions({"source": "see https://example.org"})


def test_elements_escape_texts_and_attributes() -> None:
    assert element("p", "<i>", element("b", "&"), title='"x"') == '<p title="&quot;x&quot;">&lt;i&gt;<b>&amp;</b></p>'
