"""Runs that cannot be trusted, and runs of something else: each is refused in one line that names the place."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from known_machine import CHANGES, Machine

from odcsim.analysis.calibrate import calibrate
from odcsim.analysis.validate import validate
from odcsim.errors import InputError
from odcsim.scenario import parse_scenario
from odcsim.trace_format import rank_file, read_run

SCENARIO = Path("a.yaml")
SMALL = {**CHANGES, "workload.minibatches": 3}


def calibrated(folder, document):
    calibrate([read_run(folder)])


def validated(folder, document):
    validate(parse_scenario(document), [read_run(folder)], base_folder=Path(), file=SCENARIO)


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory):
    """Where runs are recorded once, to be copied."""
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture
def folders(recorded_once, tmp_path, changed):
    """Copies by sync of an fsdp run and of an odc run of the small scenario, to be spoilt."""
    for case, sync in enumerate(("fsdp", "odc")):
        if not (recorded_once / sync).exists():
            Machine().record(recorded_once / sync, changed(SMALL), case=case)
    return {sync: Path(shutil.copytree(recorded_once / sync, tmp_path / sync)) for sync in ("fsdp", "odc")}


def refused(use, folder, document, *parts):
    """What `use` says of a run: one line, that names the folder or a file of it."""
    with pytest.raises(InputError) as caught:
        use(folder, document)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(folder)), text
    for part in parts:
        assert part in text, text
    return caught.value


# Ways to spoil a folder


def lines_of(folder, rank):
    return gzip.decompress(rank_file(folder, rank).read_bytes()).decode().splitlines(keepends=True)


def put(folder, rank, lines):
    rank_file(folder, rank).write_bytes(gzip.compress("".join(lines).encode()))


def change_spans(folder, rank, change):
    """Put what `change` makes of a rank's records (None drops one) in their place."""
    records = [change(json.loads(line)) for line in lines_of(folder, rank)]
    put(folder, rank, [json.dumps(record) + "\n" for record in records if record is not None])


def change_info(folder, dotted, value):
    path = folder / "run.json"
    document = json.loads(path.read_text())
    *sections, key = dotted.split(".")
    holder = document
    for section in sections:
        holder = holder[section]
    holder[key] = value
    path.write_text(json.dumps(document))


