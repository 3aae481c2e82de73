"""A fit of a rank's memory: what its process has, what training adds, and what each token of a microbatch adds. Bytes.

What the operating system counts is a running peak: one microbatch so far has decided it. Under FSDP that need not be
the largest: a rank holds its shard of the gradients from a minibatch's second microbatch on. Under ODC they are in the
accumulators, which are always there. Allocators keep what they once had, so a run tells less of memory than of time;
where its ranks ran microbatches of one size, nothing tells what a token costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.analysis.fits import LinearFit, fit_nonnegative
from odcsim.analysis.match import transport_of
from odcsim.analysis.observations import RunObservations
from odcsim.analysis.terms import mean_term, term_of
from odcsim.arrays import BoolArray, FloatArray, IntArray
from odcsim.costs.calibrated import ONE_SIDED_BASE, MemoryCosts
from odcsim.costs.memory import gradient_shard_bytes
from odcsim.errors import InputError

__all__ = ["LargestMicrobatches", "fit_memory"]

# Which microbatch decided depends on what a token costs, and the other way round: a few rounds settle both.
_ROUNDS = 20
_MOST_PARAMETERS = 10**15


@dataclass(frozen=True)
class LargestMicrobatches:
    """Tokens of the largest microbatches that each rank has run until the end of each minibatch of the window.

    Attributes:
        first_ND: of those that begin a minibatch; 0 where there was none.
        later_ND: of all others, likewise.
        had_later_ND: whether there was one of these.
    """

    first_ND: FloatArray
    later_ND: FloatArray
    had_later_ND: BoolArray

    @classmethod
    def of(cls, observed: RunObservations) -> LargestMicrobatches:
        """What a run had."""
        tokens_NDM = observed.tokens_NDM
        return cls(
            np.maximum.accumulate(tokens_NDM[:, :, :1].max(axis=2, initial=0.0), axis=0),
            np.maximum.accumulate(tokens_NDM[:, :, 1:].max(axis=2, initial=0.0), axis=0),
            np.maximum.accumulate(observed.counts_ND > 1, axis=0),
        )


def fit_memory(observed: Sequence[RunObservations], *, seed: int) -> MemoryCosts | None:
    """What the runs show of memory; None where nobody counted it."""
    counted = [seen for seen in observed if seen.run.info.memory]
    if not counted:
        return None
    ways = list(dict.fromkeys(_way(seen) for seen in counted))
    fit = _fit([_readings(seen, ways=ways, run=run) for run, seen in enumerate(counted)], seed=seed)
    staging = [
        float(rank.shared_memory_bytes)
        for seen in counted
        for rank in seen.run.info.memory
        if _way(seen) == "collective"
    ]
    return MemoryCosts(
        process=mean_term(
            np.array([float(rank.process_bytes) for seen in counted for rank in seen.run.info.memory]), seed=seed
        ),
        base={way: term_of(fit, position) for position, way in enumerate(ways)},
        per_token=term_of(fit, len(ways)),
        staging=mean_term(np.array(staging), seed=seed) if staging else None,
        spread=fit.spread,
        observations=len(fit.measured_K),
    )


def _way(seen: RunObservations) -> str:
    """What moved a run's data, as `MemoryCosts.base` names it."""
    return ONE_SIDED_BASE if seen.sync == "odc" else transport_of(seen.run)


@dataclass(frozen=True)
class _Readings:
    """K readings of peak memory, rank by rank. Bytes, tokens.

    Attributes:
        first_K: tokens of the largest microbatch so far that began a minibatch.
        later_K: tokens of the largest of the others.
        gradients_K: bytes held beside the latter; 0 where there was none.
        base_KW: 1 in the column of what moved the data.
        measured_K: what training added to the process.
        groups_K: readings of one rank follow each other: they share their luck.
    """

    first_K: FloatArray
    later_K: FloatArray
    gradients_K: FloatArray
    base_KW: FloatArray
    measured_K: FloatArray
    groups_K: IntArray


def _readings(seen: RunObservations, *, ways: Sequence[str], run: int) -> _Readings:
    largest, window, way = LargestMicrobatches.of(seen), len(seen.run.info.window), _way(seen)
    held_ND = largest.had_later_ND * np.float64(0.0 if way == ONE_SIDED_BASE else _gradient_bytes(seen))
    base_W = np.array([float(way == other) for other in ways])
    return _Readings(
        largest.first_ND.T.reshape(-1),
        largest.later_ND.T.reshape(-1),
        held_ND.T.reshape(-1),
        np.tile(base_W, (seen.ranks * window, 1)),
        np.array([rank.training_bytes for rank in seen.run.info.memory], dtype=np.float64).reshape(-1),
        np.repeat(run * seen.ranks + np.arange(seen.ranks), window),
    )


def _gradient_bytes(seen: RunObservations) -> float:
    """A rank's shard of the gradients; 0 where the run does not say how many parameters its model has."""
    model = seen.run.info.scenario.get("model")
    parameters = model.get("total_parameters", 0) if isinstance(model, dict) else 0
    if not isinstance(parameters, int) or not 0 <= parameters <= _MOST_PARAMETERS:
        raise InputError(
            f"must be a whole number up to {_MOST_PARAMETERS:.0e}",
            file=seen.run.folder / "run.json",
            key="scenario.model.total_parameters",
            value=parameters,
        )
    return gradient_shard_bytes(parameters, ranks=seen.ranks)


def _fit(readings: Sequence[_Readings], *, seed: int) -> LinearFit:
    """Bases, and what a token costs."""

    def fit(later_decides_K: BoolArray, *, with_intervals: bool) -> LinearFit:
        return fit_nonnegative(
            np.column_stack([base_KW, np.where(later_decides_K, later_K, first_K)]),
            measured_K - gradients_K * later_decides_K,
            groups_K=groups_K,
            # What a token costs is given up first.
            drop_order=(bases,),
            with_intervals=with_intervals,
            seed=seed,
        )

    first_K, later_K, gradients_K, base_KW, measured_K, groups_K = (
        np.concatenate([getattr(some, name) for some in readings]) for name in _Readings.__annotations__
    )
    bases = base_KW.shape[1]
    later_decides_K = later_K > first_K
    for _ in range(_ROUNDS):
        per_token = fit(later_decides_K, with_intervals=False).values_F[bases]
        beyond_K = gradients_K + per_token * (later_K - first_K)
        # Where a token costs nothing, the larger one may still tell that it does.
        decides_K = (beyond_K > 0) | ((beyond_K == 0) & (later_K > first_K))
        if (decides_K == later_decides_K).all():
            break
        later_decides_K = decides_K
    return fit(later_decides_K, with_intervals=True)
