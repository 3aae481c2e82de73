"""The running peak of a rank's memory: it follows what is allocated, never falls, and starts anew with a case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odcrt.workload import memory_watch
from odcrt.workload.memory_watch import MemoryWatch

MIB = 1 << 20


@pytest.fixture
def counted(monkeypatch):
    """Has the kernel tell made-up sizes, which may be changed."""
    sizes = {"VmHWM": 100.0, "VmRSS": 100.0, "RssShmem": 20.0}
    monkeypatch.setattr(memory_watch, "_status_bytes", lambda: dict(sizes))
    return sizes


needs_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="nobody counts memory here")


@needs_linux
def test_the_running_peak_follows_what_is_allocated_and_keeps_it_until_the_restart():
    watch = MemoryWatch()
    watch.restart()
    before = watch.running_peak_bytes()
    held = bytearray(b"x") * (256 * MIB)
    grown = watch.running_peak_bytes()
    assert len(held) == 256 * MIB
    del held
    # Other threads' counts may come in late, and the system may take back idle pages; what is meant is far above.
    assert grown - before > 192 * MIB
    assert watch.running_peak_bytes() >= grown
    watch.restart()
    assert watch.running_peak_bytes() < grown - 192 * MIB


@needs_linux
def test_the_running_peak_does_not_fall_while_shared_memory_grows(counted):
    watch = MemoryWatch()
    watch.restart()
    counted.update(VmHWM=150.0, RssShmem=20.0)
    assert watch.running_peak_bytes() == 150 - 20 - 80
    counted.update(VmHWM=155.0, RssShmem=40.0)
    assert watch.running_peak_bytes() == 50
    assert watch.peak_bytes(ranks=1)["training"] == 155 - 40 - 80
    watch.restart()
    assert watch.running_peak_bytes() == 35


@needs_linux
def test_a_peak_below_what_the_process_had_is_none(counted):
    watch = MemoryWatch()
    watch.restart()
    counted.update(VmHWM=90.0, RssShmem=20.0)
    assert watch.running_peak_bytes() == 0


def test_where_nobody_counts_there_is_no_running_peak(counted):
    watch = MemoryWatch()
    assert watch.running_peak_bytes() is None, "the peak would be that of the process' whole life"
    watch.restart()
    counted.update(dict.fromkeys(counted, 0.0))
    assert watch.running_peak_bytes() is None


HOLDS_THE_LAST = """
import sys
from odcrt.workload.memory_watch import _status_bytes, give_back_at_once
if sys.argv[1] == "at once":
    give_back_at_once()
first = bytearray(b"x") * (1 << 20)
del first  # from now on, the C library would take what is of this size from what it keeps
blocks = [bytearray(b"x") * (1 << 20) for _ in range(200)]
full = _status_bytes()["VmRSS"]
blocks[:-1] = []
print(full - _status_bytes()["VmRSS"])
"""


@needs_linux
def test_what_is_freed_is_given_back_at_once():
    """Even below a block that is still held, where the C library would keep it."""

    def given_back_bytes(how):
        command = [sys.executable, "-c", HOLDS_THE_LAST, how]
        return float(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)

    assert given_back_bytes("at once") > 190 * MIB
    assert given_back_bytes("as it likes") < 50 * MIB
