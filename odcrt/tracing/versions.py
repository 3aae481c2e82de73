"""What a run ran on, for its trace. Found without importing torch."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from odcsim import __version__

__all__ = ["available_processors", "describe_versions"]


def available_processors() -> int:
    """CPUs that this process may run on; quotas of control groups are not looked at. 0 where nobody tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def describe_versions() -> dict[str, str]:
    """Versions by name."""
    try:
        torch = version("torch")
    except PackageNotFoundError:  # built from source, and not installed
        torch = "unknown"
    return {"python": platform.python_version(), "torch": torch, "odcsim": __version__}
