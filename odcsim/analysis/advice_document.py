"""An advice as the JSON document of `odcsim advise` (`odcsim.advice/1`). docs/advise.md describes it."""

from __future__ import annotations

from typing import Any

from odcsim.analysis.advice import Advice, KnobResult, PairResult, Step, SyncComparison
from odcsim.analysis.advice_candidates import Candidate
from odcsim.analysis.advice_gain import Gain
from odcsim.analysis.advice_limits import Limits
from odcsim.analysis.advice_regret import Regret
from odcsim.results import CaseResult

__all__ = ["ADVICE_SCHEMA", "advice_document"]

ADVICE_SCHEMA = "odcsim.advice/1"


def advice_document(advice: Advice) -> dict[str, Any]:
    """The document that `odcsim advise --json` prints."""
    result = advice.result
    return {
        "schema": ADVICE_SCHEMA,
        "scenario": advice.scenario,
        "engine": result.engine,
        "minibatches": {"candidates": advice.minibatches, "knobs_and_regret": advice.few_minibatches},
        "lengths": result.lengths,
        "advised": _advised_document(advice),
        "syncs": _syncs_document(advice.syncs),
        "syncs_with_own_settings": _syncs_document(advice.own_syncs),
        "candidates": [
            _candidate_document(candidate, case)
            for candidate, case in zip(advice.candidates, result.cases, strict=True)
        ],
        "knobs": [_knob_document(found, advice) for found in advice.knobs],
        "knob_pairs": [_pair_document(found, advice) for found in advice.pairs],
        "ladder": [_step_document(step) for step in advice.ladder],
        "limits": {
            "baseline": _limits_document(advice.baseline_limits),
            "advised": _limits_document(advice.advised_limits),
            "longest_sequence": {
                "tokens": advice.longest.tokens,
                "mean_share": advice.longest.mean_share,
                "outlasting_share": advice.longest.outlasting_share,
            },
        },
        "regret": _regret_document(advice.regret, advice),
        "left_out": [{"name": left_out.label, "reason": left_out.reason} for left_out in advice.left_out],
        "warnings": list(advice.warnings),
    }


def _gain_document(gain: Gain) -> dict[str, Any]:
    return {
        "speedup": gain.speedup,
        "speedup_ci95": None if gain.ci95 is None else list(gain.ci95),
        "pairs": gain.pairs,
    }


def _advised_document(advice: Advice) -> dict[str, Any]:
    advised = advice.advised
    case = advised.option.candidate.case
    return {
        "name": advised.option.label,
        "sync": case.sync,
        "policy": case.policy,
        "settings": list(advised.settings),
        "fits": advised.fits,
        **_gain_document(advised.total),
        "without_knob": advice.candidates[advised.plain].label,
        "fastest": advised.fastest,
        "as_good": list(advised.as_good),
    }


def _syncs_document(syncs: SyncComparison | None) -> dict[str, Any] | None:
    if syncs is None:
        return None
    return {
        "fsdp": syncs.fsdp.label,
        "odc": syncs.odc.label,
        "odc_over_fsdp": _gain_document(syncs.gain),
        "fsdp_is_as_good": not syncs.gain.matters,
    }


def _candidate_document(candidate: Candidate, case: CaseResult) -> dict[str, Any]:
    return {**case.to_document(), "pulled": candidate.is_pulled, "changes": list(candidate.changes)}


def _knob_document(found: KnobResult, advice: Advice) -> dict[str, Any]:
    return {
        "candidate": advice.candidates[found.position].label,
        "kind": found.knob.kind,
        "settings": list(found.knob.settings_text),
        "same_training": found.knob.kind != "samples",
        "gain": _gain_document(found.gain),
        "gain_over_baseline": _gain_document(found.total),
        **_trial_document(found.case),
    }


def _pair_document(found: PairResult, advice: Advice) -> dict[str, Any]:
    return {
        "candidate": advice.candidates[found.position].label,
        "kinds": list(found.pair.kinds),
        "settings": list(found.pair.settings_text),
        "same_training": "samples" not in found.pair.kinds,
        "gain": _gain_document(found.gain),
        "gain_over_baseline": _gain_document(found.total),
        "better_alone": list(found.better.knob.settings_text),
        "gain_over_better_alone": _gain_document(found.beyond),
        "worth_more": found.beyond.matters,
        **_trial_document(found.case),
    }


def _trial_document(case: CaseResult) -> dict[str, Any]:
    return {
        "samples_per_second": case.samples_per_second,
        "tokens_per_second": case.tokens_per_second,
        "time_fractions": case.fractions.to_document(),
        "fits": case.memory.fits,
        "memory": case.memory.to_document(),
    }


def _step_document(step: Step) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "name": step.label,
        "over": step.over or None,
        "gain": None if step.gain is None else _gain_document(step.gain),
        "gain_over_baseline": _gain_document(step.total),
        "fits": step.fits,
        "advised": step.is_advised,
    }


def _limits_document(limits: Limits) -> dict[str, Any]:
    return {
        "limit": limits.limit,
        "lost_share": limits.lost_share,
        "lower_bound_ratio": limits.bound_ratio,
        "any_sync_bound_ratio": limits.any_sync_ratio,
    }


def _regret_document(regret: Regret, advice: Advice) -> dict[str, Any]:
    candidates, safer = advice.candidates, regret.safer_than(advice.advised.position)
    return {
        "settings": [] if regret.knob is None else list(regret.knob.settings_text),
        "truths": [{"name": truth.label, "settings": dict(truth.settings)} for truth in regret.truths],
        "candidates": [
            {
                "name": candidates[position].label,
                "mean_s": regret.seconds_TCN[:, place].mean(axis=1).tolist(),
                "losses": regret.losses_TC[:, place].tolist(),
            }
            for place, position in enumerate(regret.positions)
        ],
        "safest": candidates[regret.safest].label,
        "safer": None if safer is None else candidates[safer].label,
    }
