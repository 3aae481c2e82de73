"""A rank on a GPU under NCCL: kernels run on streams, later than the program launched them.

The *compute stream* is the one on which most time goes to kernels that are not NCCL's. A kernel belongs to the unit and
phase in which the program launched it; kernels of one owner in a row make one span of compute, from the first one's
start to the last one's end. Kernels of other streams (copies into all-gathers, sums after reduce-scatters) run beside
compute, and are left out.

A collective is the NCCL kernel that was launched by the request for it; it runs from the moment at which this rank is
ready, and spins until the others are. A pause of the compute stream in which a collective ends is taken for a stall on
it: from the pause's beginning, or the collective's if that is later, to the collective's end. Other pauses are part of
the span of compute if both sides have the same owner, and nobody's otherwise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from odcsim.errors import InputError
from odcsim.foreign.activity import Collective, Computed, RankActivity, Request, Requests, check_group
from odcsim.foreign.attribution import Interruption, attribute
from odcsim.foreign.program import ROOT_PATH, Place, Program
from odcsim.foreign.rank_file import Kernel, RankFile, Sizes

__all__ = ["activity_on_gpu"]


def activity_on_gpu(trace: RankFile, program: Program) -> RankActivity:
    """What a rank did.

    Raises:
        InputError: kernels cannot be related to the program, or collectives are of a group that is not all ranks.
    """
    found = list(_collectives(trace, program))
    kernels = _compute_kernels(trace)
    pauses, stalls_ns = _stalls(kernels, found)
    collectives = [
        Collective(
            asked_ns=one.asked_ns,
            name=one.request.name if one.request is not None else "other",
            path=one.request.path if one.request is not None else one.kernel.nccl_name.partition("(")[0],
            place=one.place,
            arrived_ns=one.kernel.start_ns,
            end_ns=one.kernel.end_ns,
            free_ns=one.kernel.end_ns,
            stall_ns=stall_ns,
            moved_bytes=one.kernel.sizes.moved_bytes,
        )
        for one, stall_ns in zip(found, stalls_ns, strict=True)
    ]
    computed = list(_computed(kernels, _Owners(program, collectives), trace.launches_ns, pauses))
    return RankActivity(transport="nccl", overlaps=True, collectives=collectives, computed=computed)


class _Found(NamedTuple):
    """A collective's kernel, when it was launched, by which request of FSDP2's if any, and where it belongs."""

    asked_ns: int
    kernel: Kernel
    request: Request | None
    place: Place


def _collectives(trace: RankFile, program: Program) -> Iterator[_Found]:
    """In the order of launching. A request that launches several kernels has one collective, of all of them."""
    launched = sorted(
        (
            (trace.launches_ns[kernel.correlation], kernel)
            for kernel in trace.kernels
            if kernel.nccl_name and kernel.correlation in trace.launches_ns
        ),
        key=lambda pair: pair[0],
    )
    if not launched:
        raise InputError(
            "its NCCL kernels cannot be related to the program: no launch (cat cuda_runtime) has their correlation; "
            "record with ProfilerActivity.CPU and ProfilerActivity.CUDA",
            file=trace.path,
        )
    requests = Requests(program)
    of_requests: dict[Request, _Found] = {}
    others = []
    for asked_ns, kernel in launched:
        request = requests.at(asked_ns)
        if request is None:
            place = program.place(asked_ns)
            if place is not None and kernel.sizes.group_size in {0, trace.world_size}:
                others.append(_Found(asked_ns, kernel, None, place))
            continue
        sizes = kernel.sizes if kernel.sizes.moved_bytes else _told_beside(trace, request)
        check_group(trace, sizes)
        if "AllReduce" in kernel.nccl_name:
            raise InputError(
                "a reduction of its gradients holds an all-reduce: hybrid sharding is not understood; allowed is one "
                "group of all ranks",
                file=trace.path,
            )
        its_kernel = kernel._replace(sizes=sizes)
        found = of_requests.get(request) or _Found(asked_ns, its_kernel, request, request.place)
        of_requests[request] = found if found.kernel is its_kernel else _with_kernel(found, its_kernel)
    yield from sorted([*of_requests.values(), *others], key=lambda one: one.asked_ns)


def _with_kernel(found: _Found, another: Kernel) -> _Found:
    """A collective that consists of several kernels."""
    return found._replace(
        kernel=found.kernel._replace(
            start_ns=min(found.kernel.start_ns, another.start_ns),
            end_ns=max(found.kernel.end_ns, another.end_ns),
            sizes=Sizes(found.kernel.sizes.moved_bytes + another.sizes.moved_bytes, another.sizes.group_size),
        )
    )


def _told_beside(trace: RankFile, request: Request) -> Sizes:
    """What the library's call within a request says of its sizes; versions differ in whether the kernel does."""
    position = bisect_right(trace.comms, request.start_ns, key=lambda told: told[0])
    if position < len(trace.comms) and trace.comms[position][0] <= request.end_ns:
        return trace.comms[position][1]
    return Sizes()


