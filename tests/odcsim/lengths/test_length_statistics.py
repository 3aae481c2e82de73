"""Statistics of lengths, checked against numbers worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from odcsim.errors import InputError
from odcsim.lengths import cut, describe_lengths


def test_statistics_of_a_short_list() -> None:
    # Ranks from 0: p50 at 1.5, p90 at 2.7, p99 at 2.97; variance (9 + 4 + 1 + 36) / 4.
    assert describe_lengths([2, 3, 4, 11]) == {
        "count": 4,
        "mean": 5.0,
        "p50": 3.5,
        "p90": pytest.approx(4 + 0.7 * 7),
        "p99": pytest.approx(4 + 0.97 * 7),
        "max": 11,
        "cv": pytest.approx(math.sqrt(12.5) / 5),
    }


def test_shape_does_not_matter_and_numbers_are_plain() -> None:
    facts = describe_lengths(np.array([[2, 3], [4, 11]]))
    assert facts == describe_lengths([2, 3, 4, 11])
    assert json.loads(json.dumps(facts)) == facts
    assert [type(facts[name]) for name in ("count", "mean", "max", "cv")] == [int, float, int, float]


def test_equal_lengths_do_not_vary() -> None:
    assert describe_lengths([7] * 9)["cv"] == 0.0


def test_sums_beyond_32_bits_are_exact() -> None:
    assert describe_lengths(np.full(1000, 1_000_000_000))["mean"] == 1e9


def test_nothing_cannot_be_described() -> None:
    with pytest.raises(InputError, match="no lengths"):
        describe_lengths([])


def test_cut_shortens_only_what_is_longer_and_leaves_its_input() -> None:
    lengths_NS = np.array([[5, 10], [11, 4]])
    assert cut(lengths_NS, cut_tokens=10).tolist() == [[5, 10], [10, 4]]
    assert lengths_NS.tolist() == [[5, 10], [11, 4]]


def test_a_cut_to_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="1 token or more"):
        cut([5], cut_tokens=0)
