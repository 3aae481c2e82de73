"""The programs of examples/: the plain loop by `odcrt launch`, as its docstring says; the others in forked ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from launched import odcrt
from ranks import run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.timeout(120)


def losses(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss ([0-9.]+)", printed)]


def test_plain_loop_learns_with_uneven_microbatches(tmp_path):
    run = odcrt("launch", "--nproc", 2, EXAMPLES / "fsdp2_loop.py", folder=tmp_path)
    assert run.code == 0, run.err
    assert re.findall(r"(\d) microbatches", run.out) == ["2", "3"] * 5
    assert losses(run.out)[-1] < losses(run.out)[0] / 10


def test_plain_loop_has_three_lines_changed():
    marked = re.findall(r"# odcrt: (\d) of 3", (EXAMPLES / "fsdp2_loop.py").read_text(encoding="utf-8"))
    assert marked == ["1", "2", "3"]


def test_transformers_model_learns():
    pytest.importorskip("transformers")
    found = losses(run_program([EXAMPLES / "transformers_lm.py"], ranks=2)[0])
    assert len(found) == 6
    assert found[-1] < found[0]


def test_a_run_goes_on_at_another_world_size(tmp_path):
    """Two ranks train on half of the data, three on exactly the other half."""
    seen = []
    for action, nproc in (("save", 2), ("resume", 3)):
        printed = run_program([EXAMPLES / "resume_dcp.py", tmp_path / "checkpoint", action], ranks=nproc)[0]
        (samples,) = re.findall(r"samples: ([0-9 ]+)", printed)
        seen.append([int(sample) for sample in samples.split()])
    assert len(seen[0]) == 60
    assert sorted(seen[0] + seen[1]) == list(range(120))
