"""Published results: the golden setting, the paper's trends, and the curves of the independent port."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def experiments():
    """Every experiment of scenarios/published, simulated once."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
    try:
        import published
    finally:
        sys.path.pop(0)
    found = {experiment.identifier: experiment for experiment in published.run_all()}
    return published, found


def speedups(experiments, identifier, case):
    """Predicted speedups of one case, point by point."""
    return [row.predicted for row in experiments[1][identifier].rows if row.case == case]


MICRO, MINI = "ODC lb-micro", "ODC lb-mini"
NOPAD = "ODC lb-mini overlap gather-only"


def test_golden_setting(experiments):
    rows = {row.case: row.predicted for row in experiments[1]["minibatch-size"].rows if "golden" in row.point}
    assert 1.08 <= rows[MICRO] <= 1.22
    assert 1.22 <= rows[MINI] <= 1.40


@pytest.mark.parametrize("case", [MICRO, MINI])
def test_parity_at_one_sample_a_rank(experiments, case):
    assert speedups(experiments, "minibatch-size", case)[0] == pytest.approx(1.0, abs=0.03)


def test_gain_is_largest_at_a_moderate_number_of_samples(experiments):
    for case in (MICRO, MINI):
        gains = speedups(experiments, "minibatch-size", case)
        peak = gains.index(max(gains))
        assert 0 < peak < len(gains) - 1


def test_gain_rises_with_the_cut_off(experiments):
    gains = speedups(experiments, "cut-off", MINI)
    assert gains == sorted(gains)
    assert gains[-1] > gains[0] + 0.1
    assert speedups(experiments, "cut-off", MICRO)[-1] > speedups(experiments, "cut-off", MICRO)[0] + 0.1


def test_gain_falls_with_packing(experiments):
    for case in (MICRO, MINI):
        gains = speedups(experiments, "packing", case)
        # Once everything of a rank fits into one microbatch, a larger cap changes nothing more.
        assert gains == sorted(gains, reverse=True)
        assert gains[-1] < gains[0] - 0.1


def test_gain_rises_with_devices(experiments):
    gains = speedups(experiments, "devices", MINI)
    assert gains == sorted(gains)
    assert gains[-1] > gains[0] + 0.1


def test_port_on_one_node_is_a_hump(experiments):
    at_8, at_16, at_32, at_64, at_128 = speedups(experiments, "port-one-node", NOPAD)
    assert at_8 < 1.03
    assert max(at_8, at_16, at_32, at_64, at_128) in {at_16, at_32}
    assert min(at_16, at_32, at_64, at_128) > 1


def test_port_on_two_nodes_rises(experiments):
    at_16, _, at_64, at_128 = speedups(experiments, "port-two-nodes", NOPAD)
    assert at_16 < 1
    assert at_64 > 1
    assert at_128 > 1


def test_port_error(experiments):
    published, found = experiments
    errors = published.port_errors(list(found.values()))
    assert len(errors) == 9
    assert statistics.mean(errors) <= 0.08


def test_page_is_up_to_date(experiments, root):
    """docs/published.md is what the benchmark writes."""
    published, found = experiments
    assert (root / "docs" / "published.md").read_text(encoding="utf-8") == published.to_markdown(list(found.values()))
