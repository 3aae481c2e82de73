"""How the ranks of a run ended, and which of them is to blame.

A rank fails by its own error, or follows: another one is gone, has failed, or is late. The first to fail by its own
error is the culprit. Where all follow (they wait for one that hangs, say), it is the first of those that tell so.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EndReport", "Ending", "Failure", "explain_failure", "name_signal", "read_report"]


@dataclass(frozen=True)
class EndReport:
    """What a rank told of the error that ended it.

    Attributes:
        at_s: when it was raised, by the monotonic clock that all processes of a host share.
        error: its class.
        message: its text.
        is_follower: whether it follows from another rank's.
        traceback: as Python shows it; empty for an exit code, the text of `sys.exit(text)`.
    """

    at_s: float
    error: str
    message: str
    is_follower: bool
    traceback: str


def read_report(path: Path) -> EndReport | None:
    """The report of a rank; None if it left none."""
    try:
        return EndReport(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(frozen=True)
class Ending:
    """How a rank ended.

    Attributes:
        rank: which.
        code: exit code; minus the signal for a rank that was killed.
        at_s: the error's time for a rank that reported one; otherwise when it was last seen alive.
        report: what it told.
        was_stopped: whether the launcher had asked it to end.
        last_lines: the last that it printed.
    """

    rank: int
    code: int
    at_s: float
    report: EndReport | None = None
    was_stopped: bool = False
    last_lines: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        return self.code != 0 and not self.was_stopped

    @property
    def is_follower(self) -> bool:
        """Whether it failed because of another rank."""
        return self.report is not None and self.report.is_follower


@dataclass(frozen=True)
class Failure:
    """What to tell of a run that failed.

    Attributes:
        rank: the culprit.
        exit_code: its exit code, or 128 + the signal.
        headline: one line.
        details: its traceback, or whatever tells most of why; may be empty.
    """

    rank: int
    exit_code: int
    headline: str
    details: str


def name_signal(number: int) -> str:
    """What people call a signal: SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def explain_failure(endings: Sequence[Ending]) -> Failure | None:
    """The culprit among ranks that have all ended; None if none failed."""
    failed = sorted((ending for ending in endings if ending.failed), key=lambda ending: ending.at_s)
    if not failed:
        return None
    culprit = next((ending for ending in failed if not ending.is_follower), failed[0])
    return Failure(
        rank=culprit.rank,
        exit_code=culprit.code if culprit.code > 0 else 128 - culprit.code,
        headline=_headline(culprit, endings),
        details=_details(culprit, failed),
    )


def _headline(culprit: Ending, endings: Sequence[Ending]) -> str:
    if culprit.code < 0 and culprit.report is not None:
        told = f"rank {culprit.rank} failed, and ended by {name_signal(-culprit.code)}"
    elif culprit.code < 0:
        told = f"rank {culprit.rank} was killed by {name_signal(-culprit.code)}"
        if -culprit.code == signal.SIGKILL:
            told += " (by the kernel for lack of memory, perhaps)"
    else:
        told = f"rank {culprit.rank} failed with exit code {culprit.code}"
    stopped = [ending.rank for ending in endings if ending.was_stopped]
    if stopped:
        told += f"; {_ranks(stopped)} did not end in time and {'was' if len(stopped) == 1 else 'were'} stopped"
    return told


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _details(culprit: Ending, failed: Sequence[Ending]) -> str:
    if culprit.report is not None:
        return culprit.report.traceback
    # Without a word of its own, its last output and what the others say of it.
    lines = [f"rank {culprit.rank} printed last: {line}" for line in culprit.last_lines]
    lines += [
        f"rank {ending.rank}: {ending.report.error}: {ending.report.message}"
        for ending in sorted(failed, key=lambda ending: ending.rank)
        if ending.report is not None and ending.is_follower
    ]
    return "".join(f"{line}\n" for line in lines)
