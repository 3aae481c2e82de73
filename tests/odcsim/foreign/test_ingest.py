"""Runs whose every moment is known come back as they were: under gloo on the CPU, and under NCCL on a GPU."""

from __future__ import annotations

import pytest
from kineto_files import ELEMENTS, ITEM_BYTES, ORIGIN_US, on_cpu, on_gpu, path_of, write

from odcsim.foreign import ingest, shares_of
from odcsim.foreign import kineto as kineto_module

SIZES = [{}, {"blocks": 1}, {"ranks": 4, "blocks": 5, "microbatches": 3}, {"minibatches": 1, "microbatches": 1}]
BOTH = pytest.mark.parametrize("make", [on_cpu, on_gpu])


def microseconds(spans, *, zero_us=0):
    return sorted(
        (
            round(span.start_s * 1e6) + zero_us,
            round(span.end_s * 1e6) + zero_us,
            span.name,
            span.unit,
            span.minibatch,
            span.microbatch,
        )
        for span in spans
    )


@BOTH
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_span_comes_back(ingested, make, sizes):
    documents = make(**sizes)
    run = ingested(documents)
    zero_us = min(known.start_us for document in documents for known in document.known)
    for document, spans in zip(documents, run.spans_of_ranks, strict=True):
        assert microseconds(spans, zero_us=zero_us) == sorted(map(tuple, document.known))
    assert run.notes == ()


@BOTH
def test_what_the_run_says_of_itself(ingested, make):
    documents = make(ranks=3, blocks=2, minibatches=2, microbatches=2)
    run = ingested(documents)
    assert run.units == ("", path_of(1), path_of(2))
    assert run.microbatches_ND == ((2, 2, 2), (2, 2, 2))
    info = run.info
    assert (info.engine, info.scenario, info.plans) == ("measured", {}, {})
    assert info.case == {
        "sync": "fsdp",
        "policy": "unknown",
        "transport": "gloo" if make is on_cpu else "nccl",
        "compute": "real",
        "overlap": "none" if make is on_cpu else "prefetch",
    }
    assert (info.world_size, info.hosts, info.window) == (3, ("alpha",) * 3, range(2))
    assert info.versions == {"torch": "2.13.0"}
    assert (info.clock.name, info.clock.alignment) == ("kineto", "shared")
    first_us = min(known.start_us for document in documents for known in document.known)
    assert info.clock.origin_s == pytest.approx(1_790_000_000 + (ORIGIN_US + first_us) / 1e6, abs=1e-6)
    # 2U - 1 gathers and U reductions a microbatch.
    transfers = 2 * 2 * (2 * 3 - 1 + 3)
    assert info.counters == ({"transfers": transfers, "barriers": transfers},) * 3


@pytest.mark.parametrize(
    ("make", "options", "known"),
    [
        (on_cpu, {}, True),
        (on_cpu, {"shapes": False}, False),
        (on_gpu, {}, True),
        (on_gpu, {"told_beside": True}, True),
    ],
)
def test_bytes_of_transfers(ingested, make, options, known):
    run = ingested(make(ranks=3, **options))
    for spans in run.spans_of_ranks:
        for span in spans:
            is_transfer = span.name in {"gather", "scatter_accumulate"}
            assert span.size_bytes == (2 * ELEMENTS * ITEM_BYTES if is_transfer and known else 0)


@BOTH
def test_shares_sum_up(ingested, make):
    for spans in ingested(make()).spans_of_ranks:
        shares = shares_of(spans)
        parts = [shares.compute, shares.waiting, shares.transfer, shares.optimizer, shares.other]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(1)
        assert shares.seconds == pytest.approx(max(span.end_s for span in spans) - spans[0].start_s)


def test_compute_beside_a_transfer_counts_as_compute(ingested):
    (spans, _) = ingested(on_gpu()).spans_of_ranks
    computed_s = sum(span.duration_s for span in spans if span.name in {"forward", "backward"})
    transferred_s = sum(span.duration_s for span in spans if span.stream != "compute")
    shares = shares_of(spans)
    assert shares.compute * shares.seconds == pytest.approx(computed_s)
    assert shares.transfer * shares.seconds < transferred_s


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_files_come_in_any_order_plain_or_compressed(tmp_path, suffix):
    plain = ingest(write(on_cpu(ranks=3), tmp_path))
    files = write(on_cpu(ranks=3), tmp_path, compressed=suffix == "json.gz")
    assert ingest(files[::-1]) == plain


def test_minibatches_bear_the_numbers_of_the_profilers_steps(ingested):
    run = ingested(on_cpu(minibatches=3, numbered_from=7))
    assert run.info.window == range(7, 10)
    assert {span.minibatch for spans in run.spans_of_ranks for span in spans} == {7, 8, 9}


