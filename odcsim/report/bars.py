"""The figures that compare cases by bars: speedups, where time goes, memory by part."""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.report.palette import FRACTIONS, Part, memory_part
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
    shown_cases,
    vertical,
)
from odcsim.report.wording import interval_text, memory_text, percent, speedup_text
from odcsim.results import CaseResult, RunResult
from odcsim.units import format_bytes, format_seconds

__all__ = ["fractions_figure", "memory_figure", "speedup_figure"]

_SMALLEST_LABELLED_SHARE = 0.08
_GIGABYTE = 1e9


def speedup_figure(result: RunResult) -> Figure:
    """Speedups with their intervals."""
    shown = shown_cases(result)
    cases, baseline = shown.cases, result.cases[0]
    errors = [case.speedup_ci95 or (case.speedup, case.speedup) for case in cases]
    bars: Json = {
        "type": "bar",
        "orientation": "h",
        "x": [digits(case.speedup) for case in cases],
        "y": list(range(len(cases))),
        "width": 0.62,
        "marker": {
            "color": ["var(--neutral)" if case is baseline else "var(--accent)" for case in cases],
            "pattern": {"shape": ["" if case.memory.fits else "/" for case in cases], "fgcolor": "var(--card)"},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [digits(max(0.0, high - case.speedup)) for case, (_, high) in zip(cases, errors, strict=True)],
            "arrayminus": [digits(max(0.0, case.speedup - low)) for case, (low, _) in zip(cases, errors, strict=True)],
            "color": "var(--ink)",
            "thickness": 1.5,
            "width": 5,
        },
        "hovertext": [
            f"{plain(case.label)}<br>speedup {speedup_text(case, baseline=baseline)}<br>"
            f"{format_seconds(case.seconds_per_minibatch['mean'])} a minibatch<br>{memory_text(case)}"
            for case in cases
        ],
        "hoverinfo": "text",
    }
    notes = [
        note(
            # Beyond the line at 1, which would cross the text.
            digits(max(case.speedup, high, 1.0)),
            row,
            ("1 (baseline)" if case is baseline else f"<b>{case.speedup:.2f}</b> {interval_text(case)}")
            + ("" if case.memory.fits else "<br>does not fit in memory"),
            align="left",
        )
        for row, (case, (_, high)) in enumerate(zip(cases, errors, strict=True))
    ]
    largest = max(max(case.speedup, high) for case, (_, high) in zip(cases, errors, strict=True))
    hatched = "" if all(case.memory.fits for case in cases) else "Hatched: does not fit in memory."
    return Figure(
        key="speedup",
        title="Speedup over the baseline",
        caption=sentences(
            f"Mean minibatch time of {baseline.label} over that of each case. Whiskers: 95% interval.",
            hatched,
            shown.remark,
        ),
        description="Bars: " + "; ".join(f"{case.label} {speedup_text(case, baseline=baseline)}" for case in cases),
        data=[bars],
        layout=layout(
            height_px=rows_px(cases) + 60,
            xaxis=axis("times as fast as the baseline", range=[0, digits(largest * 1.5)], zeroline=True),
            yaxis=case_axis(cases),
            shapes=[vertical(1)],
            annotations=notes,
        ),
        header=("case", "speedup", "95% interval"),
        rows=tuple((case.label, f"{case.speedup:.4f}", interval_text(case) or "none") for case in cases),
    )


def fractions_figure(result: RunResult) -> Figure:
    """Where rank-time goes."""
    shown = shown_cases(result)
    cases = shown.cases
    shares = [case.fractions.to_document() for case in cases]
    parts = [part for part in FRACTIONS if any(share[part.key] > 0 for share in shares)]
    traces = [_stacked_bars(part, cases, [share[part.key] for share in shares]) for part in parts]
    return Figure(
        key="fractions",
        title="Where GPU time goes",
        caption=sentences("Shares of rank-time (ranks x minibatch time), over all minibatches.", shown.remark),
        description="Stacked bars: "
        + "; ".join(
            f"{case.label}: " + ", ".join(f"{part.label} {percent(share[part.key])}" for part in parts)
            for case, share in zip(cases, shares, strict=True)
        ),
        data=traces,
        layout=layout(
            height_px=rows_px(cases) + 60,
            margin={"l": 10, "r": 26, "t": 8, "b": 44},
            barmode="stack",
            xaxis=axis(
                "share of rank-time",
                range=[0, 100.5],
                tickvals=[0, 25, 50, 75, 100],
                ticktext=["0%", "25%", "50%", "75%", "100%"],
            ),
            yaxis=case_axis(cases),
        ),
        legend=tuple(parts),
        header=("case", *(part.label for part in parts)),
        rows=tuple(
            (case.label, *(percent(share[part.key]) for part in parts))
            for case, share in zip(cases, shares, strict=True)
        ),
    )


