"""From recorded runs to costs: one fit for each kind of visit, of transfer and of step. Seconds, bytes, tokens.

Several runs may be given, of the same model, training and number of ranks: compute is fitted to all of them, and each
adds what it alone shows (an `odc` run one-sided transfers, publishing and settling; an `fsdp` run collectives over its
transport).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odcsim.analysis.compute_fits import fit_compute
from odcsim.analysis.match import transport_of
from odcsim.analysis.meetings import align_collectives
from odcsim.analysis.memory import fit_memory
from odcsim.analysis.observations import RunObservations
from odcsim.analysis.observe import observe
from odcsim.analysis.steps import fit_steps
from odcsim.analysis.terms import FittedPart, ranks_per_node
from odcsim.analysis.transfers import FittedTransfers, fit_collectives, fit_one_sided
from odcsim.costs.calibrated import CalibratedCosts, Origin
from odcsim.errors import InputError
from odcsim.trace_format import RecordedRun, run_digest

__all__ = ["Calibration", "calibrate"]


@dataclass(frozen=True)
class Calibration:
    """Costs, and the fits that they come from."""

    costs: CalibratedCosts
    parts: tuple[FittedPart, ...]


def calibrate(runs: Sequence[RecordedRun], *, seed: int = 0) -> Calibration:
    """Fit costs to recorded runs.

    Args:
        runs: of one model, training and number of ranks; at least one.
        seed: of the intervals' resampling.

    Raises:
        InputError: a run cannot be used, or does not go with the first.
    """
    assert runs, "at least one run"
    observed = [_usable(run) for run in runs]
    _check_alike(runs)
    compute = fit_compute(observed, seed=seed)
    collectives = {
        transport: _fit_collectives(of_transport, transport, seed=seed)
        for transport, of_transport in _by_transport(observed).items()
    }
    on_demand = [seen for seen in observed if seen.sync == "odc"]
    one_sided = fit_one_sided(on_demand, seed=seed) if on_demand else None
    transfers = [*collectives.values(), *([] if one_sided is None else [one_sided])]
    warnings = [*compute.warnings, *(warning for fitted in transfers for warning in fitted.warnings)]
    if not collectives:
        warnings.append("no run with sync: fsdp: collectives are taken to cost a one-sided transfer and a meeting")
    if one_sided is None:
        warnings.append("no run with sync: odc: one-sided transfers, publishing and settling are not known from it")
    return Calibration(
        costs=CalibratedCosts(
            origin=_origin(runs, observed),
            model=_section(runs[0], "model"),
            training=_section(runs[0], "training"),
            compute=compute.costs,
            one_sided=None if one_sided is None else one_sided.costs,
            collectives={transport: fitted.costs for transport, fitted in collectives.items()},
            steps=fit_steps(observed, seed=seed),
            memory=fit_memory(observed, seed=seed),
            warnings=tuple(dict.fromkeys(warnings)),
        ),
        parts=(*compute.parts, *(part for fitted in transfers for part in fitted.parts)),
    )


def _usable(run: RecordedRun) -> RunObservations:
    observed = observe(run)
    if not observed.knows_tokens:
        raise InputError(
            "does not say how many tokens its microbatches hold, so compute cannot be fitted; allowed: a run of odcrt, "
            "or a foreign trace ingested with --lengths",
            file=run.folder,
        )
    return observed


def _by_transport(observed: Sequence[RunObservations]) -> dict[str, list[RunObservations]]:
    found: dict[str, list[RunObservations]] = {}
    for seen in observed:
        if seen.sync == "fsdp":
            found.setdefault(transport_of(seen.run), []).append(seen)
    return found


def _fit_collectives(observed: Sequence[RunObservations], transport: str, *, seed: int) -> FittedTransfers:
    return fit_collectives(observed, [align_collectives(seen) for seen in observed], transport, seed=seed)


def _check_alike(runs: Sequence[RecordedRun]) -> None:
    first = runs[0]
    for run in runs[1:]:
        file = run.folder / "run.json"
        if run.info.world_size != first.info.world_size:
            raise InputError(
                f"must be {first.info.world_size} as in {first.folder}: runs of one calibration have the same ranks",
                file=file,
                key="world_size",
                value=run.info.world_size,
            )
        for key in ("model", "training"):
            if _section(run, key) != _section(first, key):
                raise InputError(
                    f"differs from that of {first.folder}: runs of one calibration share it",
                    file=file,
                    key=f"scenario.{key}",
                )


def _section(run: RecordedRun, key: str) -> dict[str, object] | None:
    section = run.info.scenario.get(key)
    return dict(section) if isinstance(section, dict) else None


def _origin(runs: Sequence[RecordedRun], observed: Sequence[RunObservations]) -> Origin:
    info = runs[0].info
    name = info.scenario.get("name")
    return Origin(
        runs=tuple(run.folder.name for run in runs),
        digests=tuple(run_digest(run.folder) for run in runs),
        cases=tuple(dict(run.info.case) for run in runs),
        scenario=name if isinstance(name, str) else None,
        ranks=info.world_size,
        ranks_per_node=ranks_per_node(runs[0]),
        processors=min(info.processors) if info.processors else None,
        minibatches=sum(len(run.info.window) for run in runs),
        microbatches=max(1, sum(int(seen.counts_ND.sum()) for seen in observed)),
        versions=dict(info.versions),
    )
