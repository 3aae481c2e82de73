"""The processes of the ranks of one host: all are started together, and none is left when a run is over.

Each rank is a process of its own, with a group of its own, so that what it starts ends with it. The first rank to fail
gives the others a grace, in which they find out and say so by themselves; then they are stopped. The launcher's own end
ends all: the kernel tells ranks (see `bootstrap`), and a guard, a shell that waits for the launcher's end of a pipe,
kills whatever they have started.

Leaders of groups are reaped last: until then their number cannot belong to a process that is not ours.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Self

from odcrt.launching import bootstrap
from odcrt.launching.endings import Ending, read_report
from odcrt.launching.output import Prefix, RankOutput, standard_streams
from odcsim.errors import RunError

__all__ = ["RankRun", "rank_environment", "run_ranks"]

_POLL_S = 0.02
_CHUNK_BYTES = 1 << 16
# Ranks that a deadline has told of will not come any more; others that waited for them are about to say so too.
_GRACE_AFTER_DEADLINE_S = 2.0
# After the grace: for a stack to be printed; from SIGTERM to SIGKILL; for the output of what ranks have started.
_STACK_S = 0.3
_TERMINATION_S = 3.0
_LINGERING_S = 2.0
_STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RankRun:
    """A run that is over.

    Attributes:
        endings: of all ranks.
        stopped_by: the signal that ended the launcher's work early; 0 for none.
    """

    endings: tuple[Ending, ...]
    stopped_by: int


def rank_environment(base: Mapping[str, str], *, rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment of a rank: what torchrun would set on a single host, over that of the launcher."""
    return {
        **base,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
        bootstrap.LAUNCHER_VARIABLE: str(os.getpid()),
    }


def run_ranks(
    program: Sequence[str],
    *,
    ranks: int,
    grace_s: float,
    folder: Path,
    log_folder: Path,
    prefix: Prefix = Prefix.OTHERS,
    streams: tuple[BinaryIO, BinaryIO] | None = None,
    environment: Mapping[str, str] | None = None,
    progress: Callable[[], None] | None = None,
) -> RankRun:
    """Run a program on every rank, until all have ended. To be called from the main thread.

    Args:
        program: script and its arguments, or `-m`, a module and its arguments.
        ranks: processes.
        grace_s: what other ranks get to end by themselves after one has failed; little after a missed deadline.
        folder: a temporary one, for what ranks tell the launcher; it is removed if the launcher is killed.
        log_folder: for `rank-N.log`; it must be there.
        prefix: which ranks' lines get one.
        streams: where ranks' standard output and error go; ours by default.
        environment: added to ours.
        progress: called every few milliseconds.

    Raises:
        RunError: a process cannot be started.
    """
    started = _Ranks(grace_s)
    # Signals are handled until the last process is reaped.
    with _signals(started.stop), started:
        base, port = {**os.environ, **(environment or {})}, _free_port()
        for rank in range(ranks):
            report = folder / f"end-of-rank-{rank}.json"
            output = RankOutput(
                rank, prefix=prefix, streams=streams or standard_streams(), log=log_folder / f"rank-{rank}.log"
            )
            variables = rank_environment(base, rank=rank, ranks=ranks, port=port)
            started.start(rank, program, {**variables, bootstrap.REPORT_VARIABLE: str(report)}, report, output)
        started.guard(folder)
        return started.watch(progress or (lambda: None))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Have signals that would end this process end the ranks first."""

    def handle(number: int, _frame: FrameType | None) -> None:
        stop(number)

    before = {number: signal.signal(number, handle) for number in _STOPPING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Rank:
    """A process, until it is reaped."""

    rank: int
    process: subprocess.Popen[bytes]
    report: Path
    output: RankOutput
    ending: Ending | None = None
    was_stopped: bool = False

    def has_ended(self) -> bool:
        """Whether the process has ended; it is left unreaped."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


