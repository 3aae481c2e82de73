"""The pool of buffers: memory is used again as soon as nobody refers to it, and never before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from odcrt.fsdp.buffers import BufferPool  # noqa: E402

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16, torch.float64)


def take(pool, numel, dtype=torch.float32):
    return pool.take(numel, dtype=dtype, device=CPU)


def test_a_dropped_buffer_is_used_again():
    pool = BufferPool()
    first = take(pool, 100)
    place = first.data_ptr()
    del first
    assert take(pool, 100).data_ptr() == place
    assert pool.held_bytes == 400


def test_a_buffer_serves_any_type_and_any_smaller_size():
    pool = BufferPool()
    place = take(pool, 100).data_ptr()
    half = take(pool, 150, torch.bfloat16)
    assert half.data_ptr() == place
    assert half.dtype == torch.bfloat16
    assert half.shape == (150,)
    assert pool.held_bytes == 400


@pytest.mark.parametrize(
    "keep", [lambda b: b, lambda b: b[3:5], lambda b: b.view(2, -1)[0], lambda b: torch.as_strided(b, (2,), (1,), 7)]
)
def test_a_buffer_that_somebody_refers_to_is_not_used_again(keep):
    """Views keep it as well: FSDP2 holds slices of what it was given."""
    pool = BufferPool()
    with torch.no_grad():
        kept = keep(take(pool, 100).fill_(1.0))
        take(pool, 100).fill_(2.0)
    assert (kept == 1.0).all()
    del kept
    take(pool, 100)
    assert pool.held_bytes == 800


def test_a_larger_need_takes_the_place_of_a_free_buffer():
    """What a small unit needed does not stay beside what a large one needs."""
    pool = BufferPool()
    for numel in (10, 20, 30, 20, 10):
        take(pool, numel)
    assert pool.held_bytes == 120


def test_the_smallest_that_fits_is_taken():
    pool = BufferPool()
    large, small = take(pool, 1000), take(pool, 10)
    places = large.data_ptr(), small.data_ptr()
    del large, small
    first, second = take(pool, 5), take(pool, 5)
    assert (second.data_ptr(), first.data_ptr()) == places


def test_nothing_is_a_buffer_as_well():
    pool = BufferPool()
    assert take(pool, 0).shape == (0,)
    assert take(pool, 0, torch.int64).shape == (0,)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.sampled_from(TYPES))))
def test_buffers_in_use_never_overlap(steps):
    """Take buffers and drop the oldest, in any order; each in use keeps its own value."""
    pool, used, most = BufferPool(), [], 0
    for number, (numel, drop, dtype) in enumerate(steps, start=1):
        if drop and used:
            used.pop(0)
        used.append((float(number), take(pool, numel, dtype).fill_(number)))
        most = max(most, len(used))
        assert all((buffer == value).all() for value, buffer in used)
    assert pool.held_bytes <= most * 50 * 8
