"""Run folders: what is written is read back, equal runs give equal bytes, and what is wrong is named with its place."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odcsim.engines import find_engine
from odcsim.errors import InputError, UnknownNameError
from odcsim.plan import Plan
from odcsim.schedule import Schedule, Work, decoder_visits
from odcsim.trace_format import (
    SPAN_NAMES,
    ClockInfo,
    RankMemory,
    RankTraceWriter,
    RunInfo,
    TraceSizeWarning,
    TraceSpan,
    clear_run,
    folder,
    planned_lengths,
    rank_file,
    read_run,
    read_run_info,
    simulated_spans_to_trace,
    to_chrome_trace,
    write_run,
    write_run_info,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace_format.md"


def info_of(world_size=2, *, window=range(3, 4), **changes):
    given = {
        "engine": "measured",
        "scenario": {"name": "unit-test", "workload": {"seed": 0}},
        "case": {"sync": "odc", "policy": "lb-mini", "transport": "shm", "compute": "emulated"},
        "world_size": world_size,
        "hosts": ("alpha",) * world_size,
        "clock": ClockInfo("perf_counter", "barriers", (0.0, -1.5, 0.25, 0.0)[:world_size], 2e-5, 1000.5),
        "versions": {"python": "3.11.7", "odcsim": "0.1.0"},
        "window": window,
        "plans": {3: (((700, 300), (512,)), ((1024,),))} if world_size == 2 and 3 in window else {},
        "counters": ({"transfers": 12, "barriers": 2},) * world_size,
        "processors": (4, 8, 8, 8)[:world_size],
        "memory": tuple(
            RankMemory(230_000_000 + rank, 4096, tuple(range(5000, 5000 + len(window)))) for rank in range(world_size)
        ),
    }
    return RunInfo(**{**given, **changes})


def step(name, start_s, end_s, *, unit=-1, minibatch=3, microbatch=-1, tokens=0, squared=0, size_bytes=0):
    return TraceSpan(name, unit, minibatch, microbatch, start_s, end_s, tokens, squared, size_bytes)


SPANS = (
    (
        step("publish", 0.0, 0.25),
        step("wait", 0.25, 0.5),
        step("gather", 0.5, 0.625, unit=0, microbatch=0, tokens=1000, squared=580_000, size_bytes=4096),
        step("forward", 0.625, 1.5, unit=0, microbatch=0, tokens=1000, squared=580_000),
        step("backward", 1.5, 2.75, unit=0, microbatch=0, tokens=1000, squared=580_000),
        step("scatter_accumulate", 2.75, 3.0, unit=0, microbatch=0, tokens=1000, squared=580_000, size_bytes=8192),
        step("settle", 4.0, 4.25),
        step("optimizer", 4.25, 4.5),
    ),
    (step("publish", 0.0, 0.125), step("wait", 0.125, 4.0), step("optimizer", 4.0, 4.5)),
)


@pytest.fixture
def run_folder(tmp_path):
    write_run(tmp_path / "run", info_of(), SPANS)
    return tmp_path / "run"


def lines_of(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)


def put_lines(path, lines):
    path.write_bytes(gzip.compress("".join(lines).encode()))


def change_line(path, number, **changes):
    """Change keys of a line (from 1); None takes the key out."""
    lines = lines_of(path)
    record = {**json.loads(lines[number - 1]), **changes}
    lines[number - 1] = json.dumps({key: value for key, value in record.items() if value is not None}) + "\n"
    put_lines(path, lines)


def change_info(run_folder, dotted, value):
    path = run_folder / "run.json"
    document = json.loads(path.read_text())
    *sections, key = dotted.split(".")
    holder = document
    for section in sections:
        holder = holder[section]
    if value is None:
        del holder[key]
    else:
        holder[key] = value
    path.write_text(json.dumps(document))


# What is written is what is read


def test_a_run_is_read_back_as_it_was_written(run_folder):
    run = read_run(run_folder)
    assert run.folder == run_folder
    assert run.info == info_of()
    assert run.spans_of_ranks == SPANS
    assert read_run_info(run_folder) == info_of()


def test_a_line_has_the_keys_of_the_format_in_their_order(run_folder):
    assert lines_of(rank_file(run_folder, 0))[2] == (
        '{"name":"gather","unit":0,"minibatch":3,"microbatch":0,"start_s":0.5,"end_s":0.625,"tokens":1000,'
        '"squared_tokens":580000,"bytes":4096}\n'
    )


def test_run_json_says_what_the_folder_is(run_folder):
    document = json.loads((run_folder / "run.json").read_text())
    assert document["schema"] == "odcsim.trace/1"
    assert document["window"] == {"first": 3, "count": 1}
    assert document["plans"] == [{"minibatch": 3, "ranks": [[[700, 300], [512]], [[1024]]]}]
    assert document["counters"][1] == {"transfers": 12, "barriers": 2}
    assert document["processors"] == [4, 8]
    assert document["memory"][1] == {"process": 230_000_001, "shared_memory": 4096, "training": [5000]}
    assert document["clock"]["offsets_s"] == [0.0, -1.5]
    assert {path.name for path in run_folder.iterdir()} == {"run.json", "rank-00000.jsonl.gz", "rank-00001.jsonl.gz"}


NUMBERS = st.integers(min_value=0, max_value=1 << 50)
TIMES = st.floats(min_value=-1e6, max_value=1e6)


@st.composite
def any_spans(draw):
    """Spans that start in order and compute one thing at a time, with times of any precision."""
    times = sorted(draw(st.lists(TIMES, min_size=2, max_size=14)))
    return [
        TraceSpan(
            draw(st.sampled_from(SPAN_NAMES)),
            draw(st.integers(-1, 200)),
            draw(st.integers(0, 4)),
            draw(st.integers(-1, 50)),
            *edges,
            draw(NUMBERS),
            draw(NUMBERS),
            draw(NUMBERS),
        )
        for edges in zip(times[::2], times[1::2], strict=False)
    ]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=any_spans())
def test_any_span_survives_to_the_last_bit_and_equal_runs_give_equal_bytes(tmp_path, spans):
    recorded = sorted({span.minibatch for span in spans})
    window = range(recorded[0], recorded[-1] + 1)
    filler = [step("wait", 0.0, 0.0, minibatch=minibatch) for minibatch in window]
    run = (info_of(window=window, plans={}), [spans, filler])
    write_run(tmp_path / "one", *run)
    write_run(tmp_path / "two", *run)
    assert read_run(tmp_path / "one").spans_of_ranks == (tuple(spans), tuple(filler))
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_a_trace_appears_whole_or_not_at_all(tmp_path):
    writer = RankTraceWriter(tmp_path / "new" / "run", rank=7)
    writer.write_spans(SPANS[0])
    assert not rank_file(tmp_path / "new" / "run", 7).exists()
    writer.close()
    writer.close()
    assert writer.path == tmp_path / "new" / "run" / "rank-00007.jsonl.gz"
    assert len(lines_of(writer.path)) == len(SPANS[0])


def test_a_trace_is_written_as_it_grows_and_without_the_time_of_day(tmp_path):
    with RankTraceWriter(tmp_path, rank=0) as writer:
        (unfinished,) = tmp_path.iterdir()
        writer.write_spans(step("wait", second / 7, second / 7) for second in range(40_000))
        assert unfinished.stat().st_size > 100_000
    assert writer.path.read_bytes()[4:8] == bytes(4)  # the header's time


def test_traces_may_be_read_by_whoever_may_read_run_json(tmp_path):
    previous = os.umask(0o027)
    try:
        write_run(tmp_path / "run", info_of(), SPANS)
    finally:
        os.umask(previous)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()} == {0o640}


def test_a_writer_left_by_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(AttributeError), RankTraceWriter(tmp_path, rank=0) as writer:
        writer.write_spans([*SPANS[0], None])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/run/rank-00000\.jsonl\.gz: cannot write here"):
        RankTraceWriter(tmp_path / "file" / "run", rank=0)


def test_clearing_takes_a_run_away_and_nothing_else(run_folder):
    (run_folder / "notes.txt").write_text("mine")
    unfinished = RankTraceWriter(run_folder, rank=4)
    clear_run(run_folder)
    assert [path.name for path in run_folder.iterdir()] == ["notes.txt"]
    clear_run(run_folder / "not there")
    unfinished.discard()


def test_writing_a_smaller_run_over_a_larger_one_leaves_no_trace_of_the_larger(run_folder):
    write_run(run_folder, info_of(1, counters=()), SPANS[:1])
    assert read_run(run_folder).spans_of_ranks == SPANS[:1]


def test_a_large_folder_is_warned_of(run_folder, monkeypatch):
    monkeypatch.setattr(folder, "_LARGE_BYTES", 200)
    with pytest.warns(TraceSizeWarning, match=r"traces of 1 minibatches take .* record fewer minibatches"):
        write_run_info(run_folder, info_of())


def test_a_folder_below_a_hundred_megabytes_is_not(run_folder):
    with rank_file(run_folder, 0).open("r+b") as stream:
        stream.truncate(99_000_000)
    write_run_info(run_folder, info_of())
    with rank_file(run_folder, 0).open("r+b") as stream:
        stream.truncate(101_000_000)
    with pytest.warns(TraceSizeWarning, match="take 101 MB"):
        write_run_info(run_folder, info_of())


def test_only_the_first_ranks_may_be_recorded(tmp_path):
    info = info_of(4, recorded_ranks=2)
    write_run(tmp_path, info, SPANS)
    assert read_run(tmp_path).info.recorded_ranks == 2
    assert read_run(tmp_path).spans_of_ranks == SPANS


def test_processors_and_memory_that_are_not_known(tmp_path):
    write_run(tmp_path, info_of(processors=(), memory=()), SPANS)
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["processors"] == document["memory"] == []
    assert read_run(tmp_path).info == info_of(processors=(), memory=())


@pytest.mark.parametrize("key", ["processors", "memory"])
def test_folders_of_earlier_versions_lack_processors_and_memory(run_folder, key):
    change_info(run_folder, key, value=None)
    assert read_run(run_folder).info == info_of(**{key: ()})


def test_keys_of_later_versions_are_passed_over(run_folder):
    change_info(run_folder, "case.invented_later", value=[1])
    change_info(run_folder, "invented_later", value={})
    change_line(rank_file(run_folder, 0), 1, invented_later="x")
    run = read_run(run_folder)
    assert run.info.case["invented_later"] == [1]
    assert run.spans_of_ranks == SPANS


# What cannot be used is named: file, place, reason, on one line


def refused(run_folder, *parts):
    with pytest.raises(InputError) as caught:
        read_run(run_folder)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text
    return caught.value


def test_what_is_no_run_folder(tmp_path, run_folder):
    refused(tmp_path / "nowhere", "nowhere: no such folder", "run.json")
    refused(run_folder / "run.json", "run.json: is a file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty: holds no run.json: this is no recorded run")


def test_a_run_that_did_not_end_says_so(tmp_path, run_folder):
    (run_folder / "run.json").unlink()
    refused(run_folder, "the run did not end in good order")
    unfinished = RankTraceWriter(tmp_path / "killed", rank=0)
    refused(tmp_path / "killed", "the run did not end in good order")
    unfinished.discard()


@pytest.mark.parametrize("schema", ["odcsim.trace/2", "odcsim.result/1", 1, None])
def test_another_version(run_folder, schema):
    change_info(run_folder, "schema", schema)
    error = refused(run_folder, "run.json: schema:", "'odcsim.trace/1'")
    assert error.value == schema


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "line 1: is not JSON"), ('{"schema":\n', "line 2: is not JSON"), ("[1]", "must be a JSON object")],
)
def test_run_json_that_is_damaged(run_folder, text, problem):
    (run_folder / "run.json").write_text(text)
    refused(run_folder, "run.json: ", problem)


MEMORY = {"process": 1, "shared_memory": 0, "training": [5]}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("world_size", None, "world_size: required key is missing"),
        ("world_size", 0, "world_size: 0: must be a whole number of at least 1"),
        ("world_size", True, "world_size: True: must be a whole number"),
        ("world_size", 3, "must hold an entry for each of the 3 ranks"),
        ("recorded_ranks", 3, "recorded_ranks: 3: must be a whole number from 1 to 2"),
        ("hosts", ["a"], "hosts: ['a']: must hold an entry for each of the 2 ranks"),
        ("hosts", ["a", 1], "hosts: ['a', 1]: must hold texts"),
        ("case.sync", None, "case.sync: required key is missing"),
        ("clock", "perf_counter", "clock: 'perf_counter': must be a JSON object"),
        ("clock.offsets_s", [0, "0"], "clock.offsets_s: [0, '0']: must hold finite numbers"),
        ("clock.uncertainty_s", float("nan"), "clock.uncertainty_s: nan: must be a finite number"),
        ("versions.torch", 2.13, "versions.torch: 2.13: must be a text"),
        ("window.count", 0, "window.count: 0: must be a whole number of at least 1"),
        ("window.first", -1, "window.first: -1: must be a whole number of at least 0"),
        ("counters", [{}], "counters: [{}]: must hold an entry for each of the 2 ranks"),
        ("counters", [{}, {"barriers": -1}], "counters.1.barriers: -1: must be a whole number of at least 0"),
        ("counters", [1, 2], "counters: [1, 2]: must hold JSON objects"),
        ("processors", 4, "processors: 4: must be a list"),
        ("processors", [4], "processors: [4]: must hold an entry for each of the 2 ranks"),
        ("processors", [4, 0], "processors: [4, 0]: must hold whole numbers of at least 1"),
        ("processors", [4, True], "processors: [4, True]: must hold whole numbers of at least 1"),
        ("memory", {}, "memory: {}: must be a list"),
        ("memory", [1, 2], "memory: [1, 2]: must hold JSON objects"),
        (
            "memory",
            [MEMORY],
            "run.json: memory: [{'process': 1, 'shared_memory': 0, 'training': [...]}]: must hold an entry for each",
        ),
        ("memory", [MEMORY, {"process": 1, "training": [1]}], "memory.1.shared_memory: required key is missing"),
        ("memory", [{**MEMORY, "process": -1}, MEMORY], "memory.0.process: -1: must be a whole number of at least 0"),
        ("memory", [MEMORY, {**MEMORY, "training": 5}], "memory.1.training: 5: must be a list"),
        (
            "memory",
            [MEMORY, {**MEMORY, "training": [5, 6]}],
            "memory.1.training: [5, 6]: must hold an entry for each of the 1 recorded minibatches",
        ),
        (
            "memory",
            [MEMORY, {**MEMORY, "training": [0.5]}],
            "memory.1.training: [0.5]: must hold whole numbers of at least 0",
        ),
        (
            "memory",
            [{**MEMORY, "process": 10**400}, MEMORY],
            "memory.0.process: a number of 1329 bits: must be at most",
        ),
        (
            "memory",
            [MEMORY, {**MEMORY, "training": [10**400]}],
            "memory.1.training: [a number of 1329 bits]: must hold numbers of at most 9223372036854775807",
        ),
        ("clock.uncertainty_s", 10**400, "clock.uncertainty_s: a number of 1329 bits: must be a finite number"),
        ("world_size", 10**400, "world_size: a number of 1329 bits: must be at most 9223372036854775807"),
        ("plans", [{"minibatch": 9, "ranks": []}], "plans.0.minibatch: 9: must be a whole number from 3 to 3"),
        ("plans", [{"minibatch": 3, "ranks": []}], "plans.0.ranks: []: must hold an entry for each of the 2 ranks"),
        (
            "plans",
            [{"minibatch": 3, "ranks": [[[5]], [[0]]]}],
            "plans.0.ranks: [[[...]], [[...]]]: must hold, for each",
        ),
    ],
)
def test_run_json_with_a_value_that_is_not_allowed(run_folder, key, value, problem):
    change_info(run_folder, key, value)
    refused(run_folder, f"{run_folder / 'run.json'}: ", problem)


def test_missing_ranks_are_named(tmp_path):
    write_run(tmp_path, info_of(4), [*SPANS, *SPANS])
    rank_file(tmp_path, 1).unlink()
    rank_file(tmp_path, 3).unlink()
    refused(tmp_path, "no trace of rank 1, 3 (rank-00001.jsonl.gz), though 4 ranks were recorded")


def test_a_trace_of_another_run_is_named(run_folder):
    rank_file(run_folder, 1).rename(rank_file(run_folder, 1).with_name("rank-00002.jsonl.gz"))
    refused(run_folder, "no trace of rank 1")
    with RankTraceWriter(run_folder, rank=1):
        pass
    refused(run_folder, "rank-00002.jsonl.gz: belongs to another run: this one recorded ranks 0 to 1")


def test_a_trace_cut_in_the_middle_of_a_line(run_folder):
    path = rank_file(run_folder, 0)
    lines = lines_of(path)
    put_lines(path, [*lines[:4], lines[4][:40]])
    refused(run_folder, "rank-00000.jsonl.gz: line 5: the trace is cut off in the middle of this line")


def test_a_trace_whose_compressed_data_are_cut(tmp_path):
    many = [step("wait", second, second + 0.5, microbatch=second % 97) for second in range(20_000)]
    write_run(tmp_path, info_of(), [many, SPANS[1]])
    path = rank_file(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    error = refused(tmp_path, "rank-00000.jsonl.gz: line ", "the trace is cut off here")
    # The line named is the first that is not whole.
    unpacked = zlib.decompressobj(31).decompress(whole[: len(whole) // 2])
    assert error.key == f"line {unpacked.count(10) + 1}"


def test_a_trace_that_is_not_gzip(run_folder):
    rank_file(run_folder, 1).write_bytes(b"plain text\n")
    refused(run_folder, "rank-00001.jsonl.gz: line 1: is not whole gzip data")


def test_a_rank_without_spans_is_not_a_file_of_nothing(run_folder):
    put_lines(rank_file(run_folder, 1), [])
    assert read_run(run_folder).spans_of_ranks[1] == ()
    rank_file(run_folder, 1).write_bytes(b"")
    refused(run_folder, "rank-00001.jsonl.gz: line 1: the trace is cut off here")


def test_damaged_data_are_noticed(run_folder):
    path = rank_file(run_folder, 0)
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 0xFF  # in the check sum
    path.write_bytes(whole)
    refused(run_folder, "rank-00000.jsonl.gz: line 9: is not whole gzip data")


@pytest.mark.parametrize("line", ["{", "nonsense", '"gather"', "[]", "", "\xff"])
def test_a_line_that_is_no_span(run_folder, line):
    path = rank_file(run_folder, 0)
    put_lines(path, [*lines_of(path)[:2], line + "\n", *lines_of(path)[2:]])
    refused(run_folder, "rank-00000.jsonl.gz: line 3: ", "JSON")


def test_an_unknown_span_name(run_folder):
    change_line(rank_file(run_folder, 0), 4, name="forwards")
    with pytest.raises(UnknownNameError, match=r"line 4: 'forwards': unknown span name; did you mean 'forward'\?"):
        read_run(run_folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bytes": None}, "the span lacks the key 'bytes'"),
        ({"unit": 1.0}, "1.0: unit must be a whole number of at least -1"),
        ({"unit": -2}, "-2: unit must be a whole number of at least -1"),
        ({"microbatch": True}, "True: microbatch must be a whole number of at least -1"),
        ({"tokens": -1}, "-1: tokens must be a whole number of at least 0"),
        ({"bytes": "4 kB"}, "'4 kB': bytes must be a whole number of at least 0"),
        ({"start_s": "0.5"}, "'0.5': start_s must be a finite number of seconds"),
        ({"end_s": 10**400}, "a number of 1329 bits: end_s must be a finite number of seconds"),
        ({"tokens": 10**400}, "a number of 1329 bits: tokens must be at most 9223372036854775807"),
        ({"end_s": float("inf")}, "inf: end_s must be a finite number of seconds"),
        ({"end_s": 0.25}, "the span ends at 0.25 s, before its start at 0.5 s"),
        ({"minibatch": 4}, "4: is a minibatch that was not recorded; run.json says 3 to 3"),
    ],
)
def test_a_span_with_a_value_that_cannot_be(run_folder, changes, problem):
    change_line(rank_file(run_folder, 0), 3, **changes)
    refused(run_folder, f"rank-00000.jsonl.gz: line 3: {problem}")


def test_spans_of_compute_that_overlap(run_folder):
    path = rank_file(run_folder, 0)
    change_line(path, 5, start_s=1.499)
    refused(run_folder, "rank-00000.jsonl.gz: line 5: backward starts at 1.499 s, while the forward before it lasts")
    change_line(path, 5, start_s=1.4999995)  # less than clocks tell apart
    assert read_run(run_folder).spans_of_ranks[0][4].start_s == 1.4999995


def test_overlap_is_seen_across_spans_of_other_kinds(run_folder):
    spans = [step("backward", 0.0, 9.0), step("gather", 1.0, 2.0), step("wait", 2.0, 2.0), step("optimizer", 8.0, 9.5)]
    write_run(run_folder, info_of(), [spans, SPANS[1]])
    refused(run_folder, "line 4: optimizer starts at 8 s, while the backward before it lasts until 9 s")


def test_transfers_may_run_beside_compute(run_folder):
    spans = [step("forward", 0.0, 9.0), step("gather", 1.0, 2.0), step("scatter_accumulate", 1.5, 8.0)]
    write_run(run_folder, info_of(), [spans, SPANS[1]])
    assert list(read_run(run_folder).spans_of_ranks[0]) == spans


def test_a_clock_that_jumps_back(run_folder):
    change_line(rank_file(run_folder, 1), 3, start_s=0.1, end_s=0.2)
    refused(run_folder, "rank-00001.jsonl.gz: line 3: starts at 0.1 s, before the line above, at 0.125 s", "clock")


def test_an_empty_window(run_folder):
    for rank in range(2):
        put_lines(rank_file(run_folder, rank), [])
    refused(run_folder, f"{run_folder}: no rank has a span: nothing ran in the recorded window")


def test_a_minibatch_of_which_nothing_was_recorded(run_folder):
    change_info(run_folder, "window.count", 2)
    change_info(run_folder, "memory", [])
    refused(run_folder, "run.json: window.count: 2: no rank has a span of minibatch 4")


# Simulated runs


LENGTHS = np.array([700, 300, 512, 1024, 40])
PLAN = Plan(ranks=(((0, 1), (2,)), ((3,), (4,))))


def simulated(engine, *, sync="odc", overlap="prefetch"):
    """One minibatch of a decoder of two blocks on two ranks."""
    visits = decoder_visits(2)
    gathers = np.array([float(visit.gathers) for visit in visits])
    reduces = np.array([float(visit.reduces) for visit in visits])
    schedule = Schedule(
        sync=sync,
        overlap=overlap,
        visits=visits,
        gather_s_V=0.003 * gathers,
        reduce_s_V=0.005 * reduces,
        publish_s=0.01,
        settle_s=0.02,
        optimizer_s=0.03,
    )
    loads = PLAN.loads(LENGTHS)
    work = Work(loads.counts_D[None], loads.tokens_DM[None, ..., None], np.full((1, len(visits)), 1e-4))
    return find_engine(engine)(work, schedule, recorded_ranks=2)


@pytest.mark.parametrize("engine", ["recurrence", "events"])
@pytest.mark.parametrize("sync", ["odc", "fsdp"])
@pytest.mark.parametrize("overlap", ["prefetch", "none"])
def test_a_simulated_run_goes_through_the_same_format(tmp_path, engine, sync, overlap):
    outcome = simulated(engine, sync=sync, overlap=overlap)
    plan = planned_lengths(PLAN, LENGTHS)
    assert plan == (((700, 300), (512,)), ((1024,), (40,)))
    sizes = {"gather": 100, "scatter_accumulate": 1000}
    spans_of_ranks = simulated_spans_to_trace(
        outcome.spans, plan=plan, minibatch=3, start_s=2.0, bytes_of=lambda name, unit: sizes[name] + unit
    )
    write_run(tmp_path, info_of(engine=engine, plans={3: plan}), spans_of_ranks)
    run = read_run(tmp_path)
    assert run.info.engine == engine
    assert run.spans_of_ranks == spans_of_ranks
    for rank, spans in enumerate(run.spans_of_ranks):
        # Every span of the engine, at its time, and the compute that the outcome counts.
        assert len(spans) == sum(span.rank == rank for span in outcome.spans)
        computed_s = sum(span.duration_s for span in spans if span.name in {"forward", "backward"})
        assert computed_s == pytest.approx(outcome.compute_s_ND[0, rank])
        assert {span.minibatch for span in spans} == {3}
        assert max(span.end_s for span in spans) == pytest.approx(2.0 + outcome.minibatch_s_N[0])
        gathers = [span for span in spans if span.name == "gather"]
        assert len(gathers) == 2 * 5  # 2U - 1 of 3 units in each of 2 microbatches
        assert all(span.size_bytes == 100 + span.unit for span in gathers)
        tokens = {(span.microbatch, span.tokens, span.squared_tokens) for span in spans if span.name != "wait"}
        assert tokens - {(-1, 0, 0)} == {
            (position, sum(lengths), sum(s * s for s in lengths)) for position, lengths in enumerate(plan[rank])
        }
        assert all(span.size_bytes == 0 for span in spans if span.name not in sizes)


def test_ranks_without_spans_keep_their_place():
    outcome = simulated("events")
    only_last = [span for span in outcome.spans if span.rank == 1]
    spans_of_ranks = simulated_spans_to_trace(only_last, plan=planned_lengths(PLAN, LENGTHS))
    assert [len(spans) for spans in spans_of_ranks] == [0, len(only_last)]
    assert simulated_spans_to_trace([], plan=()) == ()


# Export


def exported(run_folder, path, **options):
    to_chrome_trace(read_run(run_folder), path, **options)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as stream:
        return json.load(stream)


def test_a_chrome_trace_has_a_process_a_rank_and_a_thread_a_stream(run_folder, tmp_path):
    document = exported(run_folder, tmp_path / "trace.json")
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert names == {
        (rank, thread): name for rank in (0, 1) for thread, name in enumerate(("compute", "gather", "reduce"))
    }
    processes = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert processes == ["rank 0 (alpha)", "rank 1 (alpha)"]
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == sum(map(len, SPANS))
    assert spans[2] == {
        "ph": "X",
        "pid": 0,
        "tid": 1,
        "name": "gather",
        "cat": "gather",
        "ts": 500_000.0,
        "dur": 125_000.0,
        "args": {
            "unit": 0,
            "minibatch": 3,
            "microbatch": 0,
            "tokens": 1000,
            "squared_tokens": 580_000,
            "bytes": 4096,
        },
    }
    assert [event["tid"] for event in spans if event["name"] in {"wait", "scatter_accumulate"}] == [0, 2, 0]
    # All ranks' events are in it: no single rank may be claimed.
    assert document["distributedInfo"] == {"backend": "shm", "world_size": 2, "ranks": [0, 1]}


def test_a_chrome_trace_of_one_rank_carries_it_as_kineto_does(run_folder, tmp_path):
    document = exported(run_folder, tmp_path / "trace.json.gz", rank=1)
    assert document["distributedInfo"] == {"backend": "shm", "world_size": 2, "rank": 1}
    assert {event["pid"] for event in document["traceEvents"]} == {1}
    assert document["schemaVersion"] == 1


def test_chrome_traces_are_deterministic_and_name_a_rank_that_is_not_there(run_folder, tmp_path):
    exported(run_folder, tmp_path / "a.json.gz")
    exported(run_folder, tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    with pytest.raises(InputError, match="rank: 2: was not recorded; allowed: 0 to 1"):
        exported(run_folder, tmp_path / "c.json", rank=2)
    assert not (tmp_path / "c.json").exists()


def test_spans_of_a_thread_do_not_overlap_so_that_viewers_do_not_nest_them(tmp_path):
    spans_of_ranks = simulated_spans_to_trace(simulated("events").spans, plan=planned_lengths(PLAN, LENGTHS))
    write_run(tmp_path, info_of(window=range(1)), spans_of_ranks)
    document = exported(tmp_path, tmp_path / "trace.json")
    until = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            thread = event["pid"], event["tid"]
            assert event["ts"] >= until.get(thread, 0.0) - 0.002  # microseconds, rounded to nanoseconds
            until[thread] = event["ts"] + event["dur"]


# The page


def test_the_page_has_every_name_and_key_and_no_other(run_folder):
    def first_cells(heading):
        section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
        (text,) = [part for part in section if part.startswith(f"{heading}\n")]
        return [match[1] for match in re.finditer(r"^\| `([^`]+)`", text, flags=re.MULTILINE)]

    line = json.loads(lines_of(rank_file(run_folder, 0))[0])
    assert first_cells("A line") == list(line)
    assert first_cells("Names") == list(SPAN_NAMES)
    document = json.loads((run_folder / "run.json").read_text())
    documented = first_cells("run.json")
    flat = [f"{key}.{inner}" for key in ("clock", "window") for inner in document[key]]
    assert sorted(documented) == sorted([key for key in document if key not in {"clock", "window"}] + flat)


def test_times_of_a_rank_are_its_readings_less_its_offset_and_the_origin():
    clock = info_of().clock
    assert clock.zero_s(0) == 1000.5
    assert clock.zero_s(1) == 999.0
    assert ClockInfo.shared(3, origin_s=7.0).zero_s(2) == 7.0


def test_a_run_info_of_contradictions_is_a_mistake_of_ours():
    for changes in (
        {"hosts": ("a",)},
        {"window": range(0, 4, 2)},
        {"window": range(5, 6)},
        {"counters": ({},)},
        {"recorded_ranks": 3},
    ):
        with pytest.raises(AssertionError):
            replace(info_of(), **changes)


def test_numpy_numbers_are_written_as_plain_ones():
    span = TraceSpan("wait", -1, 0, -1, np.float64(0.1), np.float64(0.3))
    assert json.loads(span.to_line())["start_s"] == 0.1
