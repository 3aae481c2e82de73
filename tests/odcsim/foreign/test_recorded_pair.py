"""A pair of files that PyTorch's profiler wrote (see tests/odcrt/profiled_training.py): two blocks, two minibatches.

FSDP2 on gloo, two ranks, torch 2.13; rank 1 sleeps 10 ms in the forward of every block, and before it clips gradients.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from odcsim.foreign import ingest, shares_of
from odcsim.trace_format import read_run, write_run

DATA = Path(__file__).resolve().parents[3] / "traces" / "profiler"
SLEEP_S = 0.01


@pytest.fixture(scope="module")
def run():
    return ingest(sorted(DATA.glob("*.json.gz")))


def test_what_was_run(run):
    assert run.units == ("", "blocks.0", "blocks.1")
    assert run.microbatches_ND == ((2, 2), (2, 2))
    assert run.notes == ()
    assert run.info.window == range(2, 4)
    assert run.info.case["transport"] == "gloo"
    assert run.info.hosts == ("host", "host")
    assert run.info.versions["torch"].startswith("2.13")
    assert (run.info.clock.alignment, run.info.clock.offsets_s) == ("shared", (0.0, 0.0))
    assert 0 < run.info.clock.uncertainty_s < 0.005


def test_every_reader_takes_it(run, tmp_path):
    write_run(tmp_path, run.info, run.spans_of_ranks)
    read = read_run(tmp_path)
    assert (read.info, read.spans_of_ranks) == (run.info, run.spans_of_ranks)


@pytest.mark.parametrize("rank", [0, 1])
def test_transfers_and_compute_of_every_microbatch(run, rank):
    spans = run.spans_of_ranks[rank]
    for minibatch in run.info.window:
        for microbatch in range(2):
            found = [span for span in spans if (span.minibatch, span.microbatch) == (minibatch, microbatch)]
            assert Counter((span.name, span.unit) for span in found if span.stream != "compute") == {
                ("gather", 0): 1,
                ("gather", 1): 2,
                ("gather", 2): 2,
                **{("scatter_accumulate", unit): 1 for unit in range(3)},
            }
            for name in ("forward", "backward"):
                assert {span.unit for span in found if span.name == name} == {0, 1, 2}
    assert Counter(span.minibatch for span in spans if span.name == "optimizer") == {2: 1, 3: 1}


def test_bytes_are_those_of_the_shards(run):
    sizes = {(span.name, span.unit): span.size_bytes for span in run.spans_of_ranks[0] if span.stream != "compute"}
    assert sizes["gather", 1] == sizes["gather", 2]
    assert sizes["scatter_accumulate", 1] == sizes["scatter_accumulate", 2]
    # Parts of a block are gathered, but not used: they have no gradient to reduce.
    assert sizes["scatter_accumulate", 1] < sizes["gather", 1]
    # The root has an embedding and a head of 11 x 5 float32 numbers each; of either, 6 rows are moved, with padding.
    assert sizes["gather", 0] == sizes["scatter_accumulate", 0] == 2 * 6 * 5 * 4


def test_the_slow_rank_computes_and_the_other_one_waits(run):
    slept_s = SLEEP_S * 2 * 2 * 2
    waited_s_D = [sum(span.duration_s for span in spans if span.name == "wait") for spans in run.spans_of_ranks]
    assert waited_s_D[0] > slept_s
    assert waited_s_D[1] < 0.5 * slept_s
    for span in run.spans_of_ranks[1]:
        # Each forward of a block is cut in two by its gather; the sleep is in the second half.
        assert span.name != "wait" or span.duration_s < SLEEP_S
    shares_D = [shares_of(spans) for spans in run.spans_of_ranks]
    assert shares_D[0].waiting > 3 * shares_D[1].waiting
    assert all(shares.other < 0.2 for shares in shares_D)


def test_clipping_is_waited_for(run):
    waits = [span for span in run.spans_of_ranks[0] if span.name == "wait" and span.unit == -1]
    assert sum(span.duration_s for span in waits) > 0.5 * 2 * SLEEP_S
