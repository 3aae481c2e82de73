"""Whether a recorded run is one of a scenario's: the same model, training, ranks and workload, and one of its cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from odcsim.errors import InputError
from odcsim.resolve import ResolvedScenario
from odcsim.scenario import Planning
from odcsim.schedule import Overlap
from odcsim.trace_format import RecordedRun

__all__ = ["matching_case", "require_same_emulation", "require_same_scenario", "transport_of"]

# What decides what ranks run. Not the costs, which are what is put to the test, and not the number of minibatches.
_SHARED = (
    ("training",),
    ("cluster", "nodes"),
    ("cluster", "gpus_per_node"),
    ("cluster", "rank_speeds"),
    ("cluster", "slowdowns"),
    ("cluster", "compute_noise"),
    ("planning",),
    ("workload", "source"),
    ("workload", "lengths"),
    ("workload", "samples_per_rank"),
    ("workload", "samples_per_minibatch"),
    ("workload", "length_scale"),
    ("workload", "cut_tokens"),
    ("workload", "max_tokens"),
    ("workload", "oversize"),
    ("workload", "seed"),
)

# Of lengths: the source, with what the files hold, is compared apart.
_PATHS = frozenset({"trace", "histogram"})

# Keys that runs of earlier versions do not have, and what these did.
_DEFAULTS: dict[tuple[str, ...], object] = {
    ("workload", "length_scale"): 1.0,
    ("cluster", "compute_noise"): 0.0,
    ("planning",): Planning().model_dump(),
}


def transport_of(run: RecordedRun) -> str:
    """What moved a run's data."""
    return str(run.info.case.get("transport", "shm" if run.info.case.get("sync") == "odc" else "collective"))


def require_same_scenario(run: RecordedRun, resolved: ResolvedScenario, *, file: Path) -> Overlap:
    """Refuse a run of another scenario.

    Returns:
        How the run overlapped transfers with compute.

    Raises:
        InputError: names the first key that differs, in run.json.
    """
    where = run.folder / "run.json"
    ranks = resolved.scenario.cluster.ranks
    if run.info.world_size != ranks:
        raise InputError(
            f"{file} has {ranks} ranks: the run is of another scenario",
            file=where,
            key="world_size",
            value=run.info.world_size,
        )
    recorded, ours = dict(run.info.scenario), resolved.to_document()
    if recorded:
        for path in (*(("model", key) for key in ours["model"] if key != "name"), *_SHARED):
            found, expected = _plain(_at(recorded, path)), _plain(_at(ours, path))
            found = _DEFAULTS.get(path) if found is None else found
            if found != expected:
                raise InputError(
                    f"{file} has {expected!r}: the run is of another scenario",
                    file=where,
                    key=".".join(("scenario", *path)),
                    value=found,
                )
    overlap = run.info.case.get("overlap", resolved.scenario.overlap)
    if overlap not in get_args(Overlap):
        raise InputError(f"allowed: {', '.join(get_args(Overlap))}", file=where, key="case.overlap", value=overlap)
    return overlap  # type: ignore[no-any-return]


def require_same_emulation(runs: Sequence[RecordedRun]) -> None:
    """Refuse runs whose emulated compute was given different costs: they are no repeats, nor cases of one scenario.

    Raises:
        InputError: names the run that differs from the first.
    """
    emulated = [run for run in runs if run.info.case.get("compute") == "emulated"]
    for run in emulated[1:]:
        given, first = (found.info.scenario.get("compute") for found in (run, emulated[0]))
        if given != first:
            raise InputError(
                f"{emulated[0].folder} emulated {first}: runs of one validation emulate the same compute",
                file=run.folder / "run.json",
                key="scenario.compute",
                value=given,
            )


def matching_case(run: RecordedRun, resolved: ResolvedScenario, *, file: Path) -> int:
    """Position of the scenario's case that a run is of: of several alike, the first whose overlap is the run's, if any.

    Raises:
        InputError: it has none such.
    """
    wanted, alike = run.info.case, []
    for position, case in enumerate(resolved.cases):
        same_pad = bool(wanted.get("pad", case.case.pad)) == case.case.pad
        if (case.case.sync, case.policy.name) == (wanted.get("sync"), wanted.get("policy")) and same_pad:
            alike.append(position)
    if alike:
        # Where the hardware cannot overlap, runs of cases that differ in nothing else are repeats of one.
        overlaps = [resolved.cases[position].schedule.overlap for position in alike]
        return alike[overlaps.index(wanted["overlap"]) if wanted.get("overlap") in overlaps else 0]
    known = ", ".join(f"{case.case.sync} {case.policy.name}" for case in resolved.cases)
    raise InputError(
        f"{file} has no such case; it has: {known}",
        file=run.folder / "run.json",
        key="case",
        value=f"{wanted.get('sync')} {wanted.get('policy')}",
    )


def _at(document: dict[str, Any], path: tuple[str, ...]) -> object:
    value: object = document
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _plain(value: object) -> object:
    """The same whether it has been through JSON or not; what says nothing is None, and paths, which depend on the place
    of the scenario, say nothing.
    """
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items() if key not in _PATHS} or None
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
