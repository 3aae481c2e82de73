"""`odcsim catalog`, `odcsim schema`, help, and output that nobody reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from odcsim.scenario import scenario_schema

PROGRAM = [sys.executable, "-c", "from odcsim.cli import main; main()"]


def test_catalog_lists_models_and_gpus(odcsim):
    ended = odcsim("catalog")
    assert (ended.code, ended.err) == (0, "")
    for name in ("qwen2.5-1.5b", "llama-3.1-8b", "a100-80g-sxm", "h100-80g-sxm"):
        assert name in ended.out


def test_catalog_as_json(odcsim):
    ended = odcsim("catalog", "--json")
    document = json.loads(ended.out)
    assert set(document) == {"models", "gpus"}
    assert document["models"]["deepseek-r1-distill-qwen-1.5b"]["total_parameters"] == 1_777_088_000
    assert document["gpus"]["a100-80g-sxm"]["peak_flops_per_s"] == 312e12
    assert document["gpus"]["a100-80g-sxm"]["sources"]["peak_flops_per_s"] == "NVIDIA A100 datasheet"


@pytest.mark.parametrize(("name", "found"), [("A100", "a100-80g-sxm"), ("a100-80g-sxm", "a100-80g-sxm")])
def test_catalog_of_one_gpu(odcsim, name, found):
    document = json.loads(odcsim("catalog", name, "--json").out)
    assert (document["models"], list(document["gpus"])) == ({}, [found])
    table = odcsim("catalog", name)
    assert table.code == 0
    assert "312,000,000,000,000" in table.out
    assert "datasheet" in table.out


def test_catalog_of_one_model(odcsim):
    document = json.loads(odcsim("catalog", "Qwen2.5-7B", "--json").out)
    assert (list(document["models"]), document["gpus"]) == (["qwen2.5-7b"], {})
    assert "7,615,616,512" in odcsim("catalog", "qwen2.5-7b").out


@pytest.mark.parametrize("name", ["h10000", "[red]", "\x1b[31m", ""])
def test_catalog_of_an_unknown_name(odcsim, name):
    ended = odcsim("catalog", name)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"odcsim: error: NAME: {name!r}: unknown model or GPU")
    assert ended.err.removesuffix("\n").isprintable()


def test_catalog_offers_the_nearest_name(odcsim):
    assert "did you mean 'qwen2.5-7b'?" in odcsim("catalog", "qwen2.5-7c").err


def test_schema(odcsim):
    ended = odcsim("schema")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == scenario_schema()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["schema", "--help"], ["catalog", "--help"]])
def test_help(odcsim, arguments):
    ended = odcsim(*arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Usage: odcsim")
    assert "Example: odcsim" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "no such command 'rnu'"),
        (["--bogus"], "no such option: --bogus"),
        (["schema", "extra"], "got unexpected extra argument"),
        (["catalog", "a", "b"], "got unexpected extra argument"),
    ],
)
def test_a_command_line_at_fault_is_one_line(odcsim, arguments, message):
    ended = odcsim(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"odcsim: error: {message}")
    assert ended.err.endswith(" --help\n")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["catalog", "--json"], ["catalog"]])
def test_a_reader_that_goes_away_is_no_failure(arguments):
    """`odcsim catalog | head` and the like."""
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(timeout=20) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*PROGRAM, "schema"], stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert (ended.returncode, ended.stderr) == (1, "odcsim: error: [Errno 28] No space left on device\n")
