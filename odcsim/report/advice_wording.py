"""Sentences on an advice that page and terminal share: what to do, why, and what if the model is wrong."""

from __future__ import annotations

from odcsim.analysis.advice import Advice, Step
from odcsim.analysis.advice_candidates import KnobKind
from odcsim.analysis.advice_gain import NEGLIGIBLE, Gain
from odcsim.analysis.advice_limits import Limits, LongestSequence
from odcsim.analysis.advice_regret import Regret
from odcsim.report.wording import Headline, percent, plural
from odcsim.results import CaseResult
from odcsim.units import format_bytes, format_seconds

__all__ = [
    "answer",
    "explanation",
    "gain_text",
    "gain_words",
    "how_compared",
    "memory_words",
    "signed_gain",
]

# What knobs ask for beside settings.
_ASKS: dict[KnobKind, str] = {
    "samples": "another minibatch is another training recipe",
    "overlap": "the overlap needs software that can",
}
# Less of a device's memory left over is close to none.
_LITTLE_MEMORY = 0.05


def signed_gain(share: float) -> str:
    """A gain as a percentage, with a digit after the point where it is small: "+32%", "+3.1%", "-0.4%"."""
    digits = 0 if round(100 * abs(share), 1) >= 10 else 1
    # Adding nothing makes a negative zero a zero.
    return f"{round(100 * share, digits) + 0.0:+.{digits}f}%"


def gain_text(gain: Gain) -> str:
    """A gain with its interval, for a cell: "+32% [+30%, +33%]"."""
    if gain.ci95 is None:
        return signed_gain(gain.share)
    low, high = (signed_gain(end - 1) for end in gain.ci95)
    return f"{signed_gain(gain.share)} [{low}, {high}]"


def gain_words(gain: Gain) -> str:
    """The same for a sentence: "+32% (95% interval +30% to +33%)"."""
    if gain.ci95 is None:
        return f"{signed_gain(gain.share)} (from one pair, so without interval)"
    low, high = (signed_gain(end - 1) for end in gain.ci95)
    return f"{signed_gain(gain.share)} (95% interval {low} to {high})"


def answer(advice: Advice) -> Headline:
    """What to do, what it brings, and how the syncs compare."""
    advised, baseline = advice.advised, advice.result.cases[0]
    told = (
        _syncs_sentence(advice),
        _without_knob_sentence(advice),
        _as_good_sentence(advice),
        _pair_sentence(advice),
    )
    notes = [text for text in told if text]
    if not advised.fits:
        nearest = min(advice.result.cases, key=lambda case: case.memory.over_bytes)
        return Headline(
            "Nothing that was tried fits in memory.",
            f"The nearest to it, {nearest.label}, {nearest.memory.advice}.",
            (f"If it did fit, {advised.option.label} would be the choice.",),
        )
    if not baseline.memory.fits:
        over = format_bytes(baseline.memory.over_bytes)
        notes.insert(0, f"{baseline.label} does not fit in memory, over by {over}: its time is what it would be.")
    if not advised.settings:
        return Headline(f"Keep {baseline.label}, which you run now.", _nothing_better(advice), tuple(notes))
    gain = gain_words(advised.total)
    lead = f"Use {advised.option.label}: {gain} samples a second over {baseline.label}, which you run now."
    return Headline(lead, f"Settings: {', '.join(advised.settings)}.", tuple(notes))


def _nothing_better(advice: Advice) -> str:
    cases, advised = advice.result.cases, advice.advised
    if advised.fastest == cases[0].label:
        return "Nothing that was tried is faster."
    step = next(case for case in cases if case.label == advised.fastest)
    gain = Gain(step.speedup, step.speedup_ci95, len(step.minibatch_s_N))
    return f"The fastest that fits in memory, {step.label}, gains {gain_words(gain)}: {_why_not(gain)}."


def _why_not(gain: Gain) -> str:
    """Why a gain that does not matter does not."""
    if gain.share < NEGLIGIBLE:
        return f"less than the {100 * NEGLIGIBLE:.0f}% that is worth a change"
    return "which may be chance; more minibatches (--minibatches) may tell"


