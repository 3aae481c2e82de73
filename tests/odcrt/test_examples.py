"""The programs of examples/, run as their docstrings say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.timeout(120)


def launch(script: str, *arguments: str, nproc: int) -> str:
    """What `odcrt launch` of an example prints."""
    command = [sys.executable, "-c", "from odcrt.cli import main; main()", "launch", "--nproc", str(nproc)]
    done = subprocess.run(
        [*command, str(EXAMPLES / script), *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def losses(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss ([0-9.]+)", printed)]


def test_plain_loop_learns_with_uneven_microbatches():
    printed = launch("fsdp2_loop.py", nproc=2)
    assert re.findall(r"(\d) microbatches", printed) == ["2", "3"] * 5
    assert losses(printed)[-1] < losses(printed)[0] / 10


def test_plain_loop_has_three_lines_changed():
    marked = re.findall(r"# odcrt: (\d) of 3", (EXAMPLES / "fsdp2_loop.py").read_text(encoding="utf-8"))
    assert marked == ["1", "2", "3"]


def test_transformers_model_learns():
    pytest.importorskip("transformers")
    printed = losses(launch("transformers_lm.py", nproc=2))
    assert len(printed) == 6
    assert printed[-1] < printed[0]


def test_a_run_goes_on_at_another_world_size(tmp_path):
    """Two ranks train on half of the data, three on exactly the other half."""
    seen = []
    for action, nproc in (("save", 2), ("resume", 3)):
        printed = launch("resume_dcp.py", str(tmp_path / "checkpoint"), action, nproc=nproc)
        (samples,) = re.findall(r"samples: ([0-9 ]+)", printed)
        seen.append([int(sample) for sample in samples.split()])
    assert len(seen[0]) == 60
    assert sorted(seen[0] + seen[1]) == list(range(120))