def _compute_kernels(trace: RankFile) -> list[Kernel]:
    """The kernels of the compute stream, by start."""
    busy_ns: Counter[object] = Counter()
    streams: dict[object, list[Kernel]] = defaultdict(list)
    for kernel in trace.kernels:
        if not kernel.nccl_name:
            busy_ns[kernel.stream] += kernel.end_ns - kernel.start_ns
            streams[kernel.stream].append(kernel)
    if not busy_ns:
        raise InputError("holds no kernel but NCCL's: nothing was computed", file=trace.path)
    return streams[busy_ns.most_common(1)[0][0]]


def _stalls(kernels: Sequence[Kernel], found: Sequence[_Found]) -> tuple[set[int], list[tuple[int, int] | None]]:
    """Which kernels end with a pause in which a collective ends, and each collective's stall."""
    starts_ns = [kernel.start_ns for kernel in kernels]
    busy_until_ns: list[int] = []
    for kernel in kernels:
        busy_until_ns.append(max(kernel.end_ns, busy_until_ns[-1] if busy_until_ns else kernel.end_ns))
    pauses: set[int] = set()
    stalls_ns: list[tuple[int, int] | None] = [None] * len(found)
    stalled_until_ns = 0
    for position in sorted(range(len(found)), key=lambda index: found[index].kernel.end_ns):
        collective = found[position].kernel
        before = bisect_right(starts_ns, collective.end_ns - 1) - 1
        # Before the first kernel and after the last one, nobody knows whether compute stood still.
        if before < 0 or before + 1 == len(kernels) or busy_until_ns[before] >= collective.end_ns:
            continue
        since_ns = max(busy_until_ns[before], collective.start_ns, stalled_until_ns)
        if since_ns < collective.end_ns:
            stalls_ns[position] = (since_ns, collective.end_ns)
            stalled_until_ns = collective.end_ns
            pauses.add(before)
    return pauses, stalls_ns


class _Owner(NamedTuple):
    """Whose a kernel is."""

    name: str
    path: str
    place: Place


class _Owners:
    """Owners of moments of the program's time."""

    def __init__(self, program: Program, collectives: Iterable[Collective]) -> None:
        # A launch takes none of the program's time, as far as attribution is concerned.
        gaps = sorted(Interruption(one.asked_ns, one.asked_ns, one.name, one.path) for one in collectives)
        owned: list[tuple[int, int, _Owner]] = []
        starts_ns = [gap.start_ns for gap in gaps]
        for position, minibatch in enumerate(program.minibatches):
            for one in minibatch.passes:
                if one.microbatch < 0:
                    continue
                place = Place(position, one.microbatch)
                within = gaps[bisect_right(starts_ns, one.start_ns - 1) : bisect_right(starts_ns, one.end_ns - 1)]
                owned += [
                    (stretch.start_ns, stretch.end_ns, _Owner(stretch.name, stretch.path, place))
                    for stretch in attribute(one, within)
                ]
            owned += [(*step, _Owner("optimizer", ROOT_PATH, Place(position, -1))) for step in minibatch.steps]
        self._owned = sorted(owned)

    def at(self, moment_ns: int) -> _Owner | None:
        """Who owns a moment."""
        position = bisect_right(self._owned, moment_ns, key=lambda owned: owned[0]) - 1
        if position < 0 or moment_ns > self._owned[position][1]:
            return None
        return self._owned[position][2]


def _computed(
    kernels: Sequence[Kernel], owners: _Owners, launches_ns: dict[int, int], pauses: set[int]
) -> Iterator[Computed]:
    owner: _Owner | None = None
    start_ns = end_ns = 0
    for position, kernel in enumerate(kernels):
        launched_ns = launches_ns.get(kernel.correlation)
        # A kernel whose launch is not known belongs with the one before it.
        its_owner = owner if launched_ns is None else owners.at(launched_ns)
        if its_owner != owner or position - 1 in pauses:
            if owner is not None and end_ns > start_ns:
                yield _span(owner, start_ns, end_ns)
            owner, start_ns = its_owner, max(kernel.start_ns, end_ns)
        end_ns = max(end_ns, kernel.end_ns)
    if owner is not None and end_ns > start_ns:
        yield _span(owner, start_ns, end_ns)


def _span(owner: _Owner, start_ns: int, end_ns: int) -> Computed:
    assert owner.name in {"forward", "backward", "optimizer"}
    return Computed(start_ns, end_ns, owner.name, owner.path, owner.place)  # type: ignore[arg-type]
