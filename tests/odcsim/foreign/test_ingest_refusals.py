"""What cannot be used is refused with one line that names the file and the reason."""

from __future__ import annotations

import json

import pytest
from kineto_files import on_cpu, on_gpu, write, write_document

from odcsim.errors import InputError
from odcsim.foreign import ingest


def refused(files, *parts):
    with pytest.raises(InputError) as caught:
        ingest(files)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    return message


@pytest.fixture
def refusal(tmp_path):
    """Changes the second file of a run, and returns the refusal."""

    def of(change, *parts, make=on_cpu, **sizes):
        files = write(make(**sizes), tmp_path)
        document = json.loads(files[1].read_text())
        changed = change(document)
        write_document(document if changed is None else changed, files[1])
        return refused(files, *parts)

    return of


def without_events(*names):
    def change(document):
        document["traceEvents"] = [
            event for event in document["traceEvents"] if not str(event["name"]).startswith(names)
        ]

    return change


def with_shared(**changes):
    def change(document):
        document["distributedInfo"].update(changes)

    return change


def without_key(*path):
    def change(document):
        *above, last = path
        for key in above:
            document = document[key]
        del document[last]

    return change


@pytest.mark.parametrize("change", [without_key("distributedInfo"), without_key("distributedInfo", "rank")])
def test_a_file_without_a_rank(refusal, change):
    refusal(change, "rank1.json: distributedInfo.rank: the file does not say of which rank it is", "init_process_group")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_shared(rank="1"), "distributedInfo.rank: '1': must be a whole number of at least 0"),
        (with_shared(rank=2), "distributedInfo.rank: 2: must be below the world size, 2"),
        (with_shared(world_size=None), "distributedInfo.world_size: None: must be a whole number of at least 1"),
        (with_shared(world_size=3), "distributedInfo.world_size: 3: is of a run of other size than"),
        (with_shared(rank=0), "distributedInfo.rank: 0: is of the same rank as"),
        (lambda document: document.update(baseTimeNanoseconds="x"), "baseTimeNanoseconds: 'x': must be a whole number"),
        (lambda _: {"some": "object"}, "holds no event"),
        (lambda _: {"traceEvents": [3]}, "traceEvents.0: must be a JSON object"),
        (
            lambda document: document["traceEvents"][1].update(ts="x"),
            "traceEvents.1.ts: 'x': must be a number of micro",
        ),
        (without_key("traceEvents", 1, "dur"), "traceEvents.1.dur: None: must be a number"),
        (lambda _: [1], "is not a trace of PyTorch's profiler"),
        (without_events("FSDP"), "has no annotation of FSDP2"),
        (without_events("Optimizer"), "has no step of an optimizer"),
        (without_events("c10d::"), "holds no collective of FSDP2's"),
        (without_events("FSDP::all_gather", "FSDP::post_backward_reduce"), "holds no collective of FSDP2's"),
        (without_events("FSDP::root_pre_forward", "FSDP::pre_forward"), "holds no whole minibatch"),
    ],
)
def test_files_that_cannot_be_used(refusal, change, message):
    refusal(change, "rank1.json: ", message)


def test_missing_ranks(tmp_path):
    files = write(on_cpu(ranks=12, minibatches=1, microbatches=1, blocks=1), tmp_path)
    assert refused(files[:11], "no file of rank 11: ", "give one file of each").startswith("FILE...: ")
    refused(files[3:4], "no file of rank 0, 1, 2, 4, 5, 6, 7, 8, ...: ")


def test_one_file_of_one_rank(tmp_path):
    def without_collectives(document):
        without_events("c10d::", "gloo:")(document)
        document["distributedInfo"]["world_size"] = 1

    (file, _) = write(on_cpu(), tmp_path)
    document = json.loads(file.read_text())
    without_collectives(document)
    refused([write_document(document, file)], "holds no collective of FSDP2's", "a run of one rank")


def test_a_file_that_is_cut_off(tmp_path):
    files = write(on_cpu(), tmp_path)
    text = files[1].read_text()
    files[1].write_text(text[: len(text) // 2])
    refused(files, "rank1.json: the file is cut off")


def test_a_trace_of_the_project_itself(tmp_path, ingested):
    """Its exported timeline bears a rank, but is no file of the profiler."""
    from odcsim.trace_format import read_run, to_chrome_trace

    ingested(on_cpu())
    to_chrome_trace(read_run(tmp_path / "run"), tmp_path / "0.json", rank=0)
    refused([tmp_path / "0.json"], "has no annotation of FSDP2")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"minibatches": 3}, "holds 3 whole minibatches, but"),
        ({"microbatches": 3}, "minibatch 0: has 33 collectives, but"),
        ({"blocks": 4}, "minibatch 0: collective 4 is a gather of layers.3 in microbatch 0, but in"),
    ],
)
def test_files_of_different_runs(tmp_path, sizes, message):
    files = write(on_cpu(), tmp_path)
    other = on_cpu(**sizes)[1]
    write_document(other.document(), files[1])
    refused(files, "rank1.json: ", message)


def test_files_of_different_minibatches(tmp_path):
    files = write(on_cpu(numbered_from=0), tmp_path)
    write_document(on_cpu(numbered_from=2)[1].document(), files[1])
    refused(files, "rank0.json: ", "profiler's steps [0, 1]", "recorded at different times")


def test_hybrid_sharding_on_the_cpu(refusal):
    def change(document):
        reduction = next(event for event in document["traceEvents"] if event["name"] == "c10d::_reduce_scatter_base_")
        document["traceEvents"].append({**reduction, "name": "c10d::allreduce_", "ts": reduction["ts"] + 3})

    refusal(change, "reduce-scatters hold a allreduce_", "hybrid sharding is not understood")


def test_collectives_of_some_ranks_on_a_gpu(refusal):
    def change(document):
        for event in document["traceEvents"]:
            if "Group size" in event.get("args", {}):
                event["args"]["Group size"] = 2

    refusal(change, "its collectives unite 2 of 4 ranks", make=on_gpu, ranks=4)


def test_hybrid_sharding_on_a_gpu(refusal):
    def change(document):
        for event in document["traceEvents"]:
            event["name"] = event["name"].replace("ReduceScatter", "AllReduce")

    refusal(change, "hybrid sharding is not understood", make=on_gpu)


def test_a_gpu_whose_kernels_were_not_recorded(refusal):
    def change(document):
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") != "kernel"]
        calls = [event for event in document["traceEvents"] if event["name"] == "record_param_comms"]
        document["traceEvents"] += [{**call, "name": "c10d::_allgather_base_"} for call in calls]

    refusal(change, "record with ProfilerActivity.CUDA too", make=on_gpu)


def test_kernels_without_launches(refusal):
    refusal(without_events("cudaLaunch"), "cannot be related to the program", make=on_gpu)


def test_a_gpu_that_computes_nothing(refusal):
    refusal(without_events("gemm", "adamw", "copy_in", "add"), "holds no kernel but NCCL's", make=on_gpu)