def _stacked_bars(part: Part, cases: Sequence[CaseResult], shares: list[float]) -> Json:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [digits(100 * share) for share in shares],
        "y": list(range(len(cases))),
        "width": 0.62,
        "marker": {"color": part.color, "line": {"color": "var(--card)", "width": 1}},
        "text": [f"{100 * share:.0f}%" if share >= _SMALLEST_LABELLED_SHARE else "" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": part.ink, "size": 12},
        "hovertext": [
            f"{plain(case.label)}<br>{part.label}: {percent(share)}<br>"
            f"{format_seconds(share * case.seconds_per_minibatch['mean'])} of a mean minibatch"
            for case, share in zip(cases, shares, strict=True)
        ],
        "hoverinfo": "text",
    }


def memory_figure(result: RunResult) -> Figure:
    """Peak memory by part, against the capacity."""
    shown = shown_cases(result)
    cases = shown.cases
    keys = list(dict.fromkeys(key for case in cases for key in case.memory.parts_bytes))
    parts = [
        memory_part(key, position)
        for position, key in enumerate(keys)
        if any(case.memory.parts_bytes.get(key, 0.0) > 0 for case in cases)
    ]
    traces: list[Json] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [digits(case.memory.parts_bytes.get(part.key, 0.0) / _GIGABYTE) for case in cases],
            "y": list(range(len(cases))),
            "width": 0.62,
            "marker": {"color": part.color, "line": {"color": "var(--card)", "width": 1}},
            "hovertext": [
                f"{plain(case.label)}<br>{plain(part.label)}: "
                f"{format_bytes(case.memory.parts_bytes.get(part.key, 0.0))}<br>peak {memory_text(case)}"
                for case in cases
            ],
            "hoverinfo": "text",
        }
        for part in parts
    ]
    notes = [
        note(
            digits(max(case.memory.peak_bytes, case.memory.capacity_bytes * (not case.memory.fits)) / _GIGABYTE),
            row,
            memory_text(case) if case.memory.fits else f"<b>{memory_text(case).replace(', ', '<br>')}</b>",
            align="left",
            font={"size": 12.5, "color": "var(--ink)" if case.memory.fits else "var(--alarm)"},
        )
        for row, case in enumerate(cases)
    ]
    capacities = sorted({case.memory.capacity_bytes for case in cases})
    lines = [
        vertical(digits(case.memory.capacity_bytes / _GIGABYTE), dash="solid", yref="y", y0=row - 0.5, y1=row + 0.5)
        for row, case in enumerate(cases)
    ]
    notes.append(
        note(
            digits(capacities[0] / _GIGABYTE),
            1,
            f"usable: {' or '.join(format_bytes(capacity) for capacity in capacities)}",
            yref="paper",
            yanchor="bottom",
            xanchor="center",
            xshift=0,
            font={"size": 12, "color": "var(--ink)"},
        )
    )
    largest = max(max(case.memory.peak_bytes * 1.25, case.memory.capacity_bytes * 1.06) for case in cases) / _GIGABYTE
    return Figure(
        key="memory",
        title="Peak memory of a rank",
        caption=sentences(
            "By part, at the peak of the run. The line is the device's memory less "
            "a reserve for context, buffers and fragmentation.",
            shown.remark,
        ),
        description="Stacked bars: " + "; ".join(f"{case.label} {memory_text(case)}" for case in cases),
        data=traces,
        layout=layout(
            height_px=rows_px(cases) + 84,
            margin={"l": 10, "r": 12, "t": 28, "b": 44},
            barmode="stack",
            xaxis=axis("GB (10⁹ bytes)", range=[0, digits(largest)]),
            yaxis=case_axis(cases),
            shapes=lines,
            annotations=notes,
        ),
        legend=tuple(parts),
        header=("case", *(part.label for part in parts), "peak", "usable"),
        rows=tuple(
            (
                case.label,
                *(format_bytes(case.memory.parts_bytes.get(part.key, 0.0)) for part in parts),
                memory_text(case),
                format_bytes(case.memory.capacity_bytes),
            )
            for case in cases
        ),
        wide=True,
    )
