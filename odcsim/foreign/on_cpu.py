"""A rank on the CPU under gloo: the program calls a collective, and does nothing until it is over.

    arrived    the call of c10d begins
    data there the span of gloo's own thread ends
    free       FSDP2 is done with its all-gather; after a reduce-scatter, the calling thread's next operation begins

Where there is no span of gloo's, data are there when the rank is free. What lies between collectives is compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from odcsim.errors import InputError
from odcsim.foreign.activity import Collective, Computed, RankActivity, Request, Requests
from odcsim.foreign.attribution import Interruption, attribute
from odcsim.foreign.program import ROOT_PATH, Place, Program
from odcsim.foreign.rank_file import Annotation, Operation, RankFile

__all__ = ["activity_on_cpu"]

_CALLS = {"gather": "allgather", "scatter_accumulate": "reduce_scatter"}


def activity_on_cpu(trace: RankFile, program: Program) -> RankActivity:
    """What a rank did.

    Raises:
        InputError: collectives of a group that is not all ranks.
    """
    requests = Requests(program)
    collectives: list[Collective] = []
    for call, request, worker in _calls(trace, requests):
        if request is not None and _CALLS[request.name] in call.name:
            collectives.append(_transfer(trace, call, request, worker))
        elif request is not None and request.name == "scatter_accumulate":
            raise InputError(
                f"its reduce-scatters hold a {call.name}: hybrid sharding is not understood; allowed is one group of "
                "all ranks",
                file=trace.path,
            )
        elif (place := program.place(call.start_ns)) is not None and worker is not None:
            collectives.append(_other(trace, call, place, worker))
    return RankActivity(
        transport=trace.backend or "gloo",
        overlaps=False,
        collectives=collectives,
        computed=sorted(_computed(program, collectives)),
    )


def _calls(trace: RankFile, requests: Requests) -> Iterator[tuple[Operation, Request | None, Annotation | None]]:
    """Every call, within which request it was made, and the span of gloo's thread that served it."""
    starts_ns = [worker.start_ns for worker in trace.workers]
    unused = 0
    for position, call in enumerate(trace.operations):
        request = requests.at(call.start_ns)
        following = trace.operations[position + 1 : position + 2]
        until_ns = request.end_ns if request is not None else following[0].start_ns if following else None
        unused = max(unused, bisect_left(starts_ns, call.start_ns))
        worker = trace.workers[unused] if unused < len(starts_ns) else None
        if worker is not None and until_ns is not None and worker.start_ns >= until_ns:
            worker = None
        unused += worker is not None
        yield call, request, worker


def _transfer(trace: RankFile, call: Operation, request: Request, worker: Annotation | None) -> Collective:
    over_ns = call.end_ns if worker is None else max(call.end_ns, worker.end_ns)
    free_ns = request.end_ns
    if request.name == "scatter_accumulate":
        free_ns = min(_next_operation_ns(trace, call, over_ns) or free_ns, free_ns)
    free_ns = max(free_ns, over_ns)
    return Collective(
        asked_ns=call.start_ns,
        name=request.name,
        path=request.path,
        place=request.place,
        arrived_ns=call.start_ns,
        end_ns=free_ns if worker is None else worker.end_ns,
        free_ns=free_ns,
        stall_ns=(call.start_ns, free_ns),
        moved_bytes=call.sizes.moved_bytes,
    )


def _other(trace: RankFile, call: Operation, place: Place, worker: Annotation) -> Collective:
    """A collective of the user's own, for which the program need not stand still."""
    over_ns = max(call.end_ns, worker.end_ns)
    following_ns = _next_operation_ns(trace, call, call.end_ns)
    stall_ns: tuple[int, int] | None = (call.start_ns, over_ns)
    if following_ns is not None and following_ns < worker.end_ns:
        # The program goes on, until it waits for the outcome, if it does.
        waits = (wait for wait in trace.waits if wait.thread == call.thread)
        stall_ns = next(
            (
                (wait.start_ns, wait.end_ns)
                for wait in waits
                if call.end_ns <= wait.start_ns < worker.end_ns <= wait.end_ns
            ),
            None,
        )
    return Collective(
        asked_ns=call.start_ns,
        name="other",
        path=call.name,
        place=place,
        arrived_ns=call.start_ns,
        end_ns=over_ns,
        free_ns=over_ns,
        stall_ns=stall_ns,
        moved_bytes=0,
    )


def _next_operation_ns(trace: RankFile, call: Operation, after_ns: int) -> int | None:
    starts_ns: Sequence[int] = trace.op_starts_ns.get(call.thread, ())
    position = bisect_left(starts_ns, after_ns)
    return starts_ns[position] if position < len(starts_ns) else None


def _computed(program: Program, collectives: Iterable[Collective]) -> Iterator[Computed]:
    gaps = sorted(Interruption(*one.stall_ns, one.name, one.path) for one in collectives if one.stall_ns is not None)
    starts_ns = [gap.start_ns for gap in gaps]
    for position, minibatch in enumerate(program.minibatches):
        for one in minibatch.passes:
            if one.microbatch < 0:
                continue
            within = gaps[bisect_left(starts_ns, one.start_ns) : bisect_left(starts_ns, one.end_ns)]
            for stretch in attribute(one, within):
                yield Computed(*stretch, Place(position, one.microbatch))
        for start_ns, end_ns in minibatch.steps:
            yield Computed(start_ns, end_ns, "optimizer", ROOT_PATH, Place(position, -1))
