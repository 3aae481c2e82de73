"""Runs a function on several processes that form a gloo group, and tells what became of each.

Processes are forked from a server that has torch imported already, so that a launch takes a tenth of a second. A
function is passed by name, so it must stand at the top of a module of this folder. Every process ends within the time
allowed: it dumps its stack and exits by itself, and is killed if it does not; all are reaped. Warnings are errors in
them.

A whole program runs as well, in the environment that `odcrt launch` gives it, which spares every rank some seconds of
imports. What the launcher itself does is for tests that run it.
"""

from __future__ import annotations

import faulthandler
import functools
import io
import multiprocessing
import os
import pickle
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any, Self

from odcrt.launching.ranks import rank_environment

__all__ = ["Outcome", "RankFailed", "Ranks", "run", "run_program"]

_CONTEXT = multiprocessing.get_context("forkserver")
# Torch imports its compiler at the first step of an optimizer, which takes as long as all the rest.
_CONTEXT.set_forkserver_preload(
    ["pytest", "torch", "torch._dynamo", "torch.distributed.fsdp", "odcrt", "odcrt.fsdp.on_demand"]
)

# How long the others may go on once a rank has failed, in `run`.
_GRACE_S = 15.0


class RankFailed(AssertionError):
    """A rank of a check that must succeed did not; the text holds its traceback."""


@dataclass(frozen=True)
class Outcome:
    """What became of a rank.

    Attributes:
        rank: which.
        exit_code: of its process; negative for a signal.
        value: what the function returned.
        error_type: name of the exception that it raised; empty if none.
        error: the exception's text, with its notes, one a line.
        raised_s: when it was raised, on the clock of the host; infinite if none was.
        ended_s: seconds from the start of all to the end of this one.
        output: what it wrote to standard output and standard error.
    """

    rank: int
    exit_code: int | None = None
    value: Any = None
    error_type: str = ""
    error: str = ""
    raised_s: float = float("inf")
    ended_s: float = float("inf")
    output: str = ""


class Ranks:
    """Processes that run one function, each as a rank of a group. Leaving the context kills what is left of them."""

    def __init__(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: int = 2,
        timeout_s: float = 60.0,
        collective_timeout_s: float = 1800.0,
        forms_group: bool = True,
        **named: Any,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._path = Path(self._folder.name)
        self._timeout_s = timeout_s
        self._start_s = time.monotonic()
        self._processes = [
            _CONTEXT.Process(
                target=_be_rank,
                args=(
                    functools.partial(function, *args, **named),
                    rank,
                    ranks,
                    self._path,
                    timeout_s,
                    timedelta(seconds=collective_timeout_s) if forms_group else None,
                ),
            )
            for rank in range(ranks)
        ]
        self._ended_s = [float("inf")] * ranks
        for process in self._processes:
            process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._folder.cleanup()

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self, timeout_s: float | None = None, *, but: int | None = None) -> list[Outcome]:
        """Wait until all have ended, but one if told so.

        Raises:
            RankFailed: not within the time allowed.
        """
        until_s = time.monotonic() + (self._timeout_s + 5.0 if timeout_s is None else timeout_s)
        while waiting := self._running(but):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                told = "\n".join(f"rank {rank}:\n{self.outcome(rank).output}" for rank in waiting)
                raise RankFailed(f"ranks {waiting} have not ended in time\n{told}")
            wait_for_any([self._processes[rank].sentinel for rank in waiting], left_s)
        return [self.outcome(rank) for rank in range(len(self._processes)) if rank != but]

    def wait_for_first(self) -> None:
        """Wait until one has ended without success, or all have ended."""
        until_s = time.monotonic() + self._timeout_s + 5.0
        while (waiting := self._running(None)) and time.monotonic() < until_s:
            left_s = max(0.0, until_s - time.monotonic())
            wait_for_any([self._processes[rank].sentinel for rank in waiting], left_s)
            if any(process.exitcode not in {None, 0} for process in self._processes):
                return

    def _running(self, but: int | None) -> list[int]:
        now_s = time.monotonic() - self._start_s
        running = []
        for rank, process in enumerate(self._processes):
            if process.exitcode is None:
                running.append(rank)
            else:
                self._ended_s[rank] = min(self._ended_s[rank], now_s)
        return [rank for rank in running if rank != but]

    def outcome(self, rank: int) -> Outcome:
        """What is known of a rank so far."""
        found = self._path / f"rank-{rank}.pickle"
        written = pickle.loads(found.read_bytes()) if found.exists() else Outcome(rank)  # noqa: S301 - our own
        output = self._path / f"rank-{rank}.txt"
        return replace(
            written,
            exit_code=self._processes[rank].exitcode,
            ended_s=self._ended_s[rank],
            output=output.read_text(errors="replace") if output.exists() else "",
        )

    def reached(self, name: str, *, timeout_s: float = 20.0) -> None:
        """Wait until a rank has called `tell(name)`."""
        until_s = time.monotonic() + timeout_s
        while not (self._path / f"told-{name}").exists():
            assert time.monotonic() < until_s, f"no rank has told {name}"
            time.sleep(0.005)


