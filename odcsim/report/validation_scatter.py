"""The figure of all minibatches: predicted against measured, a mark each.

Legend: N minibatches of a case, R repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.analysis.validate import CaseComparison
from odcsim.report.palette import Part, case_part
from odcsim.report.plotting import Figure, Json, axis, digits, layout, plain, sentences
from odcsim.report.scales import Scale, time_scale
from odcsim.report.wording import percent, signed_percent
from odcsim.units import format_seconds

__all__ = ["BANDS", "minibatch_scatter"]

BANDS = (0.03, 0.09)
"""Errors that figures mark: what is good, and what is bearable."""

_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross")
_SHADES = ("var(--band-inner)", "var(--band-outer)")


def minibatch_scatter(cases: Sequence[CaseComparison], *, remark: str = "") -> Figure:
    """Every minibatch of every case.

    Args:
        cases: those that are shown.
        remark: on those that are not.
    """
    longest_s = max(float(max(case.predicted_s_N.max(), case.measured_s_RN.max())) for case in cases)
    shortest_s = min(float(min(case.predicted_s_N.min(), case.measured_s_RN.min())) for case in cases)
    scale = time_scale(longest_s)
    # From zero, unless that would squeeze all marks into a corner.
    start = 0.0 if shortest_s < 0.4 * longest_s else 0.94 * shortest_s / scale.factor
    end = 1.05 * longest_s / scale.factor
    errors = [abs(error) for case in cases for error in case.errors_N.tolist()]
    within = [sum(error <= band for error in errors) for band in BANDS]
    bands = " and ".join(f"{100 * band:.0f}%" for band in BANDS)
    return Figure(
        key="minibatches",
        title="Every minibatch",
        caption=sentences(
            f"On the dotted line prediction and measurement agree; the bands are {bands} wide to either side. "
            f"Of {len(errors)} minibatches, {within[0]} lie in the inner band and {within[1]} in the outer.",
            "Hollow: costs were fitted to the case." if any(case.is_fitted for case in cases) else "",
            "Whiskers: repeats." if any(len(case.measured_s_RN) > 1 for case in cases) else "",
            remark,
        ),
        description=f"Scatter plot of predicted against measured seconds of {len(errors)} minibatches; "
        f"{percent(within[0] / len(errors))} of them within {100 * BANDS[0]:.0f}%",
        data=[
            *(_band(band, start, end, color) for band, color in reversed(list(zip(BANDS, _SHADES, strict=True)))),
            _line([start, end]),
            *(_marks(case, position, scale) for position, case in enumerate(cases)),
        ],
        layout=layout(
            height_px=430,
            margin={"l": 10, "r": 16, "t": 8, "b": 44},
            xaxis=axis(f"measured, {scale.unit}", range=[digits(start), digits(end)], zeroline=False, nticks=7),
            yaxis=axis(f"predicted, {scale.unit}", range=[digits(start), digits(end)], zeroline=False, nticks=7),
        ),
        legend=_legend(cases),
        header=("minibatch", "predicted", "measured", "error"),
        rows=tuple(
            (f"{case.label}, {n}", format_seconds(predicted_s), format_seconds(measured_s), signed_percent(error))
            for case in cases
            for n, predicted_s, measured_s, error in zip(
                case.minibatches,
                case.predicted_s_N.tolist(),
                case.measured_s_N.tolist(),
                case.errors_N.tolist(),
                strict=True,
            )
        ),
    )


def _legend(cases: Sequence[CaseComparison]) -> tuple[Part, ...]:
    return tuple(case_part(case.label, position) for position, case in enumerate(cases))


def _line(ends: list[float]) -> Json:
    drawn = [digits(value) for value in ends]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": drawn,
        "y": drawn,
        "line": {"color": "var(--axis)", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _band(share: float, start: float, end: float, color: str) -> Json:
    """The area in which predictions are off by at most `share`."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [digits(value) for value in (start, end, end, start)],
        "y": [
            digits(value) for value in (start * (1 - share), end * (1 - share), end * (1 + share), start * (1 + share))
        ],
        "fill": "toself",
        "fillcolor": color,
        "line": {"width": 0, "color": color},
        "hoverinfo": "skip",
    }


def _marks(case: CaseComparison, position: int, scale: Scale) -> Json:
    color = case_part(case.label, position).color
    shape = _SHAPES[position % len(_SHAPES)]
    measured_s_N = case.measured_s_N
    late_N, early_N = case.measured_s_RN.max(axis=0) - measured_s_N, measured_s_N - case.measured_s_RN.min(axis=0)
    repeats: Json = {
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [digits(value) for value in (late_N / scale.factor).tolist()],
            "arrayminus": [digits(value) for value in (early_N / scale.factor).tolist()],
            "color": color,
            "thickness": 1,
            "width": 3,
        }
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [digits(value) for value in (measured_s_N / scale.factor).tolist()],
        "y": [digits(value) for value in (case.predicted_s_N / scale.factor).tolist()],
        "marker": {
            "symbol": f"{shape}-open" if case.is_fitted else shape,
            "color": color,
            "size": 9,
            "line": {"color": color, "width": 1.5},
        },
        "hovertext": [
            f"{plain(case.label)}, minibatch {n}<br>predicted {format_seconds(predicted_s)}, "
            f"measured {format_seconds(measured_s)}<br>{signed_percent(error)}"
            for n, predicted_s, measured_s, error in zip(
                case.minibatches,
                case.predicted_s_N.tolist(),
                measured_s_N.tolist(),
                case.errors_N.tolist(),
                strict=True,
            )
        ],
        "hoverinfo": "text",
        **(repeats if len(case.measured_s_RN) > 1 else {}),
    }