def _syncs_sentence(advice: Advice) -> str:
    syncs = advice.syncs
    if syncs is None:
        fitting = {case.sync for case in advice.result.cases if case.memory.fits}
        missing = {candidate.case.sync for candidate in advice.candidates} - fitting
        return f"Under {'ODC' if 'odc' in missing else 'FSDP'} nothing fits in memory." if len(missing) == 1 else ""
    gain = syncs.gain
    if gain.matters:
        return f"FSDP at its best is {syncs.fsdp.label}; {syncs.odc.label} gains {gain_words(gain)} over it."
    against = f"{gain_words(gain)} against {syncs.fsdp.label}"
    if gain.share <= -NEGLIGIBLE and not (gain.ci95 is not None and gain.ci95[1] >= 1):
        return f"ODC is slower here: its best, {syncs.odc.label}, is at {against}."
    return f"FSDP is as good as ODC here: the best of ODC, {syncs.odc.label}, is at {against}, {_why_not(gain)}."


def _without_knob_sentence(advice: Advice) -> str:
    """What is best where the advised knob cannot be turned."""
    advised = advice.advised
    plain = advice.result.cases[advised.plain]
    if advised.option.knob is None or not plain.memory.fits:
        return ""
    gain = Gain(plain.speedup, plain.speedup_ci95, advice.minibatches)
    told = "which you run now" if advised.plain == 0 else gain_words(gain)
    sentence = f"With the scenario's own settings: {plain.label}, {told}"
    syncs = advice.own_syncs
    if syncs is None:
        return f"{sentence}."
    return f"{sentence}; there {syncs.odc.label} gains {gain_words(syncs.gain)} over {syncs.fsdp.label}."


def _as_good_sentence(advice: Advice) -> str:
    advised = advice.advised
    if not advised.as_good or advised.option.knob is not None:
        return ""
    others = ", ".join(advised.as_good)
    within = f"within {100 * NEGLIGIBLE:.0f}% or by chance"
    if advised.option.label == advised.fastest:
        return f"As good, {within}: {others}."
    return f"As good as the fastest, {advised.fastest}, {within}: {others}; advised is the simplest."


def _pair_sentence(advice: Advice) -> str:
    """Two knobs together on what is advised, where they are worth more than either."""
    result = advice.best_pair
    if result is None:
        return ""
    asks = [text for kind, text in _ASKS.items() if kind in result.pair.kinds]
    return (
        f"More is to be had with {result.pair.one.label} and {result.pair.other.label} together: "
        f"{advice.candidates[result.position].label} then gains {gain_words(result.total)} over "
        f"{advice.result.cases[0].label}, and {gain_words(result.beyond)} over {result.better.knob.label} alone. But "
        f"{' and '.join(asks)}."
    )


def explanation(advice: Advice) -> tuple[str, ...]:
    """Why, in paragraphs: what limits what is run now and what is advised, what else there is, and how safe it is."""
    baseline, advised = advice.result.cases[0], advice.advised
    paragraphs = [_limits_text(baseline, advice.baseline_limits, advice.longest, who="which you run now, ")]
    if advised.settings:
        who = "which is advised, " if advised.fits else ""
        paragraphs.append(_limits_text(advised.case, advice.advised_limits, advice.longest, who=who))
    paragraphs += [
        _longest_text(advice.longest),
        memory_words(baseline, advised.case),
        *(text for step in advice.ladder if (text := _optional_text(step))),
        _regret_text(advice.regret, advice),
    ]
    return tuple(paragraphs)


def _limits_text(case: CaseResult, limits: Limits, longest: LongestSequence, *, who: str) -> str:
    parts = case.fractions
    named = f"{case.label}, {who}" if who else f"{case.label} "
    sentences = [
        f"{named}takes {format_seconds(case.seconds_per_minibatch['mean'])} a minibatch: ranks compute "
        f"{percent(parts.compute)} of the time, wait for each other {percent(parts.synchronization)} and for transfers "
        f"{percent(parts.exposed_communication)}.",
        _limit_sentence(limits, longest, sync=case.sync),
        f"It takes {limits.bound_ratio:.2f} times the lower bound that no plan can beat under {case.sync.upper()}"
        + ("." if limits.any_sync_ratio is None else f", and {limits.any_sync_ratio:.2f} times that of any sync."),
    ]
    return " ".join(sentences)


