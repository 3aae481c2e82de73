"""What `odcsim advise` compares: every sync with every policy that fits it, and a scenario's knobs, alone and in pairs.

The scenario's first case is the baseline: what is run now. What runs beside compute (`overlap`) belongs to a sync's
software: every candidate has that of the scenario's first case of its sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, get_args

from odcsim.policies import Policy, find_policy, policy_names
from odcsim.scenario import Case, Scenario
from odcsim.scenario.schema import LONGEST_SAMPLE_TOKENS
from odcsim.schedule import Overlap, Sync

__all__ = ["CAP_KEY", "Candidate", "Knob", "KnobKind", "KnobPair", "LeftOut", "knobs_of", "policy_candidates"]

KnobKind = Literal["cap", "samples", "overlap"]

CAP_KEY = "workload.max_tokens"
"""The scenario's key of the cap."""

# FSDP's usual policy: under odc it shows what the change of sync alone brings.
_USUAL = "lb-micro"


@dataclass(frozen=True)
class Candidate:
    """A sync with a policy.

    Attributes:
        label: tells it from the others.
        case: as it is simulated, its overlap written out.
        is_pulled: whether ranks pull microbatches as they run.
        changes: keys of the case that differ from the baseline's; none for the baseline.
        settings: that make the scenario's first case this one, as `--set` takes them.
    """

    label: str
    case: Case
    is_pulled: bool
    changes: tuple[str, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Knob:
    """A setting beside sync and policy, changed.

    Attributes:
        kind: `cap`, the most tokens of a microbatch: the training stays the same. `samples` of a minibatch: another
            training recipe. `overlap`: needs software that can.
        label: for people.
        settings: dotted keys of the scenario with their values.
        overlap: of every case, where that is what changes.
        samples_factor: samples of a minibatch over the scenario's.
    """

    kind: KnobKind
    label: str
    settings: Mapping[str, int] = field(default_factory=dict)
    overlap: Overlap | None = None
    samples_factor: Fraction = Fraction(1)

    @property
    def settings_text(self) -> tuple[str, ...]:
        """As `--set` takes them."""
        overlap = () if self.overlap is None else (f"cases.0.overlap={self.overlap}",)
        return (*(f"{key}={value}" for key, value in self.settings.items()), *overlap)


@dataclass(frozen=True)
class KnobPair:
    """Two knobs of different kinds, turned together; what it has in common with a `Knob` has the same meaning."""

    one: Knob
    other: Knob

    @property
    def kinds(self) -> tuple[KnobKind, ...]:
        """What is turned."""
        return (self.one.kind, self.other.kind)

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.one.label}, {self.other.label}"

    @property
    def settings(self) -> Mapping[str, int]:
        """Dotted keys of the scenario with their values."""
        return {**self.one.settings, **self.other.settings}

    @property
    def overlap(self) -> Overlap | None:
        """Of every case, where it changes."""
        return self.one.overlap or self.other.overlap

    @property
    def samples_factor(self) -> Fraction:
        """Samples of a minibatch over the scenario's."""
        return self.one.samples_factor * self.other.samples_factor

    @property
    def settings_text(self) -> tuple[str, ...]:
        """As `--set` takes them."""
        return (*self.one.settings_text, *self.other.settings_text)


@dataclass(frozen=True)
class LeftOut:
    """Something that is not compared, or not advised, and why."""

    label: str
    reason: str


def policy_candidates(scenario: Scenario, *, group_size: int) -> tuple[Candidate, ...]:
    """The baseline, then each other sync with each policy that fits it, in the registry's order.

    Under fsdp that is every policy of equal counts. Under odc it is every other policy, and of those of equal counts
    the usual one and the baseline's: any other is made for collectives.

    Args:
        scenario: whose cases' syncs and overlaps count; its first case is the baseline.
        group_size: samples that share a prompt; where plans are to keep them on one rank, so must the policy.
    """
    given = scenario.cases[0]
    baseline = given.model_copy(update={"overlap": _overlap_under(given.sync, scenario), "name": None})
    cases = [baseline]
    for sync in get_args(Sync):
        for name in policy_names():
            policy = find_policy(name)
            case = Case(sync=sync, policy=name, overlap=_overlap_under(sync, scenario))
            if scenario.planning.keep_groups and group_size > 1 and not policy.keeps_groups:
                continue
            if _fits(policy, sync, also=(_USUAL, baseline.policy)) and _changes(case, baseline):
                cases.append(case)
    labels = [_label(case) for case in cases]
    if given.name is not None:
        labels[0] = given.name if given.name not in labels[1:] else f"{given.name} (baseline)"
    return tuple(
        Candidate(
            label=label,
            case=case,
            is_pulled=find_policy(case.policy).is_pulled,
            changes=_changes(case, baseline),
            settings=_settings(case, baseline),
        )
        for label, case in zip(labels, cases, strict=True)
    )


