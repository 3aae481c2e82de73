"""Shared by the simulator's tests: a small scenario that is valid as it stands, to be changed by each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from odcsim.scenario import parse_scenario
from odcsim.simulation import simulate


def small_document():
    """A decoder of two blocks on four ranks of one node, three minibatches of eight samples, two cases."""
    return {
        "name": "small",
        "model": {
            "name": "tiny",
            "layers": 2,
            "hidden": 64,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 16,
            "ffn": 128,
            "vocab": 1000,
        },
        "cluster": {"gpu": "a100-80g-sxm", "gpus_per_node": 4},
        "workload": {
            "lengths": {"values": [512, 8192, 1024, 700, 3000, 40]},
            "samples_per_rank": 2,
            "max_tokens": 8192,
            "minibatches": 3,
        },
        "compute": {"fitted": {"quadratic": 2.0, "linear": 3.0, "constant": 0.5, "per_tokens": 32000}},
        "cases": [{"sync": "fsdp", "policy": "lb-micro"}, {"sync": "odc", "policy": "lb-mini"}],
    }


def with_keys(document, changes):
    """The document with dotted keys set."""
    for dotted, value in changes.items():
        *above, last = dotted.split(".")
        section = document
        for key in above:
            section = section[int(key)] if isinstance(section, list) else section.setdefault(key, {})
        section[int(last) if isinstance(section, list) else last] = value
    return document


@pytest.fixture
def document():
    """See `small_document`."""
    return small_document()


@pytest.fixture
def changed():
    """Makes the small document with dotted keys set."""
    return lambda changes=(): with_keys(small_document(), dict(changes))


@pytest.fixture
def run(tmp_path):
    """Simulates a document; paths in it start from an empty folder."""

    def simulated(document, **options):
        return simulate(parse_scenario(document), base_folder=options.pop("base_folder", Path(tmp_path)), **options)

    return simulated