def _limit_sentence(limits: Limits, longest: LongestSequence, *, sync: str) -> str:
    if limits.limit == "compute":
        return (
            f"What limits it is compute: balancing, sync and overlap could win {percent(limits.lost_share)} of its "
            "time at most."
        )
    if limits.limit == "longest sequence":
        return (
            f"What limits it is the longest sequence: in {_whole_percent(longest.outlasting_share)} of minibatches it "
            "alone takes longer than an even share of all compute, and the others wait for it whatever the plan."
        )
    if limits.limit == "imbalance":
        when = "at every layer" if sync == "fsdp" else "at the end of a minibatch"
        return f"What limits it is imbalance: {when} ranks wait for the busiest."
    if limits.limit == "communication":
        return "What limits it is communication: transfers that no compute hides."
    return "What limits it are fixed steps: publishing, settling, padding and fixed costs of a minibatch."


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _share_words(share: float) -> str:
    """A share, or how many times the whole: "62% of", "3.2 times"."""
    return f"{share:.1f} times" if share >= 2 else f"{_whole_percent(share)} of"


def _longest_text(longest: LongestSequence) -> str:
    return (
        f"The longest sequence of a minibatch takes {_share_words(longest.mean_share)} an even share of its compute in "
        f"the mean, and more than all of it in {_whole_percent(longest.outlasting_share)} of minibatches. "
        f"The longest of all has {longest.tokens:,} tokens."
    )


def memory_words(*cases: CaseResult) -> str:
    """Peak memory of cases, each once: "Memory: FSDP lb-micro peaks at 52.1 GB, ODC lb-mini at 54 GB, of 80.7 GB."."""
    peaks, verb = [], "peaks at"
    for case in {case.label: case for case in cases}.values():
        memory = case.memory
        peak = f"{case.label} {verb} {format_bytes(memory.peak_bytes)}"
        if not memory.fits:
            peak += f" (over by {format_bytes(memory.over_bytes)})"
        elif memory.peak_bytes > (1 - _LITTLE_MEMORY) * memory.capacity_bytes:
            peak += f" ({format_bytes(memory.capacity_bytes - memory.peak_bytes)} left)"
        peaks.append(peak)
        verb = "at"
    return f"Memory: {', '.join(peaks)}, of {format_bytes(cases[0].memory.capacity_bytes)} that a rank can use."


def _optional_text(step: Step) -> str:
    """A step that asks for more than other settings, in a sentence; nothing for any other."""
    if step.is_advised or step.gain is None:
        return ""
    gain = gain_words(step.gain)
    if step.kind == "samples":
        return f"{step.label}: {gain} samples a second, but another minibatch is another training recipe."
    if step.kind == "overlap":
        return f"{step.label}: {gain}, if the software can."
    return ""


def _regret_text(regret: Regret, advice: Advice) -> str:
    """What is lost by following the advice where the model is wrong, and whether another choice is safer."""
    position, labels = advice.advised.position, [candidate.label for candidate in advice.candidates]
    if len(regret.positions) == 1:
        return "There is no other choice, so nothing can be lost by it."
    with_knob = "" if regret.knob is None else f" (all with {regret.knob.label})"
    truth, loss = regret.worst(position)
    best = regret.best(truth)
    loses = f"loses at most {percent(loss)} against the best choice of the worlds tried"
    told = f"If the cost model is wrong, {labels[position]}{with_knob} {loses}"
    if loss >= NEGLIGIBLE:
        where = regret.truths[truth].label
        gain = regret.gain(best, over=position, truth=truth)
        told += f": with {where}, where {labels[best]} gains {gain_words(gain)} over it"
    safer = regret.safer_than(position)
    if safer is None:
        return f"{told}. No other choice is safer by {100 * NEGLIGIBLE:.0f}% or more, chance aside."
    as_modelled = float(regret.losses_TC[0, regret.positions.index(safer)])
    return (
        f"{told}. {labels[safer]} would be safer: it loses {percent(regret.worst(safer)[1])} at most, and "
        f"{percent(as_modelled)} where the model is right."
    )


def how_compared(advice: Advice) -> str:
    """What was simulated, and what intervals mean."""
    few = advice.few_minibatches
    which = "the same" if few == advice.minibatches else f"the first {few:,}"
    return (
        f"Candidates are compared on {plural(advice.minibatches, 'minibatch')}, knobs and wrong models on {which}. In "
        "brackets: 95% interval, a paired bootstrap over minibatches; where these hold another number of samples, over "
        "blocks of them with the same samples. It tells of the draw of lengths, not of the cost model."
    )
