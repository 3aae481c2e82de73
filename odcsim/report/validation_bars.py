"""The figures of a validation that are bars: errors, and where time goes.

Errors are predicted / measured - 1. Legend: N minibatches of a case, R repeats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from odcsim.analysis.validate import CaseComparison
from odcsim.report.palette import FRACTIONS
from odcsim.report.plotting import (
    Figure,
    Json,
    axis,
    case_axis,
    digits,
    layout,
    note,
    plain,
    rows_px,
    sentences,
    vertical,
)
from odcsim.report.validation_scatter import BANDS
from odcsim.report.wording import percent, signed_percent
from odcsim.results import TimeFractions

__all__ = ["error_figure", "paired_fractions_figure"]

_SMALLEST_LABELLED_SHARE = 0.08
_PAIR_PX = 84


def error_figure(cases: Sequence[CaseComparison], *, remark: str = "") -> Figure:
    """Errors of the mean minibatch, with what repeats make of them."""
    ranges = [_errors_by_repeat(case) for case in cases]
    reach = 100 * max(
        1.1 * BANDS[0],
        *(abs(end) for ends in ranges for end in ends),
        *(abs(error) for case in cases for error in case.errors_N.tolist()),
    )
    repeated = any(case.repeat_spread is not None for case in cases)
    bars: Json = {
        "type": "bar",
        "orientation": "h",
        "x": [digits(100 * case.error) for case in cases],
        "y": list(range(len(cases))),
        "width": 0.5,
        "marker": {"color": ["var(--neutral)" if case.is_fitted else "var(--accent)" for case in cases]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [digits(100 * (high - case.error)) for case, (_, high) in zip(cases, ranges, strict=True)],
            "arrayminus": [digits(100 * (case.error - low)) for case, (low, _) in zip(cases, ranges, strict=True)],
            "color": "var(--ink)",
            "thickness": 1.5,
            "width": 5,
            "visible": repeated,
        },
        "hovertext": [
            f"{plain(case.label)}<br>error {signed_percent(case.error)}"
            + ("" if case.repeat_spread is None else f"<br>repeats differ by {percent(case.repeat_spread)}")
            for case in cases
        ],
        "hoverinfo": "text",
    }
    dots: Json = {
        "type": "scatter",
        "mode": "markers",
        "x": [digits(100 * error) for case in cases for error in case.errors_N.tolist()],
        "y": [row + 0.36 for row, case in enumerate(cases) for _ in case.minibatches],
        "marker": {"symbol": "circle-open", "color": "var(--muted)", "size": 5},
        "hovertext": [
            f"{plain(case.label)}, minibatch {n}<br>{signed_percent(error)}"
            for case in cases
            for n, error in zip(case.minibatches, case.errors_N.tolist(), strict=True)
        ],
        "hoverinfo": "text",
    }
    marks = [band for band in BANDS if 100 * band <= 1.2 * reach]
    return Figure(
        key="errors",
        title="Error of each case",
        caption=sentences(
            "Predicted over measured mean minibatch, less 1; right of zero the prediction is too long. Circles: single "
            f"minibatches. Dotted: {' and '.join(f'{100 * band:.0f}%' for band in marks)}.",
            "Whiskers: against each repeat alone." if repeated else "",
            "Grey: costs were fitted to the case." if any(case.is_fitted for case in cases) else "",
            remark,
        ),
        description="Bars: " + "; ".join(f"{case.label} {signed_percent(case.error)}" for case in cases),
        data=[bars, dots],
        layout=layout(
            height_px=max(rows_px(cases) + 76, 430),
            margin={"l": 10, "r": 16, "t": 24, "b": 44},
            xaxis=axis("error", range=[-1.2 * reach, 1.2 * reach], ticksuffix="%", zeroline=True, nticks=7),
            yaxis=case_axis(cases),
            shapes=[vertical(sign * 100 * band, color="var(--axis)") for band in marks for sign in (-1, 1)],
            annotations=[
                note(
                    digits(100 * case.error),
                    row - 0.25,
                    f"<b>{signed_percent(case.error)}</b>",
                    yanchor="bottom",
                    xanchor="center",
                    xshift=0,
                    bgcolor="var(--card)",
                    borderpad=1,
                )
                for row, case in enumerate(cases)
            ],
        ),
        header=("case", "error", "against single repeats", "worst minibatch"),
        rows=tuple(
            (
                case.label,
                f"{100 * case.error:+.2f}%",
                f"{100 * low:+.2f}% to {100 * high:+.2f}%" if len(case.measured_s_RN) > 1 else "one run",
                f"{100 * float(case.errors_N[np.abs(case.errors_N).argmax()]):+.2f}%",
            )
            for case, (low, high) in zip(cases, ranges, strict=True)
        ),
    )


def _errors_by_repeat(case: CaseComparison) -> tuple[float, float]:
    """The least and the largest error against a single repeat, and against the median of all."""
    errors_R = case.predicted_s_N.mean() / case.measured_s_RN.mean(axis=1) - 1
    return min(float(errors_R.min()), case.error), max(float(errors_R.max()), case.error)


def paired_fractions_figure(cases: Sequence[CaseComparison], *, remark: str = "") -> Figure:
    """Where rank-time goes: predicted above measured, a pair of bars a case."""
    pairs: list[tuple[CaseComparison, str, TimeFractions]] = [
        (case, word, fractions)
        for case in cases
        for word, fractions in (("predicted", case.predicted), ("measured", case.measured))
    ]
    places = [3 * (position // 2) + position % 2 for position in range(len(pairs))]
    shares = [fractions.to_document() for _, _, fractions in pairs]
    parts = [part for part in FRACTIONS if any(share[part.key] > 0 for share in shares)]
    traces: list[Json] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [digits(100 * share[part.key]) for share in shares],
            "y": places,
            "width": 0.82,
            "marker": {"color": part.color, "line": {"color": "var(--card)", "width": 1}},
            "text": [
                f"{100 * share[part.key]:.0f}%" if share[part.key] >= _SMALLEST_LABELLED_SHARE else ""
                for share in shares
            ],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"color": part.ink, "size": 12},
            "hovertext": [
                f"{plain(case.label)}, {word}<br>{part.label}: {percent(share[part.key])}"
                for (case, word, _), share in zip(pairs, shares, strict=True)
            ],
            "hoverinfo": "text",
        }
        for part in parts
    ]
    return Figure(
        key="fractions",
        title="Where GPU time goes",
        caption=sentences("Shares of rank-time (ranks x minibatch time), over all minibatches.", remark),
        description="Stacked bars: "
        + "; ".join(
            f"{case.label} {word}: " + ", ".join(f"{part.label} {percent(share[part.key])}" for part in parts)
            for (case, word, _), share in zip(pairs, shares, strict=True)
        ),
        data=traces,
        layout=layout(
            height_px=len(cases) * _PAIR_PX + 60,
            margin={"l": 10, "r": 26, "t": 8, "b": 44},
            barmode="stack",
            xaxis=axis(
                "share of rank-time",
                range=[0, 100.5],
                tickvals=[0, 25, 50, 75, 100],
                ticktext=["0%", "25%", "50%", "75%", "100%"],
            ),
            yaxis=axis(
                tickvals=places,
                ticktext=[word for _, word, _ in pairs],
                range=[3 * len(cases) - 1.4, -1.4],
                showgrid=False,
                zeroline=False,
                ticklabelstandoff=6,
            ),
            annotations=[
                note(
                    0,
                    3 * row - 0.45,
                    f"<b>{plain(case.label)}</b>",
                    xref="paper",
                    xshift=0,
                    yanchor="bottom",
                )
                for row, case in enumerate(cases)
            ],
        ),
        legend=tuple(parts),
        header=("case", *(part.label for part in parts)),
        rows=tuple(
            (f"{case.label}, {word}", *(percent(share[part.key]) for part in parts))
            for (case, word, _), share in zip(pairs, shares, strict=True)
        ),
        wide=True,
    )
