"""Locks between processes: they exclude, they can be waited for with an end, and death gives them back."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("torch")

from ranks import Ranks, run, tell

from odcrt.transports.locks import hold_for_life, is_held_by_other, locked

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "shared"
    path.write_bytes(bytes(64))
    return path


def count_up(path, times):
    """Read, add one, write: every overlap of two processes loses a count."""
    file = os.open(path, os.O_RDWR)
    for _ in range(times):
        with locked(file, 0, deadline_s=10.0, late=lambda _: None):
            count = int.from_bytes(os.pread(file, 8, 8))
            os.sched_yield()
            os.pwrite(file, (count + 1).to_bytes(8), 8)
    os.close(file)


def test_a_lock_is_held_by_one_process_at_a_time(shared):
    run(count_up, shared, 300, ranks=3)
    assert int.from_bytes(shared.read_bytes()[8:16]) == 900


def hold(path, byte):
    file = os.open(path, os.O_RDWR)
    with locked(file, byte, deadline_s=1.0, late=lambda _: None):
        tell("held")
        time.sleep(30)


def test_other_bytes_are_other_locks(shared):
    file = os.open(shared, os.O_RDWR)
    with Ranks(hold, shared, 3, ranks=1) as holder:
        holder.reached("held")
        assert is_held_by_other(file, 3)
        assert not is_held_by_other(file, 2)
        with locked(file, 2, deadline_s=0.0, late=lambda _: None):
            pass
    os.close(file)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_gives_a_lock_back(shared, number):
    file = os.open(shared, os.O_RDWR)
    with Ranks(hold, shared, 3, ranks=1) as holder:
        holder.reached("held")
        assert is_held_by_other(file, 3)
        holder.signal(0, number)
        start_s = time.monotonic()
        with locked(file, 3, deadline_s=10.0, late=lambda _: None):
            pass
        assert time.monotonic() - start_s < 5.0
    os.close(file)


def test_waiting_ends_at_the_deadline_and_tells_how_long_it_has_been(shared):
    file = os.open(shared, os.O_RDWR)
    waits = []
    with Ranks(hold, shared, 0, ranks=1) as holder:
        holder.reached("held")
        with pytest.raises(TimeoutError, match=r"within 0\.2 s"), locked(file, 0, deadline_s=0.2, late=waits.append):
            pytest.fail("the lock is held by another process")
    assert waits == sorted(waits)
    assert waits[-1] > 0.2
    os.close(file)


def test_whoever_waits_may_be_told_to_stop(shared):
    def give_up(waited_s):
        if waited_s > 0.05:
            raise InterruptedError

    file = os.open(shared, os.O_RDWR)
    with Ranks(hold, shared, 0, ranks=1) as holder:
        holder.reached("held")
        with pytest.raises(InterruptedError), locked(file, 0, deadline_s=20.0, late=give_up):
            pytest.fail("the lock is held by another process")
    os.close(file)


def test_an_error_inside_gives_the_lock_back(shared):
    file = os.open(shared, os.O_RDWR)
    with pytest.raises(ZeroDivisionError), locked(file, 0, deadline_s=1.0, late=lambda _: None):
        1 / 0  # noqa: B018 - raises
    with Ranks(hold, shared, 0, ranks=1) as holder:
        holder.reached("held")
    os.close(file)


def live(path, byte):
    hold_for_life(os.open(path, os.O_RDWR), byte)
    tell("alive")
    time.sleep(30)


def test_a_sign_of_life_ends_with_its_process(shared):
    file = os.open(shared, os.O_RDWR)
    with Ranks(live, shared, 5, ranks=1) as other:
        other.reached("alive")
        assert is_held_by_other(file, 5)
        with pytest.raises(RuntimeError, match="byte 5 is held by another process"):
            hold_for_life(file, 5)
        other.signal(0, signal.SIGKILL)
        other.wait(10.0)
        assert not is_held_by_other(file, 5)
    os.close(file)