def cut_gzip(folder):
    content = rank_file(folder, 1).read_bytes()
    rank_file(folder, 1).write_bytes(content[: len(content) // 2])


def cut_line(folder):
    lines = lines_of(folder, 1)
    put(folder, 1, [*lines[:9], lines[9][:40]])


def cut_after_a_line(folder):
    """Whole lines, whole gzip, and yet the end is missing."""
    put(folder, 1, lines_of(folder, 1)[:-60])


def not_compressed(folder):
    rank_file(folder, 1).write_text("".join(lines_of(folder, 1)))


def remove_rank(folder):
    rank_file(folder, 2).unlink()


def add_rank(folder):
    put(folder, 4, lines_of(folder, 0))


def empty_rank(folder):
    put(folder, 1, [])


def empty_file(folder):
    rank_file(folder, 3).write_bytes(b"")


def no_spans_at_all(folder):
    for rank in range(4):
        put(folder, rank, [])


def no_window(folder):
    change_info(folder, "window.count", 0)


def one_minibatch_missing(folder):
    for rank in range(4):
        change_spans(folder, rank, lambda span: span if span["minibatch"] != 1 else None)


def one_minibatch_missing_on_a_rank(folder):
    change_spans(folder, 2, lambda span: span if span["minibatch"] != 1 else None)


def clock_back(folder):
    """From the middle of the run on, between two spans, a rank's clock is a second behind."""
    spans = [json.loads(line) for line in lines_of(folder, 1)]
    moment = spans[len(spans) // 2]["start_s"]

    def shifted(span):
        late = span["start_s"] >= moment
        return {**span, **{key: span[key] - late for key in ("start_s", "end_s")}}

    change_spans(folder, 1, shifted)


def jump(folder, rank, by_s, *, minibatch=1):
    """A rank's clock jumps within a minibatch, shortly before the end of its longest span of compute."""
    spans = [json.loads(line) for line in lines_of(folder, rank)]
    inside = [span for span in spans if span["minibatch"] == minibatch and span["name"] in {"forward", "backward"}]
    moment = max(inside, key=lambda span: span["end_s"] - span["start_s"])["end_s"] - 1e-9

    def shifted(span):
        return {**span, **{key: span[key] + by_s * (span[key] > moment) for key in ("start_s", "end_s")}}

    change_spans(folder, rank, shifted)


def another_model(folder):
    change_spans(folder, 0, lambda span: {**span, "unit": 7} if span["unit"] == 2 else span)


def more_microbatches_than_planned(folder):
    change_spans(folder, 0, lambda span: {**span, "microbatch": span["microbatch"] + (span["microbatch"] >= 0)})


def some_ranks_recorded(folder):
    change_info(folder, "recorded_ranks", 2)
    for rank in (2, 3):
        rank_file(folder, rank).unlink()


def without_tokens(folder):
    for rank in range(4):
        change_spans(folder, rank, lambda span: {**span, "tokens": 0, "squared_tokens": 0})


def without_compute(folder):
    for rank in range(4):
        change_spans(folder, rank, lambda span: span if span["name"] not in {"forward", "backward"} else None)


def no_sync(folder):
    change_info(folder, "case.sync", "ddp")


def ranks_swapped(folder):
    one, two = lines_of(folder, 0), lines_of(folder, 1)
    put(folder, 0, two)
    put(folder, 1, one)


BOTH = {
    cut_gzip: ["rank-00001.jsonl.gz: line ", "cut off"],
    cut_line: ["rank-00001.jsonl.gz: line 10: ", "cut off in the middle of this line"],
    cut_after_a_line: ["rank-00001.jsonl.gz: "],
    not_compressed: ["rank-00001.jsonl.gz: line 1: is not whole gzip data"],
    remove_rank: ["no trace of rank 2 (rank-00002.jsonl.gz), though 4 ranks were recorded"],
    add_rank: ["rank-00004.jsonl.gz: belongs to another run"],
    empty_rank: ["rank-00001.jsonl.gz: has no span of minibatch 0"],
    empty_file: ["rank-00003.jsonl.gz: line 1: ", "cut off"],
    no_spans_at_all: ["no rank has a span"],
    no_window: ["run.json: window.count: 0: must be a whole number of at least 1"],
    one_minibatch_missing: ["run.json: window.count: 3: no rank has a span of minibatch 1"],
    one_minibatch_missing_on_a_rank: ["rank-00002.jsonl.gz: has no span of minibatch 1"],
    clock_back: ["rank-00001.jsonl.gz: line ", "clock jumped"],
    another_model: ["run.json: scenario.model.layers: 2: ", "unit 7"],
    more_microbatches_than_planned: ["rank-00000.jsonl.gz: minibatch 0 has spans of ", "run.json plans "],
    some_ranks_recorded: ["run.json: recorded_ranks: 2: only ranks 0 to 1 of 4 were recorded"],
    without_tokens: ["does not say how many tokens"],
    without_compute: ["no rank has a span of compute"],
    no_sync: ["run.json: case"],
    ranks_swapped: ["rank-0000", "tokens", "run.json"],
}


@pytest.mark.parametrize("use", [calibrated, validated])
@pytest.mark.parametrize("sync", ["fsdp", "odc"])
@pytest.mark.parametrize("spoil", BOTH, ids=[spoil.__name__ for spoil in BOTH])
def test_a_run_that_cannot_be_trusted(folders, changed, use, sync, spoil):
    folder = folders[sync]
    spoil(folder)
    refused(use, folder, changed(SMALL), *BOTH[spoil])


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
@pytest.mark.parametrize("use", [calibrated, validated])
def test_a_run_as_it_was_recorded_is_used(folders, changed, use, sync):
    """Whatever is refused here is refused for what was done to it."""
    use(folders[sync], changed(SMALL))


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("sync", ["fsdp", "odc"])
@pytest.mark.parametrize("by_s", [5e-3, -5e-3])
@pytest.mark.parametrize("use", [calibrated, validated])
def test_a_clock_that_jumped_within_a_span(folders, changed, use, sync, rank, by_s):
    """Its rank's lines are in order still. But others go on before it has arrived, or it before the others."""
    jump(folders[sync], rank, by_s, minibatch=0)
    error = refused(use, folders[sync], changed(SMALL), f"rank {rank}", "clock", "jumped")
    assert "minibatch 0" in str(error) or "minibatch 1" in str(error)


@pytest.mark.parametrize("sync", ["fsdp", "odc"])
def test_a_clock_may_be_off_by_as_much_as_its_alignment_admits(folders, changed, sync):
    jump(folders[sync], 1, 5e-3)
    change_info(folders[sync], "clock.uncertainty_s", 2.5e-3)
    calibrated(folders[sync], changed(SMALL))


# Collectives that do not fit together


def drop_one(folder):
    spans = [json.loads(line) for line in lines_of(folder, 2)]
    at = next(place for place, span in enumerate(spans) if span["name"] == "gather" and span["minibatch"] == 1)
    put(folder, 2, [json.dumps(span) + "\n" for place, span in enumerate(spans) if place != at])


def drop_the_last(folder):
    spans = [json.loads(line) for line in lines_of(folder, 2)]
    last = max(place for place, span in enumerate(spans) if span["name"] == "scatter_accumulate")
    put(folder, 2, [json.dumps(span) + "\n" for place, span in enumerate(spans) if place != last])


def another_unit(folder):
    change_spans(folder, 3, lambda span: {**span, "unit": 1} if span["name"] == "gather" else span)


COLLECTIVES = {
    drop_one: ["rank-00002.jsonl.gz: collective ", "on rank 0 a gather of unit "],
    drop_the_last: ["rank-00002.jsonl.gz: has ", "collectives, but rank 0 has "],
    another_unit: [
        "rank-00003.jsonl.gz: collective 0 is a gather of unit 1 in minibatch 0, but on rank 0 a gather of unit 0"
    ],
}


@pytest.mark.parametrize("use", [calibrated, validated])
@pytest.mark.parametrize("spoil", COLLECTIVES, ids=[spoil.__name__ for spoil in COLLECTIVES])
def test_ranks_with_different_collectives(folders, changed, use, spoil):
    spoil(folders["fsdp"])
    refused(use, folders["fsdp"], changed(SMALL), *COLLECTIVES[spoil])


@pytest.mark.parametrize(("sync", "text"), [("fsdp", "has no all-gather"), ("odc", "has no gather")])
def test_a_run_without_transfers_tells_nothing_of_them(folders, changed, sync, text):
    for rank in range(4):
        change_spans(folders[sync], rank, lambda span: span if not span["bytes"] else None)
    refused(calibrated, folders[sync], changed(SMALL), text)


# Runs of something else


OTHERS = {
    "workload.seed": 1,
    "workload.lengths": {"lognormal": {"mean": 2000, "sigma": 1.0, "max": 8192}},
    "workload.samples_per_rank": 3,
    "workload.max_tokens": 9000,
    "workload.cut_tokens": 5000,
    "workload.oversize": "truncate",
    "cluster.gpus_per_node": 2,
    "cluster.nodes": 2,
    "cluster.rank_speeds": {1: 0.5},
    "cluster.slowdowns": {"probability": 0.5, "factor": 2.0},
    "cluster.compute_noise": 0.1,
    "planning": {"cost": "tokens"},
    "model.ffn": 256,
    "model.layers": 3,
    "training.recompute": "none",
    "training.reduce_dtype": "bf16",
}


@pytest.mark.parametrize("key", OTHERS)
def test_a_run_of_another_scenario(folders, changed, key):
    """Its run.json says so, and that is where the error points to."""
    error = refused(validated, folders["odc"], changed({**SMALL, key: OTHERS[key]}), "run.json: ", "a.yaml has ")
    assert error.key in {"world_size", f"scenario.{key}", "scenario.workload.source", "scenario.training"}
    assert "of another scenario" in str(error)


def test_values_of_lengths_are_told_apart(tmp_path, changed):
    """As many, as long in the mean and at most; yet others."""
    one, other = ({**SMALL, "workload.lengths": {"values": values}} for values in ([10, 20, 30, 40], [10, 15, 35, 40]))
    folder = Machine().record(tmp_path / "run", changed(one)).folder
    refused(validated, folder, changed(other), "run.json: ", "of another scenario")


@pytest.mark.parametrize(
    "cases",
    [
        [{"sync": "fsdp", "policy": "lb-micro"}],
        [{"sync": "odc", "policy": "lb-micro"}],
        [{"sync": "fsdp", "policy": "lb-mini", "pad": True}],
    ],
)
def test_a_case_that_the_scenario_does_not_have(folders, changed, cases):
    document = changed({**SMALL, "cases": cases})
    known = f"it has: {cases[0]['sync']} {cases[0]['policy']}"
    refused(validated, folders["odc"], document, "run.json: case: 'odc lb-mini': a.yaml has no such case", known)


def test_padding_sets_a_case_apart(tmp_path, changed):
    padded = {"sync": "odc", "policy": "lb-mini", "pad": True}
    folder = Machine().record(tmp_path / "run", changed({**SMALL, "cases": [padded]})).folder
    refused(validated, folder, changed(SMALL), "run.json: case: ", "no such case")


def test_an_overlap_that_there_is_not(folders, changed):
    change_info(folders["odc"], "case.overlap", "fast")
    refused(
        validated,
        folders["odc"],
        changed(SMALL),
        "run.json: case.overlap: 'fast': allowed: prefetch, gather-only, none",
    )


def test_runs_of_one_case_that_share_no_minibatch(tmp_path, changed):
    document = changed(SMALL)
    runs = [
        Machine().record(tmp_path / name, document, window=window)
        for name, window in (("early", range(1)), ("late", range(1, 3)))
    ]
    with pytest.raises(InputError, match=r"late: shares no minibatch with .*early, a run of the same case"):
        validate(parse_scenario(document), runs, base_folder=Path(), file=SCENARIO)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "scenario.cluster.rank_speeds",
            {"9": 0.5},
            "run.json: scenario.cluster.rank_speeds.9: 0.5: the key must be a rank",
        ),
        ("scenario.cluster.rank_speeds", {"1": 0}, "run.json: scenario.cluster.rank_speeds.1: 0: must be more than 0"),
        ("scenario.cluster.rank_speeds", 3, "run.json: scenario.cluster.rank_speeds: 3: must be a JSON object"),
        (
            "scenario.cluster.slowdowns",
            {"probability": 0.1},
            "run.json: scenario.cluster.slowdowns.factor: required key",
        ),
        (
            "scenario.cluster.slowdowns",
            {"probability": 2, "factor": 2},
            "run.json: scenario.cluster.slowdowns.probability: 2: must be from 0 to 1",
        ),
        ("scenario.cluster.compute_noise", -1, "run.json: scenario.cluster.compute_noise: -1: must be from 0 to 10"),
        (
            "scenario.cluster.compute_noise",
            "x",
            "run.json: scenario.cluster.compute_noise: 'x': must be a finite number",
        ),
        ("scenario.cluster", 3, "run.json: scenario.cluster: 3: must be a JSON object"),
    ],
)
def test_speeds_that_no_scenario_can_have(folders, changed, key, value, text):
    change_info(folders["odc"], key, value)
    refused(calibrated, folders["odc"], changed(SMALL), text)
