"""How much longer than a rank of speed 1 the ranks of a recorded run were told to compute, by the run's own scenario.

Emulated compute follows `cluster.rank_speeds`, `cluster.slowdowns` and `cluster.compute_noise`, and so does the
simulator's; real compute does not.
"""

from __future__ import annotations

import numpy as np

from odcsim.analysis.observations import RunObservations
from odcsim.arrays import FloatArray
from odcsim.minibatches import compute_noise_DM, slowdowns_DM
from odcsim.scenario.schema import Slowdowns
from odcsim.trace_format import RecordedRun
from odcsim.trace_format.section import Section

__all__ = ["follows_speeds", "told_stretch_NDM"]


def follows_speeds(run: RecordedRun) -> bool:
    """Whether ranks computed at the speeds that the scenario gives them."""
    return run.info.case.get("compute") != "real"


def told_stretch_NDM(seen: RunObservations) -> FloatArray:
    """How many times longer each microbatch was to take, shape (N, D, M).

    Raises:
        InputError: the scenario in run.json holds no such speeds or slowdowns as a scenario can.
    """
    run = seen.run
    stretch_NDM = np.ones(seen.tokens_NDM.shape)
    scenario = Section(run.info.scenario, file=run.folder / "run.json", path="scenario")
    if "cluster" not in scenario.content or not follows_speeds(run):
        return stretch_NDM
    cluster = scenario.section("cluster")
    if "rank_speeds" in cluster.content:
        stretch_NDM /= _speeds_D(cluster.section("rank_speeds"), ranks=seen.ranks)[:, None]
    if "slowdowns" in cluster.content:
        slowdowns = _slowdowns(cluster.section("slowdowns"))
        seed = scenario.section("workload").whole("seed", least=0)
        for position, minibatch in enumerate(run.info.window):
            stretch_NDM[position] *= slowdowns_DM(
                slowdowns, seed=seed, minibatch=minibatch, ranks=seen.ranks, count=seen.tokens_NDM.shape[2]
            )
    if cluster.content.get("compute_noise"):
        sigma = cluster.number("compute_noise")
        cluster.check(0 <= sigma <= 10, "compute_noise", "must be from 0 to 10")
        seed = scenario.section("workload").whole("seed", least=0)
        for position, minibatch in enumerate(run.info.window):
            stretch_NDM[position] *= compute_noise_DM(
                sigma, seed=seed, minibatch=minibatch, ranks=seen.ranks, count=seen.tokens_NDM.shape[2]
            )
    return stretch_NDM


def _speeds_D(speeds: Section, *, ranks: int) -> FloatArray:
    speeds_D = np.ones(ranks)
    known = {str(rank): rank for rank in range(ranks)}
    for key in speeds.content:
        speeds.check(key in known, key, f"the key must be a rank, 0 to {ranks - 1}")
        speeds.check(speeds.number(key) > 0, key, "must be more than 0")
        speeds_D[known[key]] = speeds.number(key)
    return speeds_D


def _slowdowns(section: Section) -> Slowdowns:
    probability, factor = section.number("probability"), section.number("factor")
    section.check(0 <= probability <= 1, "probability", "must be from 0 to 1")
    section.check(factor >= 1, "factor", "must be at least 1")
    return Slowdowns(probability=probability, factor=factor)
