"""Which unit's forward or backward a moment of a microbatch belongs to, by FSDP2's annotations. Times in nanoseconds.

The rules are those of `odcrt.tracing.compute_tracker`, whose docstring gives them; only where the marks come from is
different:

    a unit's forward is entered     start of FSDP::pre_forward; for the root, start of the pass
    and left                        end of FSDP::post_forward
    its output's gradient arrives   end of FSDP::pre_backward, which gathers the unit before it ahead
    backward is over                end of the pass

A root without parameters has no FSDP::post_forward: its forward ends at the first FSDP::pre_backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from odcsim.foreign.program import ROOT_PATH, Pass

__all__ = ["Interruption", "Stretch", "attribute"]

_Phase = Literal["forward", "backward"]


class Interruption(NamedTuple):
    """A collective, in the program's time.

    Attributes:
        start_ns: when the program asked for it.
        end_ns: when it went on; the same moment where it does not wait for it.
        name: `gather`, `scatter_accumulate`, or `other` for one that is not FSDP2's.
        path: of the unit.
    """

    start_ns: int
    end_ns: int
    name: str
    path: str


class Stretch(NamedTuple):
    """Time that belongs to one unit.

    Attributes:
        start_ns: since when.
        end_ns: until when.
        name: `forward` or `backward`.
        path: of the unit.
    """

    start_ns: int
    end_ns: int
    name: _Phase
    path: str


def attribute(one: Pass, interruptions: Iterable[Interruption]) -> list[Stretch]:
    """Divide a pass, but for the interruptions, among the units.

    Args:
        one: the pass.
        interruptions: within it.

    Returns:
        In the order of time; they do not overlap.
    """
    # Marks of one moment: what ends before what begins, the program's steps before a collective, and else in the
    # program's order.
    moments: list[tuple[int, int, str, str, int]] = [
        (gap.start_ns, 3, gap.name, gap.path, gap.end_ns) for gap in interruptions
    ]
    for mark in one.marks:
        if mark.what == "pre_forward" and mark.path != ROOT_PATH:
            moments.append((mark.start_ns, 1, "enter", mark.path, 0))
        elif mark.what == "post_forward":
            moments.append((mark.end_ns, 0, "leave", mark.path, 0))
        elif mark.what == "pre_backward":
            moments.append((mark.start_ns, 1, "turn", mark.path, 0))
            if mark.path != ROOT_PATH:
                moments.append((mark.end_ns, 2, "run", mark.path, 0))
    tracker = _Tracker(one.start_ns)
    for at_ns, _, what, path, end_ns in sorted(moments, key=lambda moment: moment[:2]):
        if what == "enter":
            tracker.enter(path, at_ns)
        elif what == "leave":
            tracker.leave(path, at_ns)
        elif what == "turn":
            tracker.turn(at_ns)
        elif what == "run":
            tracker.run(path, at_ns)
        else:
            tracker.interrupt(what, path, at_ns, end_ns)
    tracker.finish(one.end_ns)
    return sorted(tracker.stretches)


class _Tracker:
    """State between two marks; each method is a mark."""

    def __init__(self, start_ns: int) -> None:
        self.stretches: list[Stretch] = []
        self._since_ns = start_ns
        self._entered = [ROOT_PATH]
        self._in_backward = False
        # Of backward: the owner of stretches, whether that is known or assumed, and pieces of the present stretch.
        self._owner: str | None = None
        self._known = False
        self._pieces: list[tuple[int, int]] = []
        self._latest_reduced: str | None = None

    def enter(self, path: str, at_ns: int) -> None:
        """A unit's forward begins, or is entered again by recomputation."""
        if self._in_backward:
            self.run(path, at_ns)
            return
        self._keep_forward(at_ns)
        self._entered.append(path)

    def leave(self, path: str, at_ns: int) -> None:
        """A unit's forward is over."""
        if self._in_backward or path not in self._entered:
            return
        self._keep_forward(at_ns)
        while self._entered.pop() != path:
            pass  # forwards inside of this one, which nobody saw end
        if not self._entered:
            self._begin_backward()

    def turn(self, at_ns: int) -> None:
        """A gradient arrives: whatever forward is still open is over."""
        if not self._in_backward:
            self._keep_forward(at_ns)
            self._begin_backward()

    def _begin_backward(self) -> None:
        self._entered.clear()
        self._in_backward = True
        self._owner, self._known = ROOT_PATH, False

    def run(self, path: str, at_ns: int) -> None:
        """A unit's backward is known to run."""
        if self._owner is None:
            self._keep_pieces(path)
        elif self._owner != path:
            self._hold(at_ns)
            self._keep_pieces(self._owner)
            self._since_ns = at_ns
        self._owner, self._known = path, True

    def interrupt(self, name: str, path: str, start_ns: int, end_ns: int) -> None:
        """A collective."""
        if name == "scatter_accumulate":
            self.turn(start_ns)
        if self._in_backward:
            self._hold(start_ns)
            if name == "scatter_accumulate":
                owner = self._owner if self._known and self._owner is not None else path
                self._keep_pieces(owner)
                self._latest_reduced = path
                if owner == path:
                    self._owner, self._known = None, False
            elif name == "gather" and self._owner is not None:
                self._keep_pieces(self._owner)
        else:
            self._keep_forward(start_ns)
        self._since_ns = end_ns

    def finish(self, at_ns: int) -> None:
        """The pass is over."""
        if not self._in_backward:
            self._keep_forward(at_ns)
            return
        self._hold(at_ns)
        owner = self._owner if self._known else self._latest_reduced
        if owner is not None:
            self._keep_pieces(owner)

    def _keep_forward(self, end_ns: int) -> None:
        if end_ns > self._since_ns:
            self.stretches.append(Stretch(self._since_ns, end_ns, "forward", self._entered[-1]))
        self._since_ns = max(self._since_ns, end_ns)

    def _hold(self, end_ns: int) -> None:
        """Time of which later marks tell whose it is."""
        if end_ns > self._since_ns:
            self._pieces.append((self._since_ns, end_ns))

    def _keep_pieces(self, path: str) -> None:
        self.stretches += [Stretch(start_ns, end_ns, "backward", path) for start_ns, end_ns in self._pieces]
        self._pieces.clear()
