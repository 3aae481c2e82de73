"""All candidates on the scenario's own workload, and the best of them; knobs are turned on these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from odcsim.analysis.advice_candidates import Candidate
from odcsim.analysis.advice_choice import Choice, Option, choose
from odcsim.results import CaseResult
from odcsim.schedule import Sync

__all__ = ["Field"]


@dataclass(frozen=True, eq=False)
class Field:
    """The candidates on the scenario's own workload.

    Attributes:
        candidates: the first is the baseline.
        cases: what came of each.
        options: the same, to choose from.
        fitting: those that fit in memory.
        choice: among these, or among all where none fits.
        best: position of the best candidate of each sync: that choice's, or one made in the same way.
        wanted: the same, whether it fits in memory or not: a tighter cap may make it fit.
        seed: of the resampling for intervals.
    """

    candidates: tuple[Candidate, ...]
    cases: tuple[CaseResult, ...]
    options: tuple[Option, ...]
    fitting: tuple[Option, ...]
    choice: Choice
    best: Mapping[Sync, int]
    wanted: Mapping[Sync, int]
    seed: int

    @classmethod
    def of(cls, candidates: tuple[Candidate, ...], results: Sequence[CaseResult], *, seed: int) -> Field:
        """What came of candidates.

        Args:
            candidates: the first is the baseline.
            results: of each.
            seed: of the resampling for intervals.
        """
        cases = tuple(replace(case, label=candidate.label) for case, candidate in zip(results, candidates, strict=True))
        options = tuple(
            Option(candidate, case.minibatch_s_N) for candidate, case in zip(candidates, cases, strict=True)
        )
        fitting = tuple(option for option, case in zip(options, cases, strict=True) if case.memory.fits)
        choice = choose(fitting or options, seed=seed)
        best: dict[Sync, int] = {}
        wanted: dict[Sync, int] = {}
        for sync in get_args(Sync):
            of_sync = [option for option in options if option.candidate.case.sync == sync]
            if of_sync:
                in_memory = [option for option in of_sync if option in fitting]
                own = choice.option if choice.option in of_sync else choose(in_memory or of_sync, seed=seed).option
                best[sync] = options.index(own)
                wanted[sync] = options.index(choose(of_sync, seed=seed).option)
        return cls(candidates, cases, options, fitting, choice, best, wanted, seed)
