"""Shared memory of ranks: regions, one-sided reads and additions, meetings; and that it has no name anywhere."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from ranks import run  # noqa: E402

from odcrt.transports import Region, shm  # noqa: E402
from odcrt.transports.collective import CollectiveTransport  # noqa: E402
from odcrt.transports.phases import Phase  # noqa: E402
from odcrt.transports.segments import Segment  # noqa: E402
from odcrt.transports.shm import ShmTransport  # noqa: E402
from odcsim.errors import RunError  # noqa: E402

pytestmark = pytest.mark.timeout(30)

RANKS = 3


def opened(*regions, deadline_s=20.0):
    transport = ShmTransport(deadline_s=deadline_s)
    transport.allocate(list(regions))
    return transport


# --- segments ---


def test_a_segment_is_zeroed_and_as_large_as_asked():
    segment = Segment.create(10_000)
    assert segment.memory.numel() >= 10_000
    assert not segment.memory.any()
    segment.close()
    segment.close()


def test_an_attached_segment_is_the_very_memory():
    segment = Segment.create(1)
    other = Segment.attach(segment.address)
    segment.memory[0] = 7
    assert other.memory[0] == 7
    other.memory[4095] = 9
    assert segment.memory[4095] == 9
    other.close()
    segment.close()


def held():
    """Mappings and descriptors of segments that this process holds."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - one goes meanwhile
    return Path("/proc/self/maps").read_text().count("memfd:odcrt"), sum(
        "memfd:odcrt" in str(link.readlink()) for link in links if link.is_symlink()
    )


def test_a_closed_segment_leaves_neither_descriptor_nor_mapping():
    gc.collect()  # what earlier tests have left must not go in between
    before = held()
    segment = Segment.create(1 << 20)
    assert held() > before
    view = segment.memory[:8]
    segment.close()
    view[0] = 1
    assert held()[0] == before[0] + 1, "memory stays for as long as a tensor refers to it"
    del view
    gc.collect()
    assert held() == before


def find_names():
    """Where the memory of a transport shows up by name: nowhere but as anonymous files of the processes."""
    transport = opened(Region("data", 100_000, torch.float32))
    maps = Path("/proc/self/maps").read_text()
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "odcrt" in line}
    found = sorted(path for path in paths if "memfd" in path)
    named = os.listdir("/dev/shm")  # noqa: S108, PTH208 - the folder itself
    dist.barrier()
    transport.close()
    return found, [name for name in named if "odcrt" in name or "torch" in name]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
def test_shared_memory_has_no_name():
    for memory, named in run(find_names):
        assert memory == ["/memfd:odcrt (deleted)"]
        assert named == []


# --- regions ---


def move_data():
    rank = dist.get_rank()
    transport = opened(
        Region("odd", 5, torch.bfloat16),
        Region("empty", 0, torch.float32, locks=1),
        Region("words", 3, torch.int64),
        Region("sums", 7, torch.float32, locks=1),
        Region("own", 7, torch.float64),
    )
    for region in ("odd", "words", "sums", "own"):
        assert not transport.view(region).any(), "memory begins with zeros"
    assert transport.view("empty").numel() == 0
    transport.view("odd").copy_(torch.arange(5) + 10 * rank)
    transport.view("words").copy_(torch.arange(3) - rank)
    transport.barrier(Phase.PUBLISH)
    for owner in range(RANKS):
        out = torch.empty(5, dtype=torch.bfloat16)
        transport.read(out, "odd", owner=owner)
        assert out.tolist() == [10 * owner + place for place in range(5)]
        part = torch.empty(2, dtype=torch.float32)
        transport.read(part, "odd", owner=owner, offset=3)
        assert part.tolist() == [10 * owner + 3, 10 * owner + 4], "a read may change the type"
        assert transport.view("words", owner=owner).tolist() == [-owner, 1 - owner, 2 - owner]
        nothing = torch.empty(0)
        transport.read(nothing, "empty", owner=owner)
        transport.accumulate(nothing, "empty", owner=owner)
        transport.accumulate(torch.ones(7), "sums", owner=owner)
        transport.accumulate(torch.full((2,), 3.0, dtype=torch.bfloat16), "sums", owner=owner, offset=5, scale=0.5)
    transport.accumulate(torch.ones(7), "own", owner=(rank + 1) % RANKS, scale=-2.0)
    transport.barrier(Phase.SETTLE)
    assert transport.view("sums").tolist() == [RANKS] * 5 + [RANKS * 2.5] * 2
    assert transport.view("own").tolist() == [-2.0] * 7
    transport.barrier(Phase.SETTLE)
    with pytest.raises(RunError, match="allocates once"):
        transport.allocate([Region("more", 1, torch.float32)])
    transport.close()
    transport.close()
    transport.fail("nobody is there to be told")
    with pytest.raises(RunError, match="closed, or has not allocated"):
        transport.barrier(Phase.SETTLE)


def test_regions_are_read_and_added_to_from_everywhere():
    run(move_data, ranks=RANKS)


