"""What a run ran on, for its trace. Found without importing torch."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from odcsim import __version__

__all__ = ["describe_versions"]


def describe_versions() -> dict[str, str]:
    """Versions by name."""
    try:
        torch = version("torch")
    except PackageNotFoundError:  # built from source, and not installed
        torch = "unknown"
    return {"python": platform.python_version(), "torch": torch, "odcsim": __version__}
