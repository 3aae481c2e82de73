"""What files may hold beside the ordinary: other collectives, several kernels of one transfer, kernels of nobody."""

from __future__ import annotations

import pytest
from kineto_files import COMPUTE_STREAM, GATHER_STREAM, REDUCE_US, on_cpu, on_gpu


def microseconds(value_s):
    return round(value_s * 1e6)


def waits_of_nobody(run):
    """Waits that belong to no unit: rank, minibatch, microbatch, microseconds."""
    return [
        (rank, span.minibatch, span.microbatch, microseconds(span.duration_s))
        for rank, spans in enumerate(run.spans_of_ranks)
        for span in spans
        if span.name == "wait" and span.unit == -1
    ]


def named(document, name):
    return [event for event in document.events if event["name"].startswith(name)]


# --- on the CPU ---


def later(documents, *, after_us, by_us):
    """Make room: whatever begins then, in the microseconds of the files, comes later."""
    for document in documents:
        for event in document.events:
            if event["ts"] >= after_us:
                event["ts"] += by_us


def with_a_norm(*, arrive_us, waits=None, name="c10d::allreduce_"):
    """A run of two ranks that sum up something before the first optimizer's step, which takes 40 us."""
    documents = on_cpu()
    step_us = named(documents[0], "Optimizer")[0]["ts"]
    later(documents, after_us=step_us, by_us=1000)
    start_us = step_us - documents[0].offset_us - 5_000_000  # of the files, since their origin
    end_us = start_us + max(arrive_us) + 40
    for rank, (document, arrives_us) in enumerate(zip(documents, arrive_us, strict=True)):
        at_us = start_us + arrives_us
        document.add("cpu_op", name, at_us, at_us + 2)
        document.add("user_annotation", "gloo:all_reduce", at_us + 1, end_us, tid=901)
        if waits is not None:
            document.add("cpu_op", "aten::pow", at_us + 3, at_us + 5)
            document.add("cpu_op", "_c10d_functional::wait_tensor", start_us + waits[rank], end_us + 1)
        document.add("cpu_op", "aten::add", end_us + 10, end_us + 11)
    return documents


def test_a_collective_of_the_users_is_waited_for(ingested):
    run = ingested(with_a_norm(arrive_us=(0, 70)))
    assert waits_of_nobody(run) == [(0, 0, -1, 70)]
    assert run.notes == ()


@pytest.mark.parametrize(
    ("waits", "waited"),
    [((10, 80), [(0, 0, -1, 60)]), ((90, 80), [])],  # the last one arrives after 70
)
def test_a_collective_that_runs_beside_the_program_is_waited_for_when_its_outcome_is(ingested, waits, waited):
    run = ingested(with_a_norm(arrive_us=(0, 70), waits=waits))
    assert waits_of_nobody(run) == waited
    assert run.notes == ()


def test_a_collective_that_nobody_waits_for(ingested):
    documents = with_a_norm(arrive_us=(0, 70), waits=(10, 80))
    for document in documents:
        document.events = [event for event in document.events if "wait_tensor" not in event["name"]]
    assert waits_of_nobody(ingested(documents)) == []


def test_a_broadcast_makes_nobody_wait(ingested):
    assert waits_of_nobody(ingested(with_a_norm(arrive_us=(0, 70), name="c10d::broadcast_"))) == []


def test_collectives_that_only_some_ranks_have_are_told(ingested):
    documents = with_a_norm(arrive_us=(0, 70))
    documents[1].events = [event for event in documents[1].events if event["name"] != "c10d::allreduce_"]
    run = ingested(documents)
    assert waits_of_nobody(run) == []
    assert run.notes == ("collectives beside FSDP2's differ between ranks: what is waited for in them is not told",)


def test_a_hidden_collective_in_forward_is_no_compute(ingested):
    """Of the first block's first forward, 60 us go to a collective of all ranks that arrive together."""
    plain = ingested(on_cpu(ranks=2, time_us=lambda *_: 200))
    documents = on_cpu(ranks=2, time_us=lambda *_: 200)
    for document in documents:
        first = next(known for known in document.known if (known.name, known.unit) == ("forward", 1))
        at_us = first.start_us + 20
        document.add("cpu_op", "c10d::allreduce_", at_us, at_us + 1)
        document.add("user_annotation", "gloo:all_reduce", at_us + 1, at_us + 60, tid=901)
        document.add("cpu_op", "aten::mm", at_us + 61, at_us + 70)
    run = ingested(documents)

    def forward_us(run, rank):
        spans = run.spans_of_ranks[rank]
        return sum(microseconds(s.duration_s) for s in spans if (s.name, s.unit) == ("forward", 1))

    for rank in range(2):
        assert forward_us(plain, rank) - forward_us(run, rank) == 60


