"""The command line, one file a command. What a command needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

from odcsim.cli.app import main

__all__ = ["main"]
