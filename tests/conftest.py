"""Shared by all tests: where the project's data are."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def root():
    """The top of the project."""
    return ROOT


@pytest.fixture
def traces(root):
    """The shipped length traces."""
    return root / "traces" / "lengths"


def pytest_collection_modifyitems(config, items):
    """Say which tests stay together where several processes share the work: those that start ranks, and each file's.

    Ranks must not be watched for what others leave behind, and a file's fixtures are made once.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        starts_ranks = item.path.is_relative_to(ROOT / "tests" / "odcrt")
        item.add_marker(pytest.mark.xdist_group("ranks" if starts_ranks else str(item.path.relative_to(ROOT))))
