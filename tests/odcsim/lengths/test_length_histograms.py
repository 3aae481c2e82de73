"""Histograms of lengths: the file, its faults, and draws that follow the bins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odcsim.errors import InputError
from odcsim.lengths import LengthHistogram, read_histogram

ReadHistogram = Callable[[dict[str, Any] | str], LengthHistogram]


@pytest.fixture
def histogram_of(tmp_path: Path) -> ReadHistogram:
    def write_and_read(facts: dict[str, Any] | str) -> LengthHistogram:
        path = tmp_path / "hist.json"
        path.write_text(facts if isinstance(facts, str) else json.dumps(facts), encoding="utf-8")
        return read_histogram(path)

    return write_and_read


def generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(7))


def test_bins_hold_their_lower_edge_and_the_last_its_upper_edge_too(histogram_of: ReadHistogram) -> None:
    histogram = histogram_of({"bin_edges": [1, 2, 4, 6], "counts": [3, 0, 1]})
    values, counts = np.unique(histogram.draw(generator(), 40_000), return_counts=True)
    assert values.tolist() == [1, 4, 5, 6]
    # 3/4 in the first bin; the last bin's quarter in equal parts. Five standard deviations are below 0.011.
    assert counts / 40_000 == pytest.approx([3 / 4, 1 / 12, 1 / 12, 1 / 12], abs=0.011)
    assert histogram.mean == pytest.approx(0.75 * 1 + 0.25 * 5)
    assert histogram.max == 6


class Ends(np.random.Generator):
    """Random numbers at the ends of their range, and where two bins meet."""

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        assert size == 3
        return np.array([0.0, 0.75, np.nextafter(1.0, 0.0)])


def test_the_extreme_random_numbers_fall_into_bins_that_have_a_count(histogram_of: ReadHistogram) -> None:
    histogram = histogram_of({"bin_edges": [1, 10, 20, 30, 40, 50], "counts": [0, 3, 0, 1, 0]})
    assert histogram.draw(Ends(np.random.PCG64(0)), 3).tolist() == [10, 30, 39]


def test_fractional_edges_hold_the_whole_numbers_between_them(histogram_of: ReadHistogram) -> None:
    histogram = histogram_of({"bin_edges": [0.5, 2.5, 3.5], "counts": [1.5, 0.5]})
    assert np.unique(histogram.draw(generator(), 1000)).tolist() == [1, 2, 3]


def test_a_histogram_from_zero_gives_no_length_of_zero(histogram_of: ReadHistogram) -> None:
    histogram = histogram_of({"bin_edges": [0, 3], "counts": [1]})
    assert np.unique(histogram.draw(generator(), 1000)).tolist() == [1, 2, 3]


def test_facts_beside_the_numbers_are_provenance(histogram_of: ReadHistogram) -> None:
    histogram = histogram_of({"bin_edges": [1, 2], "counts": [4], "total": 4, "synthetic": True, "licence": "MIT"})
    assert histogram.synthetic
    assert histogram.name == "hist"
    assert histogram.provenance == {"total": 4, "synthetic": True, "licence": "MIT"}


@pytest.mark.parametrize(
    ("facts", "key", "problem"),
    [
        ("{", "line 1", "is not JSON"),
        ({"counts": [1]}, "bin_edges", "is missing"),
        ({"bin_edges": [1, 2]}, "counts", "is missing"),
        ({"bin_edges": 5, "counts": [1]}, "bin_edges", "must be a list"),
        ({"bin_edges": [1], "counts": []}, "bin_edges", "two or more increasing"),
        ({"bin_edges": [1, 3, 3], "counts": [1, 1]}, "bin_edges", "two or more increasing"),
        ({"bin_edges": [1, "3"], "counts": [1]}, "bin_edges.1", "must be a number"),
        ({"bin_edges": [-1, 3], "counts": [1]}, "bin_edges.0", "must be a number from 0"),
        ({"bin_edges": [1, 10**400], "counts": [1]}, "bin_edges.1", "must be a number from 0"),
        ('{"bin_edges": [1, NaN], "counts": [1]}', "bin_edges.1", "must be a number"),
        ({"bin_edges": [1, 2], "counts": [True]}, "counts.0", "must be a number"),
        ({"bin_edges": [1, 2, 3], "counts": [1, -1]}, "counts.1", "must be a number from 0"),
        ({"bin_edges": [1, 2, 3], "counts": [1]}, "counts", "one number a bin: 2, not 1"),
        ({"bin_edges": [1, 2, 3], "counts": [0, 0]}, "counts", "not all be zero"),
        ({"bin_edges": [1, 2, 3], "counts": [1, 1], "total": 3}, "total", "the sum of the counts, 2"),
        ({"bin_edges": [1, 2, 3], "counts": [1, 1], "total": 10**400}, "total", "the sum of the counts, 2"),
        ({"bin_edges": [1.2, 1.8, 3], "counts": [1, 1]}, "bin_edges", "bin 0, 1.2 to 1.8, has a count"),
        ({"bin_edges": [1, 2], "counts": [1], "synthetic": 1}, "synthetic", "true or false"),
    ],
)
def test_a_faulty_histogram_is_named(
    histogram_of: ReadHistogram, tmp_path: Path, facts: dict[str, Any] | str, key: str | None, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        histogram_of(facts)
    assert (caught.value.file, caught.value.key) == (str(tmp_path / "hist.json"), key)


def test_a_missing_histogram_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workload\.lengths\.histogram: no such file"):
        read_histogram(tmp_path / "none.json", key="workload.lengths.histogram")
