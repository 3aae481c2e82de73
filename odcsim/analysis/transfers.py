"""Fits of transfers: collectives that all ranks meet for, and one-sided ones. Seconds and bytes.

A collective is timed from the last rank's arrival to its end in the mean over ranks, so what it costs to wake up
everybody is part of it; how much later the last one leaves is fitted as a share of that. A one-sided transfer is timed
by its rank; other ranks' transfers on the same host at the same time may slow it down, which is fitted as a share of
its time for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from odcsim.analysis.fits import LinearFit, fit_nonnegative
from odcsim.analysis.meetings import Meetings
from odcsim.analysis.observations import RunObservations, Transfer
from odcsim.analysis.terms import FittedPart, mean_term, no_term, ranks_per_node, term_of
from odcsim.arrays import FloatArray, IntArray
from odcsim.costs.calibrated import Term, TransferCost, TransferPair
from odcsim.costs.network import collective_bytes, one_sided_bytes
from odcsim.errors import InputError

__all__ = ["FittedTransfers", "fit_collectives", "fit_one_sided"]

_NAMES = ("gather", "scatter_accumulate")
_WORDS = {"gather": "all-gather", "scatter_accumulate": "reduce-scatter"}
_LATENCY, _BYTES = 0, 1
# Where latency and bytes cannot be told apart, all is latency: that is what follows the number of ranks.
_DROP_ORDER = (_BYTES,)
_LEAST_OVERLAP = 1e-3
_MOST_TURNS = 100
_CLOSE = 1e-7
# Predictions of whatever moves data much are as vague as this: more of it should be recorded.
_VAGUE_SHARE = 0.15
# Units must differ by a factor of about two for their bytes to be told from latency.
_LEAST_DISTINCT = 0.2


@dataclass(frozen=True)
class FittedTransfers:
    """A pair of costs, what they were fitted to, and what is amiss."""

    costs: TransferPair
    parts: tuple[FittedPart, ...]
    warnings: tuple[str, ...]


def fit_collectives(
    observed: Sequence[RunObservations], meetings: Sequence[Meetings], transport: str, *, seed: int
) -> FittedTransfers:
    """Costs of the collectives of `fsdp` runs over one transport.

    Raises:
        InputError: a run has none.
    """
    costs, parts, warnings = {}, [], []
    ranks, per_node = observed[0].ranks, ranks_per_node(observed[0].run)
    nodes = ranks // per_node
    steps, busier = (per_node - 1) + (nodes - 1), int(nodes > 1)
    for name in _NAMES:
        chosen = [np.array([found == name for found in met.names], dtype=np.bool_) for met in meetings]
        size_K = np.concatenate([met.size_bytes_K[picked] for met, picked in zip(meetings, chosen, strict=True)])
        cost_K = np.concatenate([met.cost_s_K[picked] for met, picked in zip(meetings, chosen, strict=True)])
        lag_K = np.concatenate([met.lag_s_K[picked] for met, picked in zip(meetings, chosen, strict=True)])
        groups_K = np.concatenate(
            [
                1000 * run + met.minibatch_K[picked]
                for run, (met, picked) in enumerate(zip(meetings, chosen, strict=True))
            ]
        )
        if size_K.size == 0:
            raise InputError(f"has no {_WORDS[name]}: not a run under fsdp", file=observed[0].run.folder)
        # What a rank moves over the busier tier, of the bytes that it moves altogether (M (D - 1) / D for a unit of M).
        unit_K = size_K * ranks / max(ranks - 1, 1)
        moved_K = collective_bytes(unit_K, ranks=ranks, ranks_per_node=per_node)[busier]
        terms_KF = np.stack([np.full_like(moved_K, float(max(steps, 1))), moved_K], axis=1)
        fit = fit_nonnegative(
            terms_KF,
            np.maximum(cost_K, 0.0),
            groups_K=groups_K,
            drop_order=_DROP_ORDER,
            least_distinct=_LEAST_DISTINCT,
            seed=seed,
        )
        costs[name] = _cost(fit, lag=_fit_lag(lag_K, fit.fitted_K, seed=seed))
        label = f"{_WORDS[name]} over {transport}"
        parts.append(FittedPart(label, "bytes", unit_K, fit.measured_K, fit.fitted_K, fit.spread))
        warnings += [*_bytes_warning(label, fit), *_vagueness_warning(label, fit, groups_K, seed=seed)]
    return FittedTransfers(TransferPair(**costs), tuple(parts), tuple(warnings))


def fit_one_sided(observed: Sequence[RunObservations], *, seed: int) -> FittedTransfers:
    """Costs of the one-sided transfers of `odc` runs.

    Raises:
        InputError: a run has none.
    """
    costs, parts, warnings = {}, [], []
    ranks, per_node = observed[0].ranks, ranks_per_node(observed[0].run)
    busier = int(ranks > per_node)
    for name in _NAMES:
        transfers, others, groups = [], [], []
        for run, seen in enumerate(observed):
            overlaps_D = _overlaps_D(seen.transfers_D)
            for rank, of_rank in enumerate(seen.transfers_D):
                for transfer, overlap in zip(of_rank, overlaps_D[rank], strict=True):
                    if transfer.name == name:
                        transfers.append(transfer)
                        others.append(overlap)
                        groups.append((run * 1000 + transfer.minibatch) * ranks + rank)
        if not transfers:
            raise InputError(f"has no {name.replace('_', '-')}: not a run under odc", file=observed[0].run.folder)
        unit_K = np.array([transfer.size_bytes for transfer in transfers]) * ranks / max(ranks - 1, 1)
        time_K = np.array([transfer.end_s - transfer.start_s for transfer in transfers])
        others_K, groups_K = np.array(others), np.array(groups, dtype=np.int64)
        moved_K = one_sided_bytes(unit_K, ranks=ranks, ranks_per_node=per_node)[busier]
        fit, contention = _fit_contended(moved_K, time_K, others_K, groups_K, seed=seed)
        costs[name] = _cost(fit, contention=contention, others=float(others_K.mean()))
        label = f"one-sided {name.replace('_', '-')}"
        parts.append(FittedPart(label, "bytes", unit_K, fit.measured_K, fit.fitted_K, fit.spread))
        warnings += [*_bytes_warning(label, fit), *_vagueness_warning(label, fit, groups_K, seed=seed)]
    return FittedTransfers(TransferPair(**costs), tuple(parts), tuple(warnings))


def _overlaps_D(transfers_D: Sequence[Sequence[Transfer]]) -> list[list[float]]:
    """For each transfer, how many transfers of other ranks were under way meanwhile, in the mean over its time."""
    starts_s = [np.array([transfer.start_s for transfer in transfers]) for transfers in transfers_D]
    ends_s = [np.array([transfer.end_s for transfer in transfers]) for transfers in transfers_D]
    overlaps = []
    for rank, transfers in enumerate(transfers_D):
        busy_s = np.zeros(len(transfers))
        for other in range(len(transfers_D)):
            if other != rank and len(starts_s[other]):
                busy_s += _busy_until(ends_s[rank], starts_s[other], ends_s[other])
                busy_s -= _busy_until(starts_s[rank], starts_s[other], ends_s[other])
        length_s = np.maximum(ends_s[rank] - starts_s[rank], 1e-9)
        overlaps.append((busy_s / length_s).tolist())
    return overlaps


def _busy_until(moments_s: FloatArray, starts_s: FloatArray, ends_s: FloatArray) -> FloatArray:
    """Time that intervals, which follow each other, cover until each moment."""
    covered_s = np.concatenate([[0.0], np.cumsum(ends_s - starts_s)])
    begun = np.searchsorted(starts_s, moments_s, side="right")
    latest = np.maximum(begun - 1, 0)
    running_s = np.clip(ends_s[latest] - moments_s, 0.0, None)
    until_s: FloatArray = covered_s[begun] - np.where(begun > 0, running_s, 0.0)
    return until_s


def _fit_contended(
    moved_K: FloatArray, time_K: FloatArray, others_K: FloatArray, groups_K: IntArray, *, seed: int
) -> tuple[LinearFit, Term]:
    """Fit latency and bytes of a transfer alone, and what each other one under way adds, in turns.

    time = (latency + bytes x seconds_per_byte) x (1 + contention x others)
    """

    def alone(stretch_K: FloatArray, *, with_intervals: bool) -> LinearFit:
        return fit_nonnegative(
            _alone_terms_KF(moved_K, stretch_K),
            time_K,
            groups_K=groups_K,
            drop_order=_DROP_ORDER,
            least_distinct=_LEAST_DISTINCT,
            with_intervals=with_intervals,
            seed=seed,
        )

    def slowed(alone_K: FloatArray) -> LinearFit:
        terms_KF = np.stack([alone_K, alone_K * others_K], axis=1)
        return fit_nonnegative(terms_KF, time_K, groups_K=groups_K, drop_order=(1,), with_intervals=False, seed=seed)

    nobody_K = np.ones_like(moved_K)
    if float(others_K.mean()) < _LEAST_OVERLAP or not slowed(nobody_K).identified_F[1]:
        return alone(nobody_K, with_intervals=True), no_term()
    # Where large transfers are the crowded ones, each turn comes only part of the way.
    fit, value, before = alone(nobody_K, with_intervals=False), 0.0, np.inf
    for _ in range(_MOST_TURNS):
        if abs(value - before) <= _CLOSE * value:
            break
        found_F = slowed(fit.fitted_K / (1 + value * others_K)).values_F
        if found_F[0] <= 0:
            break
        value, before = float(found_F[1] / found_F[0]), value
        fit = alone(1 + value * others_K, with_intervals=False)
    return _with_intervals(fit, value, moved_K, others_K, groups_K, seed=seed)


def _alone_terms_KF(moved_K: FloatArray, stretch_K: FloatArray) -> FloatArray:
    """Latency and bytes of each transfer, as far as others stretch it."""
    return np.stack([stretch_K, moved_K * stretch_K], axis=1)


def _with_intervals(
    fit: LinearFit, contention: float, moved_K: FloatArray, others_K: FloatArray, groups_K: IntArray, *, seed: int
) -> tuple[LinearFit, Term]:
    """How sure latency, bytes and contention are while none of them is known.

    Near what was found, time is linear in all three, with its derivatives as terms. The last of them counts contention
    from 0, not from what was found, so that share of the time is added to what was measured.
    """
    stretch_K = 1 + contention * others_K
    contended_K = fit.fitted_K / stretch_K * others_K
    kept = np.flatnonzero(fit.identified_F)
    joint = fit_nonnegative(
        np.column_stack([_alone_terms_KF(moved_K, stretch_K)[:, kept], contended_K]),
        fit.measured_K + contention * contended_K,
        groups_K=groups_K,
        drop_order=(),
        seed=seed,
    )
    low_F, high_F = fit.values_F.copy(), fit.values_F.copy()
    low_F[kept] = np.minimum(joint.low_F[:-1], low_F[kept])
    high_F[kept] = np.maximum(joint.high_F[:-1], high_F[kept])
    low, high = min(float(joint.low_F[-1]), contention), max(float(joint.high_F[-1]), contention)
    return replace(fit, low_F=low_F, high_F=high_F), Term(value=contention, low=low, high=high)


def _fit_lag(lag_K: FloatArray, fitted_K: FloatArray, *, seed: int) -> Term:
    """How much later than in the mean the last rank leaves, as a share of what the collective takes by its fit."""
    takes_time_K = fitted_K > 0
    if not takes_time_K.any():
        return no_term()
    return mean_term(lag_K[takes_time_K] / fitted_K[takes_time_K], seed=seed)


def _cost(
    fit: LinearFit, *, contention: Term | None = None, others: float = 0.0, lag: Term | None = None
) -> TransferCost:
    return TransferCost(
        latency=term_of(fit, _LATENCY),
        seconds_per_byte=term_of(fit, _BYTES),
        contention=contention,
        others=others,
        lag=lag,
        spread=fit.spread,
        observations=len(fit.measured_K),
    )


def _bytes_warning(label: str, fit: LinearFit) -> list[str]:
    if not fit.identified_F[_BYTES]:
        return [
            f"{label}: bandwidth cannot be told from latency, for all units are of one size; all is taken as latency"
        ]
    if fit.values_F[_BYTES] == 0 or fit.high_F[_BYTES] - fit.low_F[_BYTES] > 2 * fit.values_F[_BYTES]:
        return [f"{label}: bandwidth is not known well: what its bytes cost drowns in the latency"]
    return []


def _vagueness_warning(label: str, fit: LinearFit, groups_K: IntArray, *, seed: int) -> list[str]:
    """Whether times as a whole are known badly, which intervals do not tell: latency and bytes stand for each other."""
    if not (fit.fitted_K > 0).all():
        return []
    whole = fit_nonnegative(fit.fitted_K[:, None], fit.measured_K, groups_K=groups_K, drop_order=(), seed=seed)
    beyond = float(max(whole.high_F[0] - whole.values_F[0], whole.values_F[0] - whole.low_F[0]))
    if beyond <= _VAGUE_SHARE:
        return []
    return [
        f"{label}: what it takes is known to within {beyond:.0%} only, from {len(fit.measured_K)} of them that vary by "
        f"{fit.spread:.0%}: record more minibatches"
    ]