def test_steps_of_the_profiler_that_are_not_in_a_row_are_no_numbers(ingested):
    documents = on_cpu(minibatches=2, numbered_from=0)
    for document in documents:
        for event in document.events:
            event["name"] = event["name"].replace("ProfilerStep#1", "ProfilerStep#5")
    assert ingested(documents).info.window == range(2)


def first_event(document, name):
    return next(number for number, event in enumerate(document.events) if event["name"].startswith(name))


def last_event(document, name):
    return (
        len(document.events)
        - 1
        - next(number for number, event in enumerate(reversed(document.events)) if event["name"].startswith(name))
    )


def cut_start(document):
    """Begin after the first gather, in the middle of a microbatch."""
    began_us = document.events[first_event(document, "FSDP::pre_forward")]["ts"] + 60
    document.events = [event for event in document.events if event["ts"] >= began_us]


def cut_end(document):
    """End before the last optimizer's step."""
    del document.events[last_event(document, "Optimizer.step") :]


@pytest.mark.parametrize(
    ("cut", "left", "note"),
    [
        (cut_start, 1, "the file begins in the middle of a minibatch, which is left out"),
        (cut_end, 0, "the file ends in the middle of a minibatch, which is left out"),
    ],
)
def test_minibatches_that_are_not_whole_are_left_out(ingested, cut, left, note):
    documents = on_cpu()
    for document in documents:
        cut(document)
    run = ingested(documents)
    assert run.info.window == range(1)
    assert run.notes == (note,)
    for document, spans in zip(documents, run.spans_of_ranks, strict=True):
        whole = sorted(tuple(known._replace(minibatch=0)) for known in document.known if known.minibatch == left)
        zero_us = min(known.start_us for one in documents for known in one.known if known.minibatch == left)
        assert microseconds(spans, zero_us=zero_us) == whole


def test_numbers_tell_which_minibatches_are_the_same(ingested):
    documents = on_cpu(minibatches=3, numbered_from=4)
    cut_start(documents[0])
    cut_end(documents[1])
    run = ingested(documents)
    assert run.info.window == range(5, 6)
    assert run.notes == (
        "the file begins in the middle of a minibatch, which is left out (1 of 2 files)",
        "the file ends in the middle of a minibatch, which is left out (1 of 2 files)",
        "minibatches that not all files hold are left out",
    )
    for document, spans in zip(documents, run.spans_of_ranks, strict=True):
        durations = [known.end_us - known.start_us for known in document.known if known.minibatch == 1]
        assert sorted(durations) == pytest.approx(sorted(span.duration_s * 1e6 for span in spans))


def test_several_optimizers_end_one_minibatch(ingested):
    documents = on_cpu(minibatches=2)
    for document in documents:
        for number in (last_event(document, "Optimizer"), first_event(document, "Optimizer")):
            step = document.events[number]
            half = step["dur"] / 2
            document.events[number] = {**step, "dur": half}
            document.events.insert(
                number + 1, {**step, "name": "Optimizer.step#Muon.step", "ts": step["ts"] + half, "dur": half}
            )
            # An optimizer that calls another one takes one step.
            document.events.insert(number + 2, {**step, "ts": step["ts"] + half + 1, "dur": 2})
    run = ingested(documents)
    assert run.info.window == range(2)
    for spans in run.spans_of_ranks:
        assert [span.minibatch for span in spans if span.name == "optimizer"] == [0, 0, 1, 1]


def test_large_files_are_warned_of_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto_module, "_LARGE_BYTES", 1000)
    files = write(on_cpu(), tmp_path)
    told = []
    ingest(files, warn=told.append)
    assert [text.partition(": takes ")[0] for text in told] == [str(file) for file in files]
    files[1].write_text("broken")
    told.clear()
    with pytest.raises(ValueError, match="no JSON object"):
        ingest(files, warn=told.append)
    assert len(told) == 1


def test_an_evaluation_between_microbatches(ingested):
    """Take the first microbatch's backward away: what is left evaluates something."""
    documents = on_cpu()
    for document in documents:
        first = first_event(document, "FSDP::root_post_backward")
        backward = {"FSDP::pre_backward", "FSDP::root_post", "FSDP::post_backward", "c10d::_reduce", "gloo:all_reduce"}
        document.events = [
            event
            for number, event in enumerate(document.events)
            if number > first or not event["name"].startswith(tuple(backward))
        ]
    run = ingested(documents)
    assert run.microbatches_ND == ((1, 1), (2, 2))
    assert run.notes == ("1 forwards of rank 0 have no backward: their compute is left out",)
    for spans in run.spans_of_ranks:
        outside = [span for span in spans if (span.minibatch, span.microbatch) == (0, -1)]
        assert {span.name for span in outside} - {"wait"} == {"gather", "optimizer"}
        assert {span.microbatch for span in spans if span.minibatch == 0} == {-1, 0}