def run(function: Callable[..., Any], *args: Any, ranks: int = 2, timeout_s: float = 60.0, **named: Any) -> list[Any]:
    """Run a function on all ranks and return what each returned.

    Raises:
        RankFailed: one has not succeeded; the text is the output of the first that failed.
    """
    with Ranks(function, *args, ranks=ranks, timeout_s=timeout_s, **named) as started:
        started.wait_for_first()
        if started._running(None):
            try:
                outcomes = started.wait(_GRACE_S)
            except RankFailed:
                outcomes = [started.outcome(rank) for rank in range(ranks)]
        else:
            outcomes = started.wait()
        failed = [outcome for outcome in outcomes if outcome.exit_code != 0]
        if failed:
            first = min(failed, key=lambda outcome: outcome.raised_s)
            others = ", ".join(f"rank {o.rank}: exit code {o.exit_code} {o.error_type}".rstrip() for o in failed)
            raise RankFailed(f"{others}\n--- output of rank {first.rank} ---\n{first.output}")
        return [outcome.value for outcome in outcomes]


def run_program(program: Sequence[object], *, ranks: int, timeout_s: float = 60.0) -> list[str]:
    """Run a script and its arguments, or `-m` and a module, on all ranks; return what each printed.

    Raises:
        RankFailed: as `run` does.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(word) for word in program]
    return run(_play, words, ranks, port, ranks=ranks, timeout_s=timeout_s, forms_group=False)


def _play(words: list[str], ranks: int, port: int) -> str:
    """Be one rank of a program; what it prints."""
    assert _rank is not None, "only ranks play"
    os.environ.update(rank_environment({}, rank=_rank, ranks=ranks, port=port))
    warnings.resetwarnings()
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    with redirect_stdout(io.StringIO()) as printed:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    return printed.getvalue()


_rank: int | None = None
_folder_of_rank: Path | None = None


def tell(name: str) -> None:
    """In a rank: let the test know that this point is reached."""
    assert _folder_of_rank is not None, "only ranks tell"
    (_folder_of_rank / f"told-{name}").touch()


def _be_rank(
    function: Callable[[], Any],
    rank: int,
    ranks: int,
    folder: Path,
    timeout_s: float,
    collective_timeout: timedelta | None,
) -> None:
    """Run the function in this process, within a group unless there is no time-out for its collectives."""
    global _folder_of_rank, _rank
    _folder_of_rank, _rank = folder, rank
    output = os.open(folder / f"rank-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=sys.stderr)
    warnings.simplefilter("error")

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if collective_timeout is not None:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=collective_timeout
            )
        value = function()
    except BaseException as error:  # noqa: BLE001 - told to the test, whatever it is
        notes = [str(error), *getattr(error, "__notes__", [])]
        _write(folder, Outcome(rank, None, None, type(error).__name__, "\n".join(notes), time.monotonic()))
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None
    _write(folder, Outcome(rank, None, value))
    if collective_timeout is not None:
        dist.barrier()
        dist.destroy_process_group()


def _write(folder: Path, outcome: Outcome) -> None:
    path = folder / f"rank-{outcome.rank}.pickle"
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(path)