def _overlap_under(sync: Sync, scenario: Scenario) -> Overlap:
    first = next((case for case in scenario.cases if case.sync == sync), None)
    return scenario.overlap if first is None or first.overlap is None else first.overlap


def _fits(policy: Policy, sync: Sync, *, also: tuple[str, ...]) -> bool:
    if sync == "fsdp":
        return policy.equal_counts and not policy.is_pulled
    return not policy.equal_counts or policy.name in also


def _pads(case: Case) -> bool:
    """Whether its `pad` has an effect."""
    return case.pad and not find_policy(case.policy).equal_counts


def _changes(case: Case, baseline: Case) -> tuple[str, ...]:
    """What differs from the baseline; an overlap that comes with the sync is no change of its own."""
    changed = {
        "sync": case.sync != baseline.sync,
        "policy": case.policy != baseline.policy,
        "pad": _pads(case) != _pads(baseline),
    }
    return tuple(key for key, differs in changed.items() if differs)


def _settings(case: Case, baseline: Case) -> tuple[str, ...]:
    """What makes the baseline the case."""
    changed = {"sync": case.sync, "policy": case.policy, "pad": str(case.pad).lower()}
    overlap = () if case.overlap == baseline.overlap else (f"cases.0.overlap={case.overlap}",)
    return (*(f"cases.0.{key}={changed[key]}" for key in _changes(case, baseline)), *overlap)


def _label(case: Case) -> str:
    return f"{case.sync.upper()} {case.policy}{' padded' if _pads(case) else ''}"


def knobs_of(scenario: Scenario, *, longest_tokens: int, group_size: int, minibatches: int) -> tuple[Knob, ...]:
    """The scenario's knobs, each turned alone, in the order in which they are told.

    Args:
        scenario: which has the settings as they are.
        longest_tokens: of all samples drawn.
        group_size: samples that share a prompt; no knob cuts a group that the scenario does not cut.
        minibatches: that knobs are tried on.
    """
    return (
        *_cap_knobs(scenario, longest_tokens=longest_tokens),
        *_samples_knobs(scenario, group_size=group_size, minibatches=minibatches),
        *_overlap_knobs(scenario),
    )


def _cap_knobs(scenario: Scenario, *, longest_tokens: int) -> Iterator[Knob]:
    """The longest sample's tokens, and twice and four times the scenario's cap; none that changes what is trained."""
    workload = scenario.workload
    if workload.oversize in {"truncate", "drop"} and longest_tokens > workload.max_tokens:
        return
    for cap in dict.fromkeys((longest_tokens, 2 * workload.max_tokens, 4 * workload.max_tokens)):
        if cap != workload.max_tokens and cap <= LONGEST_SAMPLE_TOKENS:
            yield Knob("cap", f"cap {cap:,} tokens", {CAP_KEY: cap})


def _samples_knobs(scenario: Scenario, *, group_size: int, minibatches: int) -> Iterator[Knob]:
    workload = scenario.workload
    per_rank = workload.samples_per_rank
    key, where = ("samples_per_rank", "a rank") if per_rank is not None else ("samples_per_minibatch", "in all")
    samples, in_all = getattr(workload, key), workload.samples_of(scenario.cluster.ranks)
    for factor in (Fraction(1, 2), Fraction(2), Fraction(4)):
        changed, changed_in_all = samples * factor, in_all * factor
        cuts_groups = in_all % group_size == 0 and changed_in_all % group_size != 0
        if changed.denominator == 1 and not cuts_groups and factor <= minibatches:
            noun = "sample" if changed == 1 else "samples"
            label = f"{int(changed):,} {noun} {where}"
            yield Knob("samples", label, {f"workload.{key}": int(changed)}, samples_factor=factor)


def _overlap_knobs(scenario: Scenario) -> Iterator[Knob]:
    """None where nothing is transferred, or where transfers are the processor's own work (`runtime.device: cpu`)."""
    runtime = scenario.runtime
    if scenario.cluster.ranks == 1 or ("device" in runtime.model_fields_set and runtime.device == "cpu"):
        return
    for overlap in get_args(Overlap):
        yield Knob("overlap", f"overlap {overlap}", overlap=overlap)
