"""The figures of a validation that set a predicted mark beside a measured one: speedups, memory."""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.analysis.validate import CaseComparison, Validation
from odcsim.analysis.validation_document import speedups_of
from odcsim.report.palette import Part
from odcsim.report.plotting import Figure, Json, axis, case_axis, digits, layout, plain, rows_px, sentences, vertical
from odcsim.report.scales import byte_scale
from odcsim.report.validation_wording import measured_peak_bytes
from odcsim.report.wording import signed_percent
from odcsim.units import format_bytes

__all__ = ["paired_speedups_figure", "peak_memory_figure"]

_PREDICTED = Part("predicted", "predicted", "var(--accent)", "")
_MEASURED = Part("measured", "measured", "var(--ink)", "")


def paired_speedups_figure(
    validation: Validation, cases: Sequence[CaseComparison], *, remark: str = ""
) -> Figure | None:
    """Speedups over the first case; None where there is nothing to compare."""
    first = validation.cases[0]
    found = [(case, speedups) for case in cases if case is not first and (speedups := speedups_of(validation, case))]
    if not found:
        return None
    return _pairs_figure(
        [case for case, _ in found],
        [speedups for _, speedups in found],
        key="speedups",
        title="Speedups",
        caption=sentences(f"Over {first.label}, on the minibatches that both have.", remark),
        across="times as fast",
        texts=[f"{predicted:.2f} predicted, {measured:.2f} measured" for _, (predicted, measured) in found],
        rows=tuple(
            (case.label, f"{ends[0]:.4f}", f"{ends[1]:.4f}", f"{ends[0] - ends[1]:+.4f}") for case, ends in found
        ),
        mark=1.0,
        wide=not any(measured_peak_bytes(case) and case.predicted_peak_bytes for case in cases),
    )


def peak_memory_figure(cases: Sequence[CaseComparison], *, remark: str = "") -> Figure | None:
    """Peak memory of a rank; None where it was not both predicted and measured."""
    found = [
        (case, (case.predicted_peak_bytes, peak_bytes))
        for case in cases
        if case.predicted_peak_bytes is not None and (peak_bytes := measured_peak_bytes(case)) is not None
    ]
    if not found:
        return None
    scale = byte_scale(max(max(ends) for _, ends in found))
    return _pairs_figure(
        [case for case, _ in found],
        [(predicted / scale.factor, measured / scale.factor) for _, (predicted, measured) in found],
        key="memory",
        title="Peak memory of a rank",
        caption=sentences("As the operating system counted it, of the fullest rank.", remark),
        across=scale.unit,
        texts=[
            f"{format_bytes(predicted)} predicted, {format_bytes(measured)} measured"
            for _, (predicted, measured) in found
        ],
        rows=tuple(
            (case.label, format_bytes(ends[0]), format_bytes(ends[1]), signed_percent(ends[0] / ends[1] - 1))
            for case, ends in found
        ),
        mark=None,
        wide=False,
    )


def _pairs_figure(
    cases: Sequence[CaseComparison],
    pairs: Sequence[tuple[float, float]],
    *,
    key: str,
    title: str,
    caption: str,
    across: str,
    texts: Sequence[str],
    rows: tuple[tuple[str, ...], ...],
    mark: float | None,
    wide: bool,
) -> Figure:
    """A row a case, with a mark for what was predicted and one for what was measured, joined by a line."""
    ends = [end for pair in pairs for end in pair]
    low, high = (0.0, max(ends)) if mark is None else (min(*ends, mark), max(*ends, mark))
    room = 0.08 * (high - low) or 0.1
    lines: Json = {
        "type": "scatter",
        "mode": "lines",
        "x": [end for predicted, measured in pairs for end in (digits(predicted), digits(measured), None)],
        "y": [place for row in range(len(pairs)) for place in (row, row, None)],
        "line": {"color": "var(--axis)", "width": 3},
        "hoverinfo": "skip",
    }
    marks: list[Json] = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [digits(pair[index]) for pair in pairs],
            "y": list(range(len(pairs))),
            "marker": {"symbol": symbol, "color": part.color, "size": 11, "line": {"color": part.color, "width": 2}},
            "hovertext": [f"{plain(case.label)}<br>{text}" for case, text in zip(cases, texts, strict=True)],
            "hoverinfo": "text",
        }
        for index, part, symbol in ((0, _PREDICTED, "diamond"), (1, _MEASURED, "circle-open"))
    ]
    return Figure(
        key=key,
        title=title,
        caption=caption,
        description="Marks: " + "; ".join(f"{case.label} {text}" for case, text in zip(cases, texts, strict=True)),
        data=[lines, *marks],
        layout=layout(
            height_px=rows_px(cases) + 60,
            xaxis=axis(
                across, range=[0 if mark is None else digits(low - room), digits(high + room)], zeroline=False, nticks=7
            ),
            yaxis=case_axis(cases),
            shapes=[] if mark is None else [vertical(mark)],
        ),
        legend=(_PREDICTED, _MEASURED),
        header=("case", "predicted", "measured", "difference"),
        rows=rows,
        wide=wide,
    )
