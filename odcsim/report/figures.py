"""The figures of a report, in the order in which they are read; each answers one question."""

from __future__ import annotations

from odcsim.report.bars import fractions_figure, memory_figure, speedup_figure
from odcsim.report.distributions import lengths_figure, minibatches_figure
from odcsim.report.plotting import Figure
from odcsim.report.timeline import timeline_figure
from odcsim.results import RunResult

__all__ = ["all_figures"]


def all_figures(result: RunResult) -> list[Figure]:
    """The figures of a report; those are left out that the result has no data for."""
    figures = [
        speedup_figure(result) if len(result.cases) > 1 else None,
        fractions_figure(result),
        timeline_figure(result),
        lengths_figure(result),
        minibatches_figure(result),
        memory_figure(result),
    ]
    return [figure for figure in figures if figure is not None]
