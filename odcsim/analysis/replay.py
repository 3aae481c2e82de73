"""What ODC would give: a recorded FSDP run's own compute, replayed under either synchronization. Seconds.

Every rank's compute, visit by visit, is taken as it was recorded, so nothing needs to be known of tokens or of the
model. Only who waits for whom changes. Replayed under `fsdp` the run should take what it took: how far off that is
tells how far the other figures can be trusted.

A one-sided transfer is taken to last as long as the collective of its unit did, times a factor that the user gives: 1
inside a node, more across nodes (docs/model.md, "Transfers"). Publishing and settling are taken to cost a collective of
the root each, which meets all ranks and moves about as much.

Legend: N minibatches, D ranks, M microbatches, V visits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

import numpy as np

from odcsim.analysis.meetings import Meetings, align_collectives
from odcsim.analysis.observations import RunObservations
from odcsim.analysis.observe import observe
from odcsim.arrays import FloatArray
from odcsim.engines import find_engine
from odcsim.errors import InputError
from odcsim.metrics import RankTimeTotals
from odcsim.results import TimeFractions
from odcsim.schedule import ROOT_UNIT, Overlap, Schedule, Sync, Work
from odcsim.trace_format import RecordedRun

__all__ = ["Replay", "ReplayedSync", "replay"]

# A slip of the pen: no link is as much slower.
_LARGEST_FACTOR = 1e6


@dataclass(frozen=True)
class ReplayedSync:
    """The run's compute under one synchronization.

    Attributes:
        sync: `fsdp` or `odc`.
        minibatch_s_N: seconds.
        fractions: shares of rank-time.
    """

    sync: Sync
    minibatch_s_N: FloatArray
    fractions: TimeFractions


@dataclass(frozen=True)
class Replay:
    """A recorded run, and what became of its compute.

    Attributes:
        measured_s_N: what its minibatches took.
        fsdp: replayed as it was run.
        odc: the same plan under ODC.
        balanced_s_N: ODC if every minibatch's compute were shared out evenly over ranks: no plan does better.
        one_sided_factor: as given.
    """

    measured_s_N: FloatArray
    fsdp: ReplayedSync
    odc: ReplayedSync
    balanced_s_N: FloatArray
    one_sided_factor: float

    @property
    def error(self) -> float:
        """Of the replay as FSDP against the measured mean."""
        return float(self.fsdp.minibatch_s_N.mean() / self.measured_s_N.mean()) - 1

    @property
    def speedup(self) -> float:
        """Of ODC with the same plan, over the run replayed as FSDP: what is off in both cancels."""
        return float(self.fsdp.minibatch_s_N.mean() / self.odc.minibatch_s_N.mean())

    @property
    def balanced_speedup(self) -> float:
        """Of ODC with a perfect plan, likewise."""
        return float(self.fsdp.minibatch_s_N.mean() / self.balanced_s_N.mean())


def replay(run: RecordedRun, *, one_sided_factor: float = 1.0) -> Replay:
    """Replay a recorded FSDP run.

    Args:
        run: recorded under `fsdp`, by odcrt or ingested.
        one_sided_factor: how many times as long as a collective a one-sided transfer takes.

    Raises:
        InputError: the run was not under FSDP, or cannot be used.
    """
    if not 0 < one_sided_factor <= _LARGEST_FACTOR:
        raise InputError(
            f"must be more than 0 and at most {_LARGEST_FACTOR:g}", key="--one-sided-factor", value=one_sided_factor
        )
    if run.info.case.get("sync") != "fsdp":
        raise InputError(
            "was not recorded under fsdp: what its collectives would cost is not known; allowed: sync fsdp",
            file=run.folder / "run.json",
            key="case.sync",
            value=run.info.case.get("sync"),
        )
    observed = observe(run)
    meetings = align_collectives(observed)
    found = run.info.case.get("overlap", "none")
    overlap = cast("Overlap", found if found in get_args(Overlap) else "none")
    fsdp = _replayed(observed, _schedule(observed, meetings, "fsdp", overlap, factor=1.0))
    schedule = _schedule(observed, meetings, "odc", overlap, factor=one_sided_factor)
    odc = _replayed(observed, schedule)
    # What is not compute stays; compute is the mean rank's in place of the busiest one's.
    computed_s_ND = observed.compute_s_NDMV.sum(axis=(2, 3))
    around_s = schedule.opening_s + schedule.closing_s + schedule.optimizer_s
    return Replay(
        measured_s_N=observed.minibatch_s_N,
        fsdp=fsdp,
        odc=odc,
        balanced_s_N=np.minimum(computed_s_ND.mean(axis=1) + around_s, odc.minibatch_s_N),
        one_sided_factor=one_sided_factor,
    )


def _schedule(
    observed: RunObservations, meetings: Meetings, sync: Sync, overlap: Overlap, *, factor: float
) -> Schedule:
    """What the run's transfers cost, unit by unit, in the mean."""
    names_K = np.array(meetings.names)
    cost_s_K = np.maximum(meetings.cost_s_K, 0.0)

    def mean_s(name: str, unit: int) -> float:
        chosen = (names_K == name) & (meetings.unit_K == unit)
        return float(cost_s_K[chosen].mean()) if chosen.any() else 0.0

    gather_s_V = np.array([mean_s("gather", visit.unit) if visit.gathers else 0.0 for visit in observed.visits])
    reduce_s_V = np.array(
        [mean_s("scatter_accumulate", visit.unit) if visit.reduces else 0.0 for visit in observed.visits]
    )

    def lag(name: str) -> float:
        chosen = names_K == name
        total_s = float(cost_s_K[chosen].sum())
        return float(meetings.lag_s_K[chosen].sum()) / total_s if total_s > 0 else 0.0

    return Schedule(
        sync=sync,
        overlap=overlap,
        visits=observed.visits,
        gather_s_V=gather_s_V * factor,
        reduce_s_V=reduce_s_V * factor,
        publish_s=mean_s("gather", ROOT_UNIT),
        settle_s=mean_s("scatter_accumulate", ROOT_UNIT),
        optimizer_s=float((observed.end_s_ND.max(axis=1) - observed.settled_s_ND.max(axis=1)).mean()),
        gather_lag=lag("gather"),
        reduce_lag=lag("scatter_accumulate"),
    )


def _replayed(observed: RunObservations, schedule: Schedule) -> ReplayedSync:
    """The recorded compute on a schedule: each visit's own time is its factor."""
    visits = len(schedule.visits)
    work = Work(observed.counts_ND, observed.compute_s_NDMV, np.eye(visits))
    outcome = find_engine("recurrence")(work, schedule)
    totals = RankTimeTotals()
    padding_NDM = observed.counted_NDM & ~observed.holds_samples_NDM
    totals.add(outcome, padding_s_ND=(observed.compute_s_NDMV.sum(axis=3) * padding_NDM).sum(axis=2))
    return ReplayedSync(schedule.sync, outcome.minibatch_s_N, totals.fractions())
