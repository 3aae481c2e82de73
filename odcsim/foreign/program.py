"""What a rank's program was doing when: minibatches, microbatches, and marks of FSDP2's hooks within them.

Taken from annotations alone, which the program leaves in its own time: on a GPU, kernels run later than they are
launched. A *pass* is one forward of the root with the backward that belongs to it; it begins where FSDP2 enters the
root. A pass with a backward is a microbatch; without one it evaluates something.

A minibatch ends with the optimizer's step, or with several of them in a row. What lies before the first step's passes,
or after the last step, may be half of a minibatch, and is left out.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odcsim.errors import InputError
from odcsim.foreign.rank_file import Annotation, RankFile

__all__ = ["ROOT_PATH", "FsdpMark", "Minibatch", "Pass", "Place", "Program", "read_program"]

ROOT_PATH = ""
"""Of the root unit, among the paths of modules."""

_FSDP = re.compile(r"FSDP::(\w+)(?: \((.*)\))?(?: \[pg=\d+\])?")
_STEP_NUMBER = re.compile(r"ProfilerStep#(\d+)")
_BACKWARD_CALLBACK = "root_post_backward_callback"


class FsdpMark(NamedTuple):
    """Something that FSDP2 did for one unit.

    Attributes:
        start_ns: when it began.
        end_ns: when it was done.
        what: "pre_forward", "all_gather", "post_backward_reduce" and so on.
        path: of the unit's module, from the root; empty for the root.
    """

    start_ns: int
    end_ns: int
    what: str
    path: str


class Place(NamedTuple):
    """Where a moment belongs.

    Attributes:
        minibatch: position among the whole ones of the file.
        microbatch: position among those of the minibatch; -1: none.
    """

    minibatch: int
    microbatch: int


@dataclass(frozen=True)
class Pass:
    """One forward of the root, and its backward.

    Attributes:
        start_ns: FSDP2 entered the root.
        end_ns: the last thing that FSDP2 did for it.
        microbatch: position among the microbatches of the minibatch; -1: there was no backward.
        marks: what FSDP2 did in it, by start.
    """

    start_ns: int
    end_ns: int
    microbatch: int
    marks: tuple[FsdpMark, ...]


@dataclass(frozen=True)
class Minibatch:
    """One whole minibatch.

    Attributes:
        number: of the profiler's step in which it ended; -1 where the file has no such steps.
        start_ns: end of the optimizer's step before it, or start of its first pass.
        end_ns: end of the optimizer's step.
        passes: in order.
        steps: of optimizers, in order.
    """

    number: int
    start_ns: int
    end_ns: int
    passes: tuple[Pass, ...]
    steps: tuple[tuple[int, int], ...]

    @property
    def microbatches(self) -> int:
        """How many passes have a backward."""
        return sum(one.microbatch >= 0 for one in self.passes)


@dataclass(frozen=True)
class Program:
    """The whole minibatches of one file.

    Attributes:
        minibatches: in order.
        notes: what was left out, for people.
    """

    minibatches: tuple[Minibatch, ...]
    notes: tuple[str, ...] = ()

    def place(self, moment_ns: int) -> Place | None:
        """The minibatch and microbatch of a moment in the program's time; None outside of whole minibatches."""
        position = bisect_right(self.minibatches, moment_ns, key=lambda minibatch: minibatch.start_ns) - 1
        if position < 0 or moment_ns > self.minibatches[position].end_ns:
            return None
        passes = self.minibatches[position].passes
        found = bisect_right(passes, moment_ns, key=lambda one: one.start_ns) - 1
        within = found >= 0 and moment_ns <= passes[found].end_ns
        return Place(position, passes[found].microbatch if within else -1)


