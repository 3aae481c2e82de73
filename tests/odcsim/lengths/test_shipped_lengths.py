"""The length lists in `traces/lengths`: each agrees with its sidecar, and the table in `traces/README.md` with both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from odcsim.lengths import LengthSpec, describe_lengths, load_source, read_histogram, read_trace

TRACES = Path(__file__).parents[3] / "traces"
README = (TRACES / "README.md").read_text(encoding="utf-8")
NAMES = [
    "aime24_skyt1_32b_response",
    "arena_hard_v2_o3mini_chat",
    "azure_llm_2023_conv_total",
    "gsm8k_train_sft",
    "math100x8_qwen25math_response",
    "qmsum_train_sft",
    "swebench_verified_miniswe_gemini3pro",
    "synthetic_aime_qwen3_mixture",
    "synthetic_longalign_10k_qwen",
    "synthetic_swesmith_lognormal",
]
HISTOGRAM = TRACES / "lengths" / "longalign_fig3_mix_hist.json"


def table() -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if "| `" in line]
    return {row[0].strip("`"): row for row in rows if len(row) == 11}


def test_the_folder_holds_these_lists_and_no_others() -> None:
    assert sorted(path.stem for path in (TRACES / "lengths").glob("*.csv")) == NAMES
    assert sorted(path.stem for path in (TRACES / "lengths").glob("*.json")) == sorted([*NAMES, HISTOGRAM.stem])


@pytest.mark.parametrize("name", NAMES)
def test_a_list_agrees_with_its_sidecar(name: str) -> None:
    trace = read_trace(TRACES / "lengths" / f"{name}.csv")
    facts, lengths_S = trace.provenance, trace.lengths_S
    assert facts["name"] == name
    assert facts["unit"] == "tokens"
    assert all(facts[key] for key in ("source_repo", "source_path", "source_commit", "licence", "tokenizer", "order"))
    assert facts["count"] == lengths_S.size
    assert facts["sum"] == lengths_S.sum()
    assert (facts["min"], facts["max"]) == (lengths_S.min(), lengths_S.max())
    assert facts["mean"] == pytest.approx(lengths_S.mean(), abs=0.0051)
    assert facts["std"] == pytest.approx(lengths_S.std(), abs=0.0051)
    assert facts["cv"] == pytest.approx(describe_lengths(lengths_S)["cv"], abs=0.000051)
    assert sorted(facts["quantiles"]) == sorted(["p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99"])
    for quantile, tokens in facts["quantiles"].items():
        assert tokens == pytest.approx(np.quantile(lengths_S, int(quantile[1:]) / 100), abs=0.5), quantile


@pytest.mark.parametrize("name", NAMES)
def test_what_is_synthetic_says_so_in_its_name(name: str) -> None:
    assert read_trace(TRACES / "lengths" / f"{name}.csv").synthetic == name.startswith("synthetic_")


@pytest.mark.parametrize("name", NAMES)
def test_only_the_rollouts_of_math_come_in_groups(name: str) -> None:
    expected = 8 if name == "math100x8_qwen25math_response" else 1
    assert read_trace(TRACES / "lengths" / f"{name}.csv").group_size == expected


def test_the_histogram_is_the_published_figure() -> None:
    histogram = read_histogram(HISTOGRAM)
    assert histogram.counts_B.size == 19
    assert histogram.counts_B.sum() == 93144
    assert (histogram.first_B[0], histogram.max) == (20, 61000)
    assert not histogram.synthetic


@pytest.mark.parametrize("name", NAMES)
def test_the_table_agrees_with_the_list(name: str) -> None:
    facts = json.loads((TRACES / "lengths" / f"{name}.json").read_text(encoding="utf-8"))
    _, _, *numbers, kind, source, licence = table()[name]
    quantiles = facts["quantiles"]
    expected = [facts["count"], facts["mean"], quantiles["p50"], quantiles["p90"], quantiles["p99"], facts["max"]]
    assert numbers == [f"{number:,.0f}" for number in expected]
    assert kind == ("synthetic" if facts["synthetic"] else "real")
    repositories = re.findall(r"\((https://[^)]+)\)", source)
    if repositories:
        assert facts["source_repo"].startswith(repositories[0])
    else:
        assert facts["source_repo"] == "statistics only"
    assert licence.split()[0] in facts["licence"]


def test_the_table_agrees_with_the_histogram() -> None:
    histogram = read_histogram(HISTOGRAM)
    _, _, rows, mean, *_, longest, kind, _, licence = table()[HISTOGRAM.stem]
    assert [rows, mean, longest] == ["93,144", f"{histogram.mean:,.0f}", "61,000"]
    assert (kind, licence) == ("real", "Apache-2.0")


def test_the_examples_in_the_readme_can_be_drawn_from() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    examples = yaml.safe_load(block)
    assert [next(iter(example)) for example in examples] == ["trace", "histogram", "mixture"]
    for example in examples:
        source = load_source(LengthSpec.model_validate(example), base_folder=TRACES)
        assert source.draw(3, 32, 0).min() >= 1
