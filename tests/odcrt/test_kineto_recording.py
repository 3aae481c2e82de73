"""Files that PyTorch's profiler writes of FSDP2 on gloo, ingested and compared with what is known of the run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from profiled_training import SKIPPED, profiled  # noqa: E402
from ranks import run  # noqa: E402
from toy_models import Pipe, Toy  # noqa: E402

from odcsim.foreign import ingest, shares_of  # noqa: E402
from odcsim.trace_format import read_run, write_run  # noqa: E402

pytestmark = pytest.mark.timeout(100)

RANKS = 2
TRANSFERS = ("gather", "scatter_accumulate")
COMPUTE = ("forward", "backward")


def recorded(folder, **options):
    """What the project's own recorder saw on each rank, and the files of the profiler."""
    seen_D = run(profiled, folder, ranks=RANKS, timeout_s=90.0, **options)
    return seen_D, [Path(folder) / f"rank{rank}.json.gz" for rank in range(RANKS)]


def counts(spans, names):
    return Counter((name, unit, microbatch) for name, unit, microbatch, *_ in spans if name in names)


def rows(spans):
    return [(span.name, span.unit, span.microbatch, span.start_s, span.end_s) for span in spans]


def seconds(spans, names):
    totals = Counter()
    for name, unit, _, start_s, end_s in spans:
        if name in names:
            totals[name, unit] += end_s - start_s
    return totals


@pytest.mark.parametrize(
    ("options", "gathers"),
    [
        ({"make": Toy, "blocks": 3}, 2 * 4 - 1),
        ({"make": Toy, "blocks": 1, "clipped": True, "microbatches": 3}, 2 * 2 - 1),
        ({"make": Toy, "blocks": 2, "checkpointed": True}, 2 * 3 - 1),
        ({"make": Toy, "blocks": 2, "reshards": False}, 3),
    ],
)
def test_a_profiled_run_is_what_the_recorder_saw(tmp_path, options, gathers):
    seen_D, files = recorded(tmp_path, **options)
    ingested = ingest(files)
    microbatches, units = options.get("microbatches", 2), options["blocks"] + 1
    assert ingested.info.window == range(SKIPPED, SKIPPED + 2)
    assert ingested.microbatches_ND == ((microbatches,) * RANKS,) * 2
    assert ingested.units == ("", *(f"blocks.{block}" for block in range(units - 1)))
    assert ingested.info.versions["torch"] == torch.__version__
    assert ingested.info.clock.alignment == "shared"
    write_run(tmp_path / "run", ingested.info, ingested.spans_of_ranks)
    for seen, spans in zip(seen_D, read_run(tmp_path / "run").spans_of_ranks, strict=True):
        found = rows(spans)
        for microbatch in range(microbatches):
            named = Counter(name for name, _, number, *_ in found if number == microbatch)
            assert named["gather"] == 2 * gathers
            assert named["scatter_accumulate"] == 2 * units
        # Every stretch of compute has the same owner, whoever tells: hooks of the project, or the profiler's file.
        in_microbatches = [row for row in seen if row[2] >= 0]
        assert counts(found, COMPUTE + TRANSFERS) == counts(in_microbatches, COMPUTE + TRANSFERS)
        assert counts(found, ["optimizer"]) == counts(seen, ["optimizer"]) == {("optimizer", -1, -1): 2}
        # All of the time is somebody's, but for what lies between microbatches.
        wall_s = found[-1][4] - found[0][3]
        assert 0.0 <= shares_of(spans).other < 0.5
        assert sum(end_s - start_s for *_, start_s, end_s in found) <= wall_s * (1 + 1e-9)
        assert all(span.size_bytes > 0 for span in spans if span.name in TRANSFERS)


def test_times_are_those_of_the_recorder(tmp_path):
    slept_s = 0.02 * 2 * 2 * 2  # blocks, microbatches, minibatches
    seen_D, files = recorded(tmp_path, blocks=2, slow_ranks=range(RANKS), slow_s=0.02)
    for seen, spans in zip(seen_D, ingest(files).spans_of_ranks, strict=True):
        told_s, found_s = seconds(seen, COMPUTE), seconds(rows(spans), COMPUTE)
        assert set(told_s) == set(found_s)
        # Two observers of one process differ by what comes between their readings; by twice as much at least, if a
        # forward were taken for another's.
        assert sum(abs(told_s[key] - found_s[key]) for key in told_s) < slept_s


def test_a_slow_rank_makes_the_other_wait(tmp_path):
    slept_s = 0.03 * 2 * 2 * 2
    _, files = recorded(tmp_path, blocks=2, slow_ranks=[1], slow_s=0.03)
    ingested = ingest(files)
    waited_s_D = [sum(span.duration_s for span in spans if span.name == "wait") for spans in ingested.spans_of_ranks]
    assert waited_s_D[0] > 0.5 * slept_s
    assert waited_s_D[0] > waited_s_D[1]
    slept_in = seconds(rows(ingested.spans_of_ranks[1]), ["forward"])
    assert all(slept_in["forward", block] >= slept_s / 2 for block in (1, 2))
    shares_D = [shares_of(spans) for spans in ingested.spans_of_ranks]
    assert shares_D[0].waiting > shares_D[1].waiting
    assert shares_D[1].compute > shares_D[0].compute


def test_a_root_without_parameters(tmp_path):
    _, files = recorded(tmp_path, make=Pipe, blocks=2)
    ingested = ingest(files)
    assert ingested.units == ("", "blocks.0", "blocks.1")
    for spans in ingested.spans_of_ranks:
        found = rows(spans)
        assert {(name, unit) for name, unit, *_ in found if name in COMPUTE} == {
            (name, unit) for name in COMPUTE for unit in (0, 1, 2)
        }
        assert {unit for name, unit, *_ in found if name in TRANSFERS} == {1, 2}


def test_forwards_without_backward_are_told(tmp_path):
    _, files = recorded(tmp_path, evaluated=True)
    ingested = ingest(files)
    assert ingested.notes == ("2 forwards of rank 0 have no backward: their compute is left out",)
    for spans in ingested.spans_of_ranks:
        outside = [span for span in spans if span.microbatch == -1]
        assert {span.name for span in outside} - {"wait"} == {"gather", "optimizer"}


def test_collectives_beside_fsdp2_are_waited_for(tmp_path):
    _, files = recorded(tmp_path, clipped=True, slow_ranks=[1], slow_s=0.05)
    ingested = ingest(files)
    assert ingested.notes == ()
    # Between the last microbatch and the optimizer, norms of gradients are summed up over ranks.
    waited_s_D = [
        sum(span.duration_s for span in spans if span.name == "wait" and (span.unit, span.microbatch) == (-1, -1))
        for spans in ingested.spans_of_ranks
    ]
    assert waited_s_D[0] > 0.5 * 2 * 0.05
    assert waited_s_D[0] > waited_s_D[1]
