"""A set of numbers in rows: what a sorted list would answer, in rows that stay short however many numbers there are."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.partition import ascending
from odcsim.partition.ascending import AscendingNumbers


@pytest.fixture(scope="module")
def short_rows():
    """Rows of at most four, so that few numbers make many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ascending, "_LONGEST_ROW", 4)
        yield 4


def next_of(sorted_numbers, number):
    place = bisect_left(sorted_numbers, number)
    return sorted_numbers[place] if place < len(sorted_numbers) else None


@given(st.lists(st.integers(0, 60)))
def test_the_next_number_is_that_of_a_sorted_list(short_rows, changed):
    """A number is added the first time that it comes, removed the second time, and so on."""
    numbers, expected = AscendingNumbers(), []
    for number in changed:
        if number in expected:
            expected.remove(number)
            numbers.remove(number)
        else:
            expected = sorted([*expected, number])
            numbers.add(number)
        for asked in (0, number, number + 1, 61):
            assert numbers.next_from(asked) == next_of(expected, asked)
        assert [entry for row in numbers._rows for entry in row] == expected
        assert all(0 < len(row) <= short_rows for row in numbers._rows)
        assert numbers._lasts == [row[-1] for row in numbers._rows]


@pytest.mark.parametrize("step", [1, -1])
def test_rows_stay_short_whatever_the_order(step):
    """No addition moves more than a row, and there are not many more rows than it takes."""
    numbers = AscendingNumbers()
    for number in range(100_000)[::step]:
        numbers.add(number)
    assert max(map(len, numbers._rows)) <= ascending._LONGEST_ROW
    assert len(numbers._rows) <= 2 * 100_000 / ascending._LONGEST_ROW + 1
    assert numbers.next_from(99_999) == 99_999
