"""Which of several ways of training to advise: the simplest of those that are as good as the fastest.

As good is what lies behind the fastest by less than 1%, or by no more than chance explains. Simple is, in this order:
fsdp rather than odc, microbatches that ranks are given rather than pull, fewer changes to what is run now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odcsim.analysis.advice_candidates import Candidate, Knob
from odcsim.analysis.advice_gain import gain_over
from odcsim.arrays import FloatArray

__all__ = ["Choice", "Option", "choose", "fastest"]


@dataclass(frozen=True, eq=False)
class Option:
    """Something that could be advised.

    Attributes:
        candidate: the sync with its policy.
        seconds_N: of the scenario's minibatches, or of its first ones.
        knob: that is turned, if any.
    """

    candidate: Candidate
    seconds_N: FloatArray
    knob: Knob | None = None

    @property
    def label(self) -> str:
        """What tells it from the others."""
        return self.candidate.label if self.knob is None else f"{self.candidate.label}, {self.knob.label}"

    @property
    def complexity(self) -> tuple[bool, bool, int]:
        """What orders options from simple to not: see the module."""
        changes = len(self.candidate.changes) + (self.knob is not None)
        return self.candidate.case.sync == "odc", self.candidate.is_pulled, changes


@dataclass(frozen=True, eq=False)
class Choice:
    """What is advised, and what it was chosen from.

    Attributes:
        option: that is advised.
        fastest: of all.
        as_good: those that are as good as the fastest, it and the advised one included, in the order given.
    """

    option: Option
    fastest: Option
    as_good: tuple[Option, ...]


def fastest(options: Sequence[Option]) -> Option:
    """The fastest on the minibatches that all have; the first of equals."""
    common = min(len(option.seconds_N) for option in options)
    return min(options, key=lambda option: float(option.seconds_N[:common].mean()))


def choose(options: Sequence[Option], *, seed: int) -> Choice:
    """Choose among options that can all be run.

    Args:
        options: at least one, on the same minibatches, of which some may have the first ones only.
        seed: of the resampling for intervals.
    """
    best = fastest(options)
    as_good = tuple(
        option
        for option in options
        if option is best or not gain_over(best.seconds_N, option.seconds_N, seed=seed).matters
    )
    simplest = min(option.complexity for option in as_good)
    return Choice(fastest([option for option in as_good if option.complexity == simplest]), best, as_good)