def test_without_gloos_own_spans_a_transfer_lasts_as_long_as_the_program_stands_still(ingested):
    plain = ingested(on_cpu())
    documents = on_cpu()
    for document in documents:
        document.events = [event for event in document.events if not event["name"].startswith("gloo:")]
    assert ingested(documents).spans_of_ranks == plain.spans_of_ranks


def test_after_a_reduction_the_program_goes_on_with_its_next_operation(ingested):
    """FSDP2 adds up what was reduced, within its annotation: that is compute."""
    documents = on_cpu(blocks=1, minibatches=1, microbatches=1, time_us=lambda *_: 200)
    for document in documents:
        for event in named(document, "FSDP::post_backward_reduce"):
            event["dur"] += 30  # and what comes next is computed meanwhile
        for known in [known for known in document.known if known.name == "scatter_accumulate"]:
            document.add("cpu_op", "aten::add_", known.end_us, known.end_us + 10)
    for spans in ingested(documents).spans_of_ranks:
        reductions = [span for span in spans if span.name == "scatter_accumulate"]
        assert [microseconds(span.duration_s) for span in reductions] == [REDUCE_US] * 2


# --- on a GPU ---


def test_a_transfer_of_two_kernels_is_one(ingested):
    plain = ingested(on_gpu())
    documents = on_gpu()
    for document in documents:
        (first, *_) = named(document, "ncclDevKernel_AllGather")
        again = {**first, "dur": first["dur"] / 2, "args": dict(first["args"])}
        again["ts"] = first["ts"] + again["dur"]
        first["dur"] /= 2
        document.events.append(again)
    run = ingested(documents)
    for found, spans in zip(run.spans_of_ranks, plain.spans_of_ranks, strict=True):
        gathers, known = ([s for s in one if s.name == "gather"] for one in (found, spans))
        assert gathers[0].size_bytes == 2 * known[0].size_bytes
        assert [(s.start_s, s.end_s) for s in gathers] == [(s.start_s, s.end_s) for s in known]


def test_a_kernel_without_a_launch_belongs_with_the_one_before_it(ingested):
    plain = ingested(on_gpu())
    documents = on_gpu()
    for document in documents:
        kernels = named(document, "gemm")
        for event in kernels[1::2]:  # each second one of a pair
            event["args"]["correlation"] = 10**9
    assert ingested(documents).spans_of_ranks == plain.spans_of_ranks


def test_kernels_of_other_streams_and_of_nobody_are_left_out(ingested):
    plain = ingested(on_gpu())
    documents = on_gpu()
    for document in documents:
        last_us = max(known.end_us for known in document.known)
        document.add("gpu_memcpy", "Memcpy DtoH", last_us + 50, last_us + 60, stream=COMPUTE_STREAM, correlation=10**7)
        document.add("kernel", "elsewhere", 1500, 1700, stream=GATHER_STREAM, correlation=10**7 + 1)
        document.add("cuda_runtime", "cudaMemcpyAsync", 900_000, 900_001, correlation=10**7)
        document.add("gpu_user_annotation", "FSDP::all_gather", 1500, 1700, tid=GATHER_STREAM)
    assert ingested(documents).spans_of_ranks == plain.spans_of_ranks


def test_a_reduction_of_norms_on_a_gpu_is_waited_for(ingested):
    """Between the last reduction and the optimizer's step; rank 0 arrives 20 us earlier."""
    documents = on_gpu(minibatches=1)
    (step, _) = (named(document, "Optimizer")[0]["ts"] - 5_000_000 for document in documents)
    there_us = max(known.end_us for document in documents for known in document.known if known.name != "optimizer")
    for rank, document in enumerate(documents):
        (optimizer,) = named(document, "adamw")
        optimizer["ts"] += 500
        document.add("cuda_runtime", "cudaLaunchKernel", step - 0.5, step - 0.25, correlation=10**6)
        document.add(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            there_us + 100 + 20 * rank,
            there_us + 150,
            stream=COMPUTE_STREAM,
            correlation=10**6,
            **{"Group size": 2},
        )
    run = ingested(documents)
    assert waits_of_nobody(run) == [(0, 0, -1, 20)]


def test_a_reduction_of_a_few_ranks_on_a_gpu_is_not_ours(ingested):
    documents = on_gpu(ranks=3, minibatches=1)
    for document in documents[:2]:
        step_us = named(document, "Optimizer")[0]["ts"] - 5_000_000
        document.add("cuda_runtime", "cudaLaunchKernel", step_us - 0.5, step_us - 0.25, correlation=10**6)
        document.add("kernel", "ncclDevKernel_AllReduce", 900, 950, stream=3, correlation=10**6, **{"Group size": 2})
    run = ingested(documents)
    assert waits_of_nobody(run) == []
    assert run.notes == ()
