"""The figures of distributions: lengths of samples, times of minibatches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from odcsim.arrays import FloatArray
from odcsim.report.palette import Part
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
from odcsim.report.wording import lookup, percent
from odcsim.results import CaseResult, RunResult
from odcsim.units import format_count, format_seconds

__all__ = ["lengths_figure", "minibatches_figure"]

_MOST_BINS = 70


def lengths_figure(result: RunResult) -> Figure | None:
    """The histogram of lengths, by samples and by tokens; None without lengths."""
    lengths_S = result.sampled_lengths
    if lengths_S is None or lengths_S.size == 0:
        return None
    edges = _bin_edges(int(lengths_S.max()))
    samples, _ = np.histogram(lengths_S, bins=edges)
    tokens, _ = np.histogram(lengths_S, bins=edges, weights=lengths_S.astype(np.float64))
    by_samples, by_tokens = samples / samples.sum(), tokens / max(tokens.sum(), 1.0)
    cap = lookup(result.scenario, "workload", "max_tokens")
    cap_tokens = cap if isinstance(cap, int) else None
    far_away = cap_tokens is not None and cap_tokens > 1.5 * edges[-1]
    axis_end = float(edges[-1]) if cap_tokens is None or far_away else max(float(edges[-1]), cap_tokens * 1.02)
    marks = [
        (float(result.lengths[key]), f"{name} {format_count(result.lengths[key])}", "var(--ink)")
        for key, name in (("p50", "median"), ("mean", "mean"), ("p99", "p99"))
        if isinstance(result.lengths.get(key), int | float)
    ]
    if cap_tokens is not None and not far_away:
        marks.append((float(cap_tokens), f"microbatch cap {format_count(cap_tokens)}", "var(--waiting)"))
    beyond = f"The microbatch cap, {cap_tokens:,} tokens, lies beyond this figure." if far_away else ""
    middles = (edges[:-1] + edges[1:]) / 2
    bins = list(zip(pairwise(edges.tolist()), by_samples.tolist(), by_tokens.tolist(), strict=True))
    hover = [
        f"{left:,.0f} to {right - 1:,.0f} tokens<br>{percent(of_samples)} of samples, {percent(of_tokens)} of tokens"
        for (left, right), of_samples, of_tokens in bins
    ]
    bars: Json = {
        "type": "bar",
        "x": middles.tolist(),
        "y": [digits(100 * share, 4) for share in by_samples.tolist()],
        "width": float(edges[1] - edges[0]),
        "marker": {"color": "var(--accent)", "line": {"color": "var(--card)", "width": 0.5}},
        "hovertext": hover,
        "hoverinfo": "text",
    }
    line: Json = {
        "type": "scatter",
        "mode": "lines",
        "line": {"shape": "hvh", "color": "var(--communication)", "width": 2},
        "x": middles.tolist(),
        "y": [digits(100 * share, 4) for share in by_tokens.tolist()],
        "hoverinfo": "skip",
    }
    notes = [
        note(
            x,
            1,
            text,
            yref="paper",
            yanchor="bottom",
            yshift=15 * row,
            xanchor="left" if x < 0.6 * axis_end else "right",
            xshift=0,
            font={"size": 12, "color": color},
        )
        for row, (x, text, color) in enumerate(marks)
    ]
    facts = ", ".join(text for _, text, _ in marks)
    return Figure(
        key="lengths",
        title="Sequence lengths",
        caption=sentences(
            "Samples drawn for this run: bars, share of samples; line, share of all tokens that lie in samples of that "
            "length.",
            beyond,
        ),
        description=f"Histogram of {lengths_S.size:,} lengths in tokens: {facts}",
        data=[bars, line],
        layout=layout(
            height_px=330,
            margin={"l": 10, "r": 12, "t": 16 + 15 * len(marks), "b": 44},
            bargap=0,
            xaxis=axis("tokens in a sample", range=[0, axis_end], tickformat="~s", nticks=9),
            yaxis=axis("share", ticksuffix="%", rangemode="tozero", nticks=6),
            shapes=[vertical(x, color=color) for x, _, color in marks],
            annotations=notes,
        ),
        legend=(
            Part("samples", "share of samples", "var(--accent)", ""),
            Part("tokens", "share of tokens", "var(--communication)", ""),
        ),
        header=("tokens in a sample", "share of samples", "share of tokens"),
        rows=tuple(
            (f"{left:,.0f} to {right - 1:,.0f}", percent(of_samples), percent(of_tokens))
            for (left, right), of_samples, of_tokens in bins
            if of_samples > 0
        ),
    )


def _bin_edges(longest: int) -> FloatArray:
    """Edges of equal bins from 0, of a round width, the last above `longest`."""
    at_least = max(1.0, (longest + 1) / _MOST_BINS)
    power = 10.0 ** math.floor(math.log10(at_least))
    width = next(step * power for step in (1, 2, 5, 10) if step * power >= at_least)
    return np.arange(longest // width + 2) * width


def minibatches_figure(result: RunResult) -> Figure | None:
    """How minibatch times spread; None where there is one minibatch only."""
    shown = shown_cases(result)
    cases = shown.cases
    if len(cases[0].minibatch_s_N) < 2:
        return None
    levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    quantiles = [np.quantile(case.minibatch_s_N, levels).tolist() for case in cases]
    traces: list[Json] = [
        {
            "type": "box",
            "orientation": "h",
            "y": [row],
            "q1": [digits(q25)],
            "median": [digits(q50)],
            "q3": [digits(q75)],
            "lowerfence": [digits(q05)],
            "upperfence": [digits(q95)],
            "width": 0.5,
            "line": {"color": "var(--neutral-strong)" if case is result.cases[0] else "var(--accent)", "width": 1.5},
            "fillcolor": "var(--neutral-soft)" if case is result.cases[0] else "var(--accent-soft)",
            "hoverinfo": "skip",
        }
        for row, (case, (_, q05, q25, q50, q75, q95, _)) in enumerate(zip(cases, quantiles, strict=True))
    ]
    traces += [
        _points([values[0] for values in quantiles], "circle-open", "var(--muted)", "shortest", cases),
        _points([values[-1] for values in quantiles], "circle-open", "var(--muted)", "longest", cases),
        _points(
            [float(case.lower_bound_s_N.mean()) for case in cases],
            "line-ns-open",
            "var(--memory-unit-1)",
            "mean lower bound",
            cases,
            size=18,
        ),
        _points([float(case.minibatch_s_N.mean()) for case in cases], "diamond", "var(--ink)", "mean", cases),
    ]
    return Figure(
        key="minibatches",
        title="Time of a minibatch",
        caption=sentences(
            "Box: middle half, with the median; whiskers: 5th to 95th percentile; diamond: mean; circles: shortest and "
            "longest; green stroke: mean of the lower bound that no plan under the same sync can beat.",
            shown.remark,
        ),
        description="Boxes: "
        + "; ".join(
            f"{case.label}: median {format_seconds(q50)}, 5th to 95th percentile {format_seconds(q05)} to "
            f"{format_seconds(q95)}"
            for case, (_, q05, _, q50, _, q95, _) in zip(cases, quantiles, strict=True)
        ),
        data=traces,
        layout=layout(
            height_px=max(rows_px(cases) + 60, 330),
            xaxis=axis("seconds a minibatch", zeroline=False, nticks=8),
            yaxis=case_axis(cases),
        ),
        header=("case", "shortest", "p5", "p25", "median", "p75", "p95", "longest", "mean", "mean lower bound"),
        rows=tuple(
            (
                case.label,
                *(format_seconds(value) for value in values),
                format_seconds(float(case.minibatch_s_N.mean())),
                format_seconds(float(case.lower_bound_s_N.mean())),
            )
            for case, values in zip(cases, quantiles, strict=True)
        ),
    )


def _points(
    times_s: list[float], symbol: str, color: str, name: str, cases: Sequence[CaseResult], *, size: int = 7
) -> Json:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [digits(time_s) for time_s in times_s],
        "y": list(range(len(times_s))),
        "marker": {"symbol": symbol, "color": color, "size": size, "line": {"color": color, "width": 1.5}},
        "hovertext": [
            f"{plain(case.label)}<br>{name} {format_seconds(time_s)}"
            for case, time_s in zip(cases, times_s, strict=True)
        ],
        "hoverinfo": "text",
    }
