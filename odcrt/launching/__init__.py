"""Processes of a run: started, watched, and ended together.

    bootstrap   runs in every rank: ends with the launcher, and reports how it ended
    endings     how ranks ended, and which of them failed first
    output      what ranks print, forwarded live and kept in log files
    ranks       the processes

Nothing here imports torch, or knows what the processes do.
"""

from __future__ import annotations

from odcrt.launching.endings import Ending, Failure, explain_failure
from odcrt.launching.output import Prefix
from odcrt.launching.ranks import RankRun, run_ranks

__all__ = ["Ending", "Failure", "Prefix", "RankRun", "explain_failure", "run_ranks"]
