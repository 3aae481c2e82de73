"""Arrangements either way round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odcsim.partition.homes import homes_of, items_of_parts


@given(homes=st.lists(st.integers(0, 5), max_size=40), empty=st.integers(0, 3))
def test_there_and_back(homes, empty):
    parts = [[item for item, home in enumerate(homes) if home == part] for part in range(6 + empty)]
    assert homes_of(parts, items=len(homes)).tolist() == homes
    assert items_of_parts(homes_of(parts, items=len(homes)), parts=6 + empty) == parts