def add_at_once(times, numel):
    """All ranks add to all owners' regions at once, in different orders; no addition is lost."""
    rank = dist.get_rank()
    transport = opened(Region("first", numel, torch.float32, locks=1), Region("second", numel, torch.float32, locks=1))
    ones = torch.ones(numel)
    for turn in range(times):
        for step in range(RANKS):
            owner = (rank + step) % RANKS
            transport.accumulate(ones, ("first", "second")[turn % 2], owner=owner, scale=float(1 + rank))
    transport.barrier(Phase.SETTLE)
    total = sum(1 + other for other in range(RANKS)) * times / 2
    for region in ("first", "second"):
        assert (transport.view(region) == total).all(), transport.view(region)
    transport.barrier(Phase.SETTLE)
    transport.close()


def add_one_at_a_time(times):
    """Whoever is inside of a lock writes so, dawdles, and finds that nobody else has come in meanwhile."""
    rank = dist.get_rank()
    transport = opened(Region("sums", 1, torch.float32, locks=1), Region("inside", 1, torch.int64))
    inside, entries = transport.view("inside", owner=0), []

    def note_lock(number):
        if number:
            assert inside[0] == 0
            inside[0] = rank + 1
            time.sleep(0.001)
            entries.append(number)
        else:
            assert inside[0] == rank + 1
            inside[0] = 0

    transport.control.note_lock = note_lock
    for _ in range(times):
        transport.accumulate(torch.ones(1), "sums", owner=0)
    transport.barrier(Phase.SETTLE)
    assert transport.view("sums", owner=0)[0] == RANKS * times
    transport.barrier(Phase.SETTLE)
    transport.close()
    return len(entries)


def test_ranks_add_one_at_a_time():
    assert run(add_one_at_a_time, 50, ranks=RANKS) == [50] * RANKS


@pytest.mark.parametrize(("times", "numel"), [(200, 1), (40, 100_003)])
def test_additions_at_once_are_all_there(times, numel):
    run(add_at_once, times, numel, ranks=RANKS)


# --- who may not take part ---


def allocate_different():
    with pytest.raises(RunError) as caught:
        opened(Region("data", 5 + (dist.get_rank() == 2), torch.float32))
    return str(caught.value)


def test_ranks_that_allocate_different_regions_all_refuse():
    told = "rank {} allocates other regions than rank {}: is its model another one?"
    assert run(allocate_different, ranks=RANKS) == [told.format(2, 0), told.format(2, 1), told.format(0, 2)]


def allocate_on_two_hosts():
    shm._host = lambda: f"host-{dist.get_rank()} 0badc0de"
    with pytest.raises(RunError) as caught:
        opened(Region("data", 5, torch.float32))
    return str(caught.value)


def test_ranks_of_several_hosts_all_refuse():
    found = run(allocate_on_two_hosts)
    assert found == ["transport shm serves the ranks of one host; these are on host-0 0badc0de, host-1 0badc0de"] * 2


def two_transports_at_once():
    """They share nothing: neither memory, nor locks, nor signs of life."""
    first, second = (opened(Region("data", 1, torch.float32, locks=1)) for _ in range(2))
    for _ in range(50):
        first.accumulate(torch.ones(1), "data", owner=0)
        second.accumulate(torch.ones(1), "data", owner=0, scale=2.0)
    first.barrier(Phase.SETTLE)
    found = float(first.view("data", owner=0))
    first.barrier(Phase.SETTLE)
    first.close()
    second.barrier(Phase.SETTLE)
    found = found, float(second.view("data", owner=0))
    second.barrier(Phase.SETTLE)
    second.close()
    return found


def test_two_transports_do_not_meet():
    assert run(two_transports_at_once) == [(100.0, 200.0)] * 2


# --- meetings ---


def meet_in_turns(times):
    """What a rank stages is what the others find, however far ahead it is."""
    rank = dist.get_rank()
    transport = CollectiveTransport(None, staging_bytes=64, deadline_s=20)
    transport.open()
    for number in range(times):
        numel = 1 + number % 16
        transport.stage(numel, dtype=torch.float32).fill_(100 * number + rank)
        assert transport.meet(Phase.GATHER, 0) >= 0.0
        for owner in range(RANKS):
            assert (transport.staged(numel, dtype=torch.float32, owner=owner) == 100 * number + owner).all()
    transport.barrier(Phase.SETTLE)
    transport.close()


def test_ranks_meet_and_find_each_others_parts():
    run(meet_in_turns, 300, ranks=RANKS)


def meet_for_different_ones():
    rank = dist.get_rank()
    transport = CollectiveTransport(None, staging_bytes=64, deadline_s=20)
    transport.open()
    transport.meet(Phase.GATHER, 0)
    with pytest.raises(RunError) as caught:
        transport.meet(Phase.SCATTER_ACCUMULATE if rank == 1 else Phase.GATHER, 2)
    return str(caught.value)


def test_ranks_that_meet_for_different_collectives_are_told_all_of_them():
    told = "rank 0: gather of unit 2, rank 1: scatter accumulate of unit 2, rank 2: gather of unit 2"
    assert all(
        f"ranks meet for different collectives ({told})" in text for text in run(meet_for_different_ones, ranks=RANKS)
    )
