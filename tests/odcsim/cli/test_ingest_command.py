"""`odcsim ingest`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "foreign"))

from kineto_files import on_cpu, write

from odcsim.trace_format import folder, read_run

DATA = sorted((Path(__file__).resolve().parents[3] / "traces" / "profiler").glob("*.json.gz"))


def test_a_table_of_the_ranks(odcsim, tmp_path):
    ended = odcsim("ingest", *DATA, "-o", "run")
    assert (ended.code, ended.err) == (0, "")
    for part in ("compute", "waiting", "transfer", "optimizer", "other", "2 ranks under gloo", "run: run"):
        assert part in ended.out
    assert "minibatches 2 to 3, 2 microbatches a rank in each; 3 units" in ended.out
    assert "clock: one for all ranks, within " in ended.out
    assert read_run(tmp_path / "run").info.world_size == 2


def test_one_document(odcsim):
    ended = odcsim("ingest", *DATA, "--out", "run", "--json")
    assert (ended.code, ended.err) == (0, "")
    document = json.loads(ended.out)
    assert document["run"] == "run"
    assert (document["ranks"], document["transport"]) == (2, "gloo")
    assert document["minibatches"] == {"first": 2, "count": 2}
    assert document["microbatches"] == [[2, 2], [2, 2]]
    assert document["units"] == ["", "blocks.0", "blocks.1"]
    assert document["clock"]["alignment"] == "shared"
    assert document["notes"] == []
    for rank, shares in enumerate(document["shares"]):
        assert (shares["rank"], shares["host"]) == (rank, "host")
        parts = [shares[part] for part in ("compute", "waiting", "transfer", "optimizer", "other")]
        assert sum(parts) == pytest.approx(1)


def test_equal_files_give_equal_bytes(odcsim, tmp_path):
    odcsim("ingest", *DATA, "-o", "one")
    odcsim("ingest", *DATA[::-1], "-o", "two")
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_lengths(odcsim, tmp_path):
    Path("lengths.jsonl").write_text(
        "".join(
            json.dumps({"minibatch": minibatch, "ranks": [[[6], [6]], [[6], [6]]]}) + "\n" for minibatch in range(9)
        )
    )
    assert odcsim("ingest", *DATA, "-o", "run", "--lengths", "lengths.jsonl").code == 0
    run = read_run(tmp_path / "run")
    assert set(run.info.plans) == {2, 3}
    assert {span.tokens for span in run.spans_of_ranks[0] if span.microbatch >= 0} == {6}


def test_what_is_left_out_and_what_is_large_is_warned_of(odcsim, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_LARGE_BYTES", 10)
    documents = on_cpu(minibatches=3)
    for document in documents:
        document.events = document.events[:-1]
    ended = odcsim("ingest", *write(documents, tmp_path), "-o", "run")
    assert ended.code == 0
    first, second = ended.err.splitlines()
    assert first == "odcsim: warning: the file ends in the middle of a minibatch, which is left out"
    assert second.startswith("odcsim: warning: run: the traces of 2 minibatches take")


def test_clocks_that_differ_are_told(odcsim, tmp_path):
    documents = on_cpu(numbered_from=0)
    documents[1].host = "beta"
    for event in documents[1].events:
        event["ts"] += 1_500_000
    ended = odcsim("ingest", *write(documents, tmp_path), "-o", "run")
    assert "clocks: aligned by collectives, up to 1.5 s apart, within " in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([DATA[0]], "missing option '--out'"),
        (["-o", "run"], "missing argument 'FILE"),
        (["none.json", "-o", "run"], "none.json: no such file; give a trace of PyTorch's profiler"),
        ([DATA[0], "-o", "run"], "FILE...: no file of rank 1: "),
        ([DATA[0], DATA[0], "-o", "run"], "distributedInfo.rank: 0: is of the same rank as "),
        ([*DATA, "-o", DATA[0]], "--out: "),
    ],
)
def test_refusals(odcsim, tmp_path, arguments, message):
    ended = odcsim("ingest", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("odcsim: error: ")
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