def read_program(trace: RankFile) -> Program:
    """Find minibatches and passes.

    Raises:
        InputError: no annotation of FSDP2 or of an optimizer, or no whole minibatch.
    """
    marks = [mark for annotation in trace.annotations if (mark := _fsdp_mark(annotation)) is not None]
    if not marks:
        raise InputError(
            "has no annotation of FSDP2 (FSDP::pre_forward and the like): record a model under fully_shard, with "
            "ProfilerActivity.CPU among the activities",
            file=trace.path,
        )
    steps = _outermost(a for a in trace.annotations if a.name.startswith("Optimizer.step#"))
    if not steps:
        raise InputError(
            "has no step of an optimizer (Optimizer.step#...), which ends a minibatch: record at least one whole "
            "minibatch",
            file=trace.path,
        )
    starts_ns = [mark.start_ns for mark in marks if mark.what == "root_pre_forward"]
    if not starts_ns:
        starts_ns = [mark.start_ns for mark in marks if mark.what == "pre_forward" and mark.path == ROOT_PATH]
    numbers = [
        (annotation.start_ns, int(match[1]))
        for annotation in trace.annotations
        if (match := _STEP_NUMBER.fullmatch(annotation.name))
    ]
    drafts, is_whole = _drafts(starts_ns, steps)
    # What FSDP2 did before it first entered the root is the end of a pass that the file lacks.
    if drafts and (not starts_ns or marks[0].start_ns < starts_ns[0]):
        is_whole[0] = False
    kept = [draft for draft, whole in zip(drafts, is_whole, strict=True) if whole]
    notes = []
    if not is_whole[0]:
        notes.append("the file begins in the middle of a minibatch, which is left out")
    if not is_whole[-1] and len(drafts) > 1:
        notes.append("the file ends in the middle of a minibatch, which is left out")
    if not kept:
        raise InputError(
            "holds no whole minibatch (all its microbatches and the optimizer's step): record for longer",
            file=trace.path,
        )
    return Program(tuple(_minibatch(draft, marks, numbers) for draft in kept), tuple(notes))


def _fsdp_mark(annotation: Annotation) -> FsdpMark | None:
    match = _FSDP.fullmatch(annotation.name)
    if match is None:
        return None
    return FsdpMark(annotation.start_ns, annotation.end_ns, match[1], match[2] or ROOT_PATH)


def _outermost(annotations: Iterable[Annotation]) -> list[tuple[int, int]]:
    """Spans without those that lie in another."""
    found: list[tuple[int, int]] = []
    for annotation in annotations:
        if not found or annotation.start_ns >= found[-1][1]:
            found.append((annotation.start_ns, annotation.end_ns))
    return found


class _Draft(NamedTuple):
    """A minibatch in the making: since when, starts of its passes, spans of its steps."""

    since_ns: int
    starts_ns: list[int]
    steps: list[tuple[int, int]]


def _drafts(starts_ns: Sequence[int], steps: Sequence[tuple[int, int]]) -> tuple[list[_Draft], list[bool]]:
    """Minibatches, whole or not, and which of them have both passes and a step."""
    drafts = [_Draft(min([*starts_ns[:1], steps[0][0]]), [], [])]
    moments = sorted([(start_ns, start_ns, False) for start_ns in starts_ns] + [(*step, True) for step in steps])
    for start_ns, end_ns, is_step in moments:
        if is_step:
            drafts[-1].steps.append((start_ns, end_ns))
            continue
        if drafts[-1].steps:
            drafts.append(_Draft(drafts[-1].steps[-1][1], [], []))
        drafts[-1].starts_ns.append(start_ns)
    return drafts, [bool(draft.starts_ns and draft.steps) for draft in drafts]


def _minibatch(draft: _Draft, marks: Sequence[FsdpMark], numbers: Sequence[tuple[int, int]]) -> Minibatch:
    passes: list[Pass] = []
    microbatches = 0
    ends_ns = [*draft.starts_ns[1:], draft.steps[0][0]]
    for start_ns, end_ns in zip(draft.starts_ns, ends_ns, strict=True):
        first = bisect_right(marks, start_ns - 1, key=lambda mark: mark.start_ns)
        last = bisect_right(marks, end_ns - 1, key=lambda mark: mark.start_ns)
        within = tuple(marks[first:last])
        has_backward = any(mark.what in {"pre_backward", _BACKWARD_CALLBACK} for mark in within)
        over_ns = min(max(mark.end_ns for mark in within), end_ns)
        passes.append(Pass(start_ns, over_ns, microbatches if has_backward else -1, within))
        microbatches += has_backward
    stepped = bisect_right(numbers, draft.steps[-1][0], key=lambda pair: pair[0]) - 1
    return Minibatch(
        number=numbers[stepped][1] if stepped >= 0 else -1,
        start_ns=draft.since_ns,
        end_ns=draft.steps[-1][1],
        passes=tuple(passes),
        steps=tuple(draft.steps),
    )
