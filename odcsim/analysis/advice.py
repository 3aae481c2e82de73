"""An advice: what was compared, what is advised, and the figures that explain it. `advise` makes it.

Legend: N minibatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from odcsim.analysis.advice_candidates import Candidate, Knob, KnobPair, LeftOut
from odcsim.analysis.advice_choice import Option
from odcsim.analysis.advice_gain import Gain
from odcsim.analysis.advice_limits import Limits, LongestSequence
from odcsim.analysis.advice_regret import Regret
from odcsim.results import CaseResult, RunResult

__all__ = ["Advice", "Advised", "KnobResult", "PairResult", "Step", "StepKind", "SyncComparison"]

StepKind = Literal["baseline", "policy", "sync", "cap", "samples", "overlap", "pair"]


@dataclass(frozen=True, eq=False)
class KnobResult:
    """A candidate with a knob turned.

    Attributes:
        position: of the candidate.
        knob: that is turned.
        case: what came of it.
        gain: over the candidate with the scenario's own settings, on the same samples.
        total: over the baseline, likewise.
    """

    position: int
    knob: Knob
    case: CaseResult
    gain: Gain
    total: Gain


@dataclass(frozen=True, eq=False)
class PairResult:
    """A candidate with two knobs turned that gain alone.

    Attributes:
        position: of the candidate.
        pair: of knobs.
        better: the one of the two that gains more alone.
        case: what came of both.
        gain: over the candidate with the scenario's own settings, on the same samples.
        total: over the baseline, likewise.
        beyond: over `better`, likewise.
    """

    position: int
    pair: KnobPair
    better: KnobResult
    case: CaseResult
    gain: Gain
    total: Gain
    beyond: Gain


@dataclass(frozen=True, eq=False)
class Step:
    """A step of the ladder from what is run now to the best that was found.

    Attributes:
        kind: what changes: the policy under the same sync, the sync with its best policy, a knob, two knobs.
        label: where the step leads.
        over: label of what the gain is over; empty for the baseline.
        gain: of the step; None for the baseline.
        total: over the baseline.
        fits: whether it fits in memory.
        is_advised: whether the advice goes so far.
    """

    kind: StepKind
    label: str
    over: str
    gain: Gain | None
    total: Gain
    fits: bool
    is_advised: bool


@dataclass(frozen=True, eq=False)
class SyncComparison:
    """The fastest under each sync that fits in memory, and the gain of odc over fsdp."""

    fsdp: Option
    odc: Option
    gain: Gain


@dataclass(frozen=True, eq=False)
class Advised:
    """What is advised.

    Attributes:
        position: of the candidate.
        option: the candidate with the knob that is to be turned, if any.
        case: what came of it; its times are of the first minibatches only where a knob is turned.
        total: gain over the baseline.
        plain: position of the candidate that is advised where no knob is to be turned.
        as_good: labels of the others that are as good as the fastest candidate, no knob turned.
        fastest: label of the fastest candidate.
    """

    position: int
    option: Option
    case: CaseResult
    total: Gain
    plain: int
    as_good: tuple[str, ...]
    fastest: str

    @property
    def fits(self) -> bool:
        """Whether it fits in memory; if not, nothing that was tried does."""
        return self.case.memory.fits

    @property
    def settings(self) -> tuple[str, ...]:
        """What to change in the scenario, as `--set` takes it."""
        knob = self.option.knob
        return (*self.option.candidate.settings, *(() if knob is None else knob.settings_text))


@dataclass(frozen=True, eq=False)
class Advice:
    """What `odcsim advise` has to say about a scenario.

    Attributes:
        scenario: as it was understood.
        result: every candidate on the scenario's own workload, labelled as candidates are; the first is the baseline.
        candidates: syncs with policies.
        advised: of them, or of those with a knob turned.
        syncs: the best of both, caps included; None where one of them has nothing that fits in memory.
        own_syncs: the best of both with the scenario's own settings, likewise.
        ladder: from the baseline on.
        knobs: turned one at a time on the best candidate of each sync.
        pairs: of those that gain alone, the best of two kinds each, turned together.
        best_pair: on the advised candidate, if both knobs together are worth more than either.
        baseline_limits: what limits what is run now.
        advised_limits: what limits what is advised.
        longest: what the longest sequences weigh.
        regret: what is lost where the model is wrong.
        left_out: what was not compared, or cannot be advised, and why.
        few_minibatches: how many of the minibatches knobs and regret are of.
        warnings: of all simulations.
    """

    scenario: dict[str, Any]
    result: RunResult
    candidates: tuple[Candidate, ...]
    advised: Advised
    syncs: SyncComparison | None
    own_syncs: SyncComparison | None
    ladder: tuple[Step, ...]
    knobs: tuple[KnobResult, ...]
    pairs: tuple[PairResult, ...]
    best_pair: PairResult | None
    baseline_limits: Limits
    advised_limits: Limits
    longest: LongestSequence
    regret: Regret
    left_out: tuple[LeftOut, ...]
    few_minibatches: int
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The scenario's."""
        return self.result.name

    @property
    def minibatches(self) -> int:
        """How many minibatches candidates were compared on."""
        return len(self.result.cases[0].minibatch_s_N)
