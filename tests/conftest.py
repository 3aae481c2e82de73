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
