"""Knobs turned on the best candidates: each alone, then the best of two kinds together.

Only knobs that gain alone are tried together: of each kind the best one, or the advised one. Whatever is turned is
simulated on the first minibatches, and compared on the same samples.

Legend: N minibatches, B blocks of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import get_args

from odcsim.analysis.advice import Advised, KnobResult, PairResult
from odcsim.analysis.advice_candidates import CAP_KEY, Knob, KnobKind, KnobPair, LeftOut
from odcsim.analysis.advice_field import Field
from odcsim.analysis.advice_gain import Gain, blocks_s, gain_over
from odcsim.analysis.advice_runs import Simulations
from odcsim.arrays import FloatArray
from odcsim.errors import InputError
from odcsim.memory_advice import memory_result
from odcsim.resolve import ResolvedScenario
from odcsim.results import CaseResult, MemoryResult

__all__ = ["KnobTrials", "best_of_kind", "best_pair"]


def best_of_kind(knobs: Iterable[KnobResult], kind: KnobKind, *, advised: Knob | None) -> KnobResult | None:
    """The best setting of a knob on one candidate, if any is worth its change; the advised one if it is of the kind.

    Args:
        knobs: on that candidate.
        kind: of knobs.
        advised: on that candidate, if any is.
    """
    found = [
        result
        for result in knobs
        if result.knob.kind == kind and (result.knob is advised or (result.case.memory.fits and result.gain.matters))
    ]
    return max(found, key=lambda result: (result.knob is advised, result.gain.speedup), default=None)


def best_pair(pairs: Iterable[PairResult], *, position: int) -> PairResult | None:
    """The best pair on one candidate that gains more than either knob alone, not by chance, and fits in memory."""
    worth = [
        result for result in pairs if result.position == position and result.beyond.matters and result.case.memory.fits
    ]
    return max(worth, key=lambda result: result.gain.speedup, default=None)


class KnobTrials:
    """Turns knobs on candidates.

    Args:
        field: the candidates.
        simulations: that run them.
        resolved: the scenario.
        minibatches: of the scenario's, the first of which are run.
    """

    def __init__(self, field: Field, simulations: Simulations, resolved: ResolvedScenario, *, minibatches: int) -> None:
        self._field = field
        self._simulations = simulations
        self._resolved = resolved
        self._minibatches = minibatches

    def alone(self, knobs: Sequence[Knob]) -> tuple[tuple[KnobResult, ...], tuple[LeftOut, ...]]:
        """Each knob on the best candidates of each sync, and those knobs that the scenario cannot be run with."""
        field = self._field
        found: list[KnobResult] = []
        refused: list[LeftOut] = []
        for knob in knobs:
            positions = [*field.best.values(), *(field.wanted.values() if knob.kind == "cap" else ())]
            try:
                cases = self._turned(knob, positions)
            except InputError as error:
                refused.append(LeftOut(knob.label, error.problem))
                continue
            found += [
                KnobResult(
                    position=position,
                    knob=knob,
                    case=case,
                    gain=self._gain(case, knob, over=field.cases[position]),
                    total=self._gain(case, knob, over=field.cases[0]),
                )
                for position, case in cases.items()
            ]
        return tuple(found), tuple(refused)

    def together(
        self, knobs: Sequence[KnobResult], *, advised: Advised
    ) -> tuple[tuple[PairResult, ...], tuple[LeftOut, ...]]:
        """Pairs of knobs on the candidates that they gain on alone, and pairs that the scenario cannot be run with.

        Args:
            knobs: turned alone.
            advised: candidate and knob: the pairs on that candidate have this knob where they have one of its kind.
        """
        found: list[PairResult] = []
        refused: list[LeftOut] = []
        for position, one, other in self._promising(knobs, advised=advised):
            pair, better = KnobPair(one.knob, other.knob), max(one, other, key=lambda result: result.gain.speedup)
            try:
                (case,) = self._turned(pair, [position]).values()
            except InputError as error:
                refused.append(LeftOut(pair.label, error.problem))
                continue
            found.append(
                PairResult(
                    position=position,
                    pair=pair,
                    better=better,
                    case=case,
                    gain=self._gain(case, pair, over=self._field.cases[position]),
                    total=self._gain(case, pair, over=self._field.cases[0]),
                    beyond=self._gain(case, pair, over=better.case, other_factor=better.knob.samples_factor),
                )
            )
        return tuple(found), tuple(refused)

    def _promising(
        self, knobs: Sequence[KnobResult], *, advised: Advised
    ) -> Iterator[tuple[int, KnobResult, KnobResult]]:
        """Candidates with two knobs that each gain something there."""
        for position in dict.fromkeys(self._field.best.values()):
            here = [result for result in knobs if result.position == position]
            knob = advised.option.knob if position == advised.position else None
            best = [best_of_kind(here, kind, advised=knob) for kind in get_args(KnobKind)]
            gaining = [result for result in best if result is not None and result.gain.matters]
            for one, other in combinations(gaining, 2):
                yield position, one, other

    def _turned(self, knob: Knob | KnobPair, positions: Iterable[int]) -> dict[int, CaseResult]:
        """Candidates with a knob turned, by position; those are left out that have its overlap already.

        Raises:
            InputError: the scenario cannot be run with the knob.
        """
        field = self._field
        cases = {position: field.candidates[position].case for position in positions}
        if knob.overlap is not None:
            cases = {
                position: case.model_copy(update={"overlap": knob.overlap})
                for position, case in cases.items()
                if case.overlap != knob.overlap
            }
        if not cases:
            return {}
        minibatches = int(self._minibatches / knob.samples_factor)
        result = self._simulations.of(list(cases.values()), minibatches=minibatches, settings=knob.settings)
        return {
            position: replace(
                case, label=f"{field.candidates[position].label}, {knob.label}", memory=self._memory(case, knob)
            )
            for position, case in zip(cases, result.cases, strict=True)
        }

    def _memory(self, case: CaseResult, knob: Knob | KnobPair) -> MemoryResult:
        """Peak memory; under another cap that of a full microbatch: in so few minibatches it may not have come up."""
        if CAP_KEY not in knob.settings:
            return case.memory
        tokens = max(knob.settings[CAP_KEY], case.memory.largest_microbatch_tokens)
        return memory_result(self._resolved, on_demand=case.sync == "odc", tokens=tokens)

    def _gain(
        self, case: CaseResult, knob: Knob | KnobPair, *, over: CaseResult, other_factor: Fraction = Fraction(1)
    ) -> Gain:
        """The gain over another case whose minibatches hold `other_factor` times the scenario's samples.

        Samples are drawn one after the other: so many minibatches of the one hold what so many of the other do, and
        such blocks are compared.
        """
        factor = knob.samples_factor / other_factor
        # Of a case without a knob there may be more minibatches.
        over_s_N: FloatArray = over.minibatch_s_N[: int(self._minibatches / other_factor)]
        seconds_B, over_s_B = (
            blocks_s(case.minibatch_s_N, size=factor.denominator),
            blocks_s(over_s_N, size=factor.numerator),
        )
        return gain_over(seconds_B, over_s_B, seed=self._field.seed)