@dataclass
class _Ranks:
    """All processes. As a context manager it leaves none behind."""

    grace_s: float
    _ranks: list[_Rank] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _guard: subprocess.Popen[bytes] | None = None
    _stopped_by: int = 0
    # When the next step of stopping is due; None while there is no reason to stop.
    _next_step_s: float | None = None
    _steps: list[tuple[int, float]] = field(
        default_factory=lambda: [
            (signal.SIGUSR2, _STACK_S),
            (signal.SIGTERM, _TERMINATION_S),
            (signal.SIGKILL, _TERMINATION_S),
        ]
    )

    def start(
        self, rank: int, program: Sequence[str], environment: Mapping[str, str], report: Path, output: RankOutput
    ) -> None:
        if self._stopped_by:
            return
        command = [sys.executable, str(Path(bootstrap.__file__)), *program]
        try:
            process = subprocess.Popen(  # noqa: S603 - what the user asked for
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"rank {rank} cannot be started: {error.strerror}") from error
        self._ranks.append(_Rank(rank, process, report, output))
        for number, stream in enumerate((process.stdout, process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (output, number))

    def guard(self, folder: Path) -> None:
        """Start the process that kills all groups, and removes a folder, should this one be killed."""
        groups = [f"-{rank.process.pid}" for rank in self._ranks]
        self._guard = subprocess.Popen(  # noqa: S603 - a fixed text
            ["/bin/sh", "-c", 'read -r over || { kill -s KILL -- "$@"; rm -rf -- "$0"; }', str(folder), *groups],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self, number: int) -> None:
        """Handle a signal: pass it on; a second one does not wait any more."""
        again = bool(self._stopped_by)
        self._stopped_by = number
        self._steps = [] if again else [(signal.SIGKILL, _TERMINATION_S)]
        self._next_step_s = time.monotonic() + _TERMINATION_S
        for rank in self._ranks:
            rank.was_stopped = True
            rank.signal_group(signal.SIGKILL if again else number)

    def watch(self, progress: Callable[[], None]) -> RankRun:
        """Until all ranks have ended."""
        seen_alive_s = time.monotonic()
        while any(rank.ending is None for rank in self._ranks):
            self._forward(_POLL_S)
            now_s = time.monotonic()
            for rank in self._ranks:
                if rank.ending is None and rank.has_ended():
                    self._note_ending(rank, seen_alive_s)
            seen_alive_s = now_s
            self._stop_when_due(now_s)
            progress()
        self._finish_output()
        return RankRun(tuple(rank.ending for rank in self._ranks if rank.ending is not None), self._stopped_by)

    def _forward(self, longest_s: float) -> None:
        """Take what ranks have printed, waiting for it a little."""
        for key, _ in self._selector.select(longest_s):
            output, number = key.data
            try:
                data = os.read(key.fd, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            if data:
                output.feed(number, data)
            else:
                self._selector.unregister(key.fileobj)
        for rank in self._ranks:
            rank.output.show_unfinished()

    def _note_ending(self, rank: _Rank, seen_alive_s: float) -> None:
        # Whatever it printed is there by now.
        self._forward(0.0)
        found = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        report = read_report(rank.report) if code != 0 else None
        rank.ending = Ending(
            rank=rank.rank,
            code=code,
            at_s=report.at_s if report is not None else seen_alive_s,
            report=report,
            was_stopped=rank.was_stopped,
            last_lines=rank.output.last_lines,
        )
        if rank.ending.failed:
            told_late = report is not None and report.error == "DeadlineExceeded"
            grace_s = min(self.grace_s, _GRACE_AFTER_DEADLINE_S) if told_late else self.grace_s
            due_s = time.monotonic() + grace_s
            self._next_step_s = due_s if self._next_step_s is None else min(self._next_step_s, due_s)

    def _stop_when_due(self, now_s: float) -> None:
        if self._next_step_s is None or now_s < self._next_step_s or not self._steps:
            return
        number, wait_s = self._steps.pop(0)
        self._next_step_s = now_s + wait_s
        for rank in self._ranks:
            if rank.ending is None:
                rank.was_stopped = True
                if number == signal.SIGUSR2:
                    # To the rank alone: what it has started would not know what to do with it.
                    os.kill(rank.process.pid, number)
                else:
                    rank.signal_group(number)

    def _finish_output(self) -> None:
        """Take the last output, that of processes included which ranks have started and which still run."""
        until_s = time.monotonic() + _LINGERING_S
        while self._selector.get_map() and time.monotonic() < until_s:
            self._forward(_POLL_S)
        for rank in self._ranks:
            rank.output.show_unfinished(all_of_it=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for rank in self._ranks:
            rank.signal_group(signal.SIGKILL)
        for rank in self._ranks:
            rank.process.wait()
            rank.output.close()
            for stream in (rank.process.stdout, rank.process.stderr):
                assert stream is not None
                stream.close()
        self._selector.close()
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"over\n")
