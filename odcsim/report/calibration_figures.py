"""The figures of fitted costs: for every part, what was measured against the fit, and what is left of it.

Legend: K observations of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.analysis.terms import FittedPart
from odcsim.arrays import BoolArray, FloatArray, IntArray
from odcsim.report.cost_terms import part_label
from odcsim.report.plotting import Figure, Json, axis, digits, layout, sentences
from odcsim.report.scales import Scale, time_scale
from odcsim.report.wording import fine_percent, plural
from odcsim.units import format_bytes, format_count, format_seconds

__all__ = ["part_figures"]

# More points than these hide each other.
_MOST_POINTS = 1200
_BINS = 8
# Residuals of times shorter than this are relative to it: they are noise of the clock.
_SHORTEST_S = 2e-5
# The residuals' axis reaches so many spreads at least; what lies beyond is drawn at its end.
_REACH = 5.0
_LEAST_REACH = 0.01
_SCALES = {
    "tokens": Scale(1e3, "1K tokens in the microbatch"),
    "bytes": Scale(1e3, "kB of the unit"),
}
_LARGE_UNIT = Scale(1e6, "MB of the unit")


def part_figures(parts: Sequence[FittedPart], *, key: str) -> list[Figure]:
    """A figure for each part that takes any time.

    Args:
        parts: of a calibration.
        key: the figures' keys begin with it.
    """
    shown = [part for part in parts if float(part.measured_s_K.max(initial=0.0)) > 0]
    return [_part_figure(part, key=f"{key}-{number}") for number, part in enumerate(shown)]


def _part_figure(part: FittedPart, *, key: str) -> Figure:
    residuals_K = (part.measured_s_K - part.fitted_s_K) / np.maximum(part.fitted_s_K, _SHORTEST_S)
    drawn_K = _thinned(part)
    reach = max(_REACH * part.spread, _LEAST_REACH)
    beyond_K = np.abs(residuals_K) > reach
    scale = time_scale(float(max(part.measured_s_K.max(), part.fitted_s_K.max())))
    across = _LARGE_UNIT if part.axis == "bytes" and part.against_K.max() >= 1e6 else _SCALES[part.axis]
    count = len(part.measured_s_K)
    title = part_label(part.name)
    title = title[0].upper() + title[1:]
    middle, late = fine_percent(part.spread), plural(int(beyond_K.sum()), "observation")
    return Figure(
        key=key,
        title=title,
        caption=sentences(
            f"{plural(count, 'observation')}; residuals spread by {middle}.",
            f"{late} more than {fine_percent(reach)} off: at the rim of the lower panel." if beyond_K.any() else "",
            f"One in {_step(count)} is drawn." if count > _MOST_POINTS else "",
        ),
        description=f"Two scatter plots: {count} measured times against the fit, and their residuals, which spread by "
        f"{middle}, against {part.axis}",
        data=[
            _diagonal(part, scale),
            _points(part, part.fitted_s_K, part.measured_s_K, residuals_K, drawn_K, scale=scale, axes=("x", "y")),
            *_residuals(part, residuals_K, drawn_K, beyond_K, reach=reach, across=across),
        ],
        layout=layout(
            height_px=430,
            margin={"l": 10, "r": 16, "t": 8, "b": 44},
            xaxis=axis(f"fitted, {scale.unit}", anchor="y", rangemode="tozero", zeroline=False, nticks=7),
            yaxis=axis(f"measured, {scale.unit}", domain=[0.6, 1.0], rangemode="tozero", zeroline=False, nticks=6),
            xaxis2=axis(across.unit, anchor="y2", rangemode="tozero", zeroline=False, nticks=7),
            yaxis2=axis(
                "measured / fitted - 1",
                domain=[0.0, 0.4],
                range=[-112 * reach, 112 * reach],
                ticksuffix="%",
                zeroline=True,
                nticks=5,
            ),
        ),
        header=(
            part.axis,
            "seen",
            "measured (median)",
            "fitted (median)",
            "residual (median)",
            "5th to 95th percentile",
        ),
        rows=tuple(_rows(part, residuals_K)),
    )


def _step(count: int) -> int:
    return max(1, -(-count // _MOST_POINTS))


def _thinned(part: FittedPart) -> IntArray:
    """Which observations are drawn: evenly many from short to long."""
    order_K = np.argsort(part.measured_s_K, kind="stable")
    # From the long end, so that the longest is always there.
    return order_K[::-1][:: _step(len(order_K))]


def _diagonal(part: FittedPart, scale: Scale) -> Json:
    end = digits(float(max(part.measured_s_K.max(), part.fitted_s_K.max())) / scale.factor)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [0, end],
        "y": [0, end],
        "line": {"color": "var(--axis)", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _points(
    part: FittedPart,
    fitted_s_K: FloatArray,
    measured_s_K: FloatArray,
    residuals_K: FloatArray,
    drawn_K: IntArray,
    *,
    scale: Scale,
    axes: tuple[str, str],
) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [digits(value, 5) for value in (fitted_s_K[drawn_K] / scale.factor).tolist()],
        "y": [digits(value, 5) for value in (measured_s_K[drawn_K] / scale.factor).tolist()],
        "xaxis": axes[0],
        "yaxis": axes[1],
        "marker": {"color": "var(--accent)", "size": 6, "opacity": 0.6},
        "hovertext": [_hover(part, residuals_K, position) for position in drawn_K.tolist()],
        "hoverinfo": "text",
    }


def _residuals(
    part: FittedPart,
    residuals_K: FloatArray,
    drawn_K: IntArray,
    beyond_K: BoolArray,
    *,
    reach: float,
    across: Scale,
) -> list[Json]:
    """Residuals within reach, and those beyond it as triangles at the rim, not thinned out with the others."""
    within_K = drawn_K[~beyond_K[drawn_K]]
    far_K = np.flatnonzero(beyond_K)
    far_K = far_K[:: _step(len(far_K))]
    traces: list[Json] = []
    for chosen_K, symbol, color, size in (
        (within_K, "circle", "var(--accent)", 6),
        (far_K, "triangle", "var(--waiting)", 9),
    ):
        if not len(chosen_K):
            continue
        heights_K = np.clip(residuals_K[chosen_K], -1.06 * reach, 1.06 * reach)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [digits(value, 5) for value in (part.against_K[chosen_K] / across.factor).tolist()],
                "y": [digits(100 * value, 4) for value in heights_K.tolist()],
                "xaxis": "x2",
                "yaxis": "y2",
                "marker": {
                    "color": color,
                    "size": size,
                    "opacity": 0.6 if symbol == "circle" else 1,
                    "symbol": [
                        symbol if symbol == "circle" else f"triangle-{'up' if value > 0 else 'down'}"
                        for value in heights_K.tolist()
                    ],
                },
                "hovertext": [_hover(part, residuals_K, position) for position in chosen_K.tolist()],
                "hoverinfo": "text",
            }
        )
    return traces


def _hover(part: FittedPart, residuals_K: FloatArray, position: int) -> str:
    return (
        f"{_amount(part, float(part.against_K[position]))}<br>"
        f"measured {format_seconds(float(part.measured_s_K[position]))}, "
        f"fitted {format_seconds(float(part.fitted_s_K[position]))}<br>"
        f"{100 * float(residuals_K[position]):+.1f}%"
    )


def _amount(part: FittedPart, amount: float) -> str:
    return f"{amount:,.0f} tokens" if part.axis == "tokens" else format_bytes(amount)


def _rows(part: FittedPart, residuals_K: FloatArray) -> list[tuple[str, ...]]:
    """The observations in groups of about equally many, by tokens or bytes."""
    edges = np.unique(np.quantile(part.against_K, np.linspace(0, 1, _BINS + 1)))
    # Where few sizes occur, each is a group of its own.
    sizes = np.unique(part.against_K)
    groups_K = (
        np.searchsorted(sizes, part.against_K)
        if len(sizes) <= _BINS
        else np.clip(np.searchsorted(edges, part.against_K, side="right") - 1, 0, len(edges) - 2)
    )
    rows: list[tuple[str, ...]] = []
    for group in np.unique(groups_K).tolist():
        of_group_K = groups_K == group
        least, most = float(part.against_K[of_group_K].min()), float(part.against_K[of_group_K].max())
        low, high = np.quantile(residuals_K[of_group_K], [0.05, 0.95]).tolist()
        rows.append(
            (
                _short(part, least) if least == most else f"{_short(part, least)} to {_short(part, most)}",
                f"{int(of_group_K.sum()):,}",
                format_seconds(float(np.median(part.measured_s_K[of_group_K]))),
                format_seconds(float(np.median(part.fitted_s_K[of_group_K]))),
                f"{100 * float(np.median(residuals_K[of_group_K])):+.2f}%",
                f"{100 * low:+.2f}% to {100 * high:+.2f}%",
            )
        )
    return rows


def _short(part: FittedPart, amount: float) -> str:
    return format_count(amount) if part.axis == "tokens" else format_bytes(amount)
