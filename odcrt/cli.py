"""The `odcrt` program. This version holds the simulator alone: the command says so, and fails."""

from __future__ import annotations

import sys

__all__ = ["main"]

_TEXT = "odcrt: error: this version holds the simulator (odcsim) alone; the runtime is not in it yet"


def main() -> None:
    """Entry point of the console script: exit code 1, since nothing was run."""
    sys.stderr.write(_TEXT + "\n")
    sys.exit(1)
