"""The timeline of one minibatch: for each case a panel, for each rank a lane, all over the same time axis.

Rectangles are drawn as one path for each case and kind, which browsers draw fast and which takes some 30 bytes a
rectangle. What is hovered over are invisible bars, one for each microbatch of each rank. Where there are more
rectangles than a page should hold, lanes are sampled on a grid (`lanes.sampled`).

In a panel, lane i takes y from 10 i to 10 i + 10: its compute layer from 10 i + 1 to 10 i + 7, its transfer layer from
10 i + 7.5 to 10 i + 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odcsim.report.lanes import Block, Lane, Piece, lanes_of, sampled
from odcsim.report.palette import TIMELINE_KINDS
from odcsim.report.plotting import Figure, Json, axis, layout, plain, shown_cases
from odcsim.report.wording import percent, plural
from odcsim.results import CaseResult, RunResult
from odcsim.units import format_seconds

__all__ = ["timeline_figure"]

_MOST_PANELS = 8
_MOST_RANKS = 16
_MOST_RECTANGLES = 20_000
_MOST_BLOCKS = 5_000
_GRIDS = (2000, 1400, 1000, 700, 500, 350, 250, 120)
# Share of the columns of a grid that begin a rectangle where lanes are busy, seen in runs of many microbatches.
_USUAL_FILLING = 0.3

_TITLE_PX = 30
_LANE = 10
_COMPUTE_LAYER = (1.0, 7.0)
_TRANSFER_LAYER = (7.5, 9.0)


@dataclass(frozen=True)
class _Unit:
    """The unit of the time axis."""

    name: str
    seconds: float

    @classmethod
    def for_times_up_to(cls, longest_s: float) -> _Unit:
        if longest_s >= 1:
            return cls("s", 1.0)
        return cls("ms", 1e-3) if longest_s >= 1e-3 else cls("us", 1e-6)


@dataclass(frozen=True)
class _Panel:
    """A case with the lanes of its first ranks; `end_s` is the end of its minibatch."""

    case: CaseResult
    lanes: list[Lane]

    @property
    def end_s(self) -> float:
        """End of the minibatch that the spans are of."""
        return max((piece.end_s for lane in self.lanes for piece in lane.compute[-1:]), default=0.0)

    @property
    def height_px(self) -> int:
        """Of the lanes."""
        return len(self.lanes) * (20 if len(self.lanes) <= 8 else 14)


def timeline_figure(result: RunResult) -> Figure | None:
    """What ranks did in the first minibatch; None if no case has spans."""
    shown = shown_cases(result, most=_MOST_PANELS)
    panels = [_Panel(case, lanes_of(case.spans, ranks=_MOST_RANKS)) for case in shown.cases if case.spans]
    panels = [panel for panel in panels if panel.end_s > 0]
    if not panels:
        return None
    longest_s = max(panel.end_s for panel in panels)
    unit = _Unit.for_times_up_to(longest_s)
    drawing = _Drawing.of(panels, longest_s=longest_s)
    plot_px = sum(panel.height_px + _TITLE_PX for panel in panels)
    axes, shapes, notes, traces = {}, [], [], []
    top_px = 0.0
    for position, (panel, drawn_lanes) in enumerate(zip(panels, drawing.lanes_of_panels, strict=True)):
        suffix = "" if position == 0 else str(position + 1)
        top_px += _TITLE_PX
        domain = [max(0.0, 1 - (top_px + panel.height_px) / plot_px), 1 - top_px / plot_px]
        top_px += panel.height_px
        axes[f"yaxis{suffix}"] = _lane_axis(panel, domain)
        shapes += _paths(drawn_lanes, yref=f"y{suffix}", unit=unit, longest_s=longest_s)
        shapes.append(_end_line(panel, suffix, unit))
        notes.append(_title(panel, suffix, baseline=panel.case is result.cases[0]))
        traces.append(_hover_bars(panel, suffix, unit, microbatches_each=drawing.microbatches_each))
    last = f"y{len(panels)}" if len(panels) > 1 else "y"
    ranks = max(len(panel.lanes) for panel in panels)
    all_ranks = result.cases[0].ranks
    caption = [
        "The first minibatch of the run, the same samples in every case; a lane is a rank.",
        "The thin lane below it shows when its transfers are under way.",
        "Drag to zoom, double-click to go back.",
        shown.remark,
        f"The first {ranks} of {all_ranks} ranks are shown." if ranks < all_ranks else "",
        f"Drawn in {drawing.columns} columns: patterns finer than one are drawn coarser, in proportion."
        if drawing.columns
        else "",
    ]
    kinds = {piece.kind for lanes in drawing.lanes_of_panels for lane in lanes for piece in lane.compute}
    return Figure(
        key="timeline",
        title="One minibatch, rank by rank",
        caption=" ".join(sentence for sentence in caption if sentence),
        description="Timelines of the first minibatch: "
        + "; ".join(
            f"{panel.case.label}: {format_seconds(panel.end_s)}, of it waiting {percent(_share(panel, 'wait'))}"
            for panel in panels
        ),
        data=traces,
        layout=layout(
            height_px=plot_px + 52,
            margin={"l": 10, "r": 12, "t": 4, "b": 48},
            barmode="overlay",
            dragmode="zoom",
            xaxis=axis(
                f"time since the start of the minibatch, {unit.name}",
                range=[0, float(f"{longest_s / unit.seconds * 1.005:.6g}")],
                anchor=last,
                fixedrange=False,
                zeroline=False,
                nticks=12,
            ),
            **axes,
            shapes=shapes,
            annotations=notes,
        ),
        legend=tuple(part for part in TIMELINE_KINDS if part.key in kinds or part.key == "transfer"),
        header=("case, rank", *(part.label for part in TIMELINE_KINDS if part.key in kinds), "microbatches"),
        rows=tuple(_rows(panels, kinds)),
        zoomable=True,
        wide=True,
    )


@dataclass(frozen=True)
class _Drawing:
    """The lanes of every panel as they are drawn; `columns` is 0 where nothing had to be sampled."""

    lanes_of_panels: list[list[Lane]]
    columns: int
    microbatches_each: int

    @classmethod
    def of(cls, panels: list[_Panel], *, longest_s: float) -> _Drawing:
        """Everything if the page can hold it, else a grid that it can hold."""
        lanes = [panel.lanes for panel in panels]
        columns = 0
        layers = 2 * sum(map(len, lanes))
        for grid in _GRIDS:
            if _count(lanes) <= _MOST_RECTANGLES:
                break
            # Sampling takes time: grids that would be too fine are not tried.
            if grid * layers * _USUAL_FILLING > _MOST_RECTANGLES and grid != _GRIDS[-1]:
                continue
            columns = grid
            lanes = [
                [
                    Lane(
                        lane.rank,
                        tuple(sampled(lane.compute, columns=grid, end_s=longest_s)),
                        tuple(sampled(lane.transfers, columns=grid, end_s=longest_s)),
                    )
                    for lane in panel.lanes
                ]
                for panel in panels
            ]
        blocks = sum(len(lane.blocks()) for panel in panels for lane in panel.lanes)
        return cls(lanes, columns, microbatches_each=-(-blocks // _MOST_BLOCKS))


def _count(lanes_of_panels: list[list[Lane]]) -> int:
    return sum(len(lane.compute) + len(lane.transfers) for lanes in lanes_of_panels for lane in lanes)


def _paths(lanes: Sequence[Lane], *, yref: str, unit: _Unit, longest_s: float) -> list[Json]:
    """One shape a kind, with the rectangles of all lanes."""
    # A twenty-thousandth of the axis is finer than any screen; more digits would only make the page larger.
    decimals = max(0, 5 - len(str(int(longest_s / unit.seconds))))
    rectangles: dict[str, list[str]] = {part.key: [] for part in TIMELINE_KINDS}
    for row, lane in enumerate(lanes):
        for layer, (above, below) in ((lane.compute, _COMPUTE_LAYER), (lane.transfers, _TRANSFER_LAYER)):
            top, bottom = above + _LANE * row, below + _LANE * row
            for piece in layer:
                left, right = (_short(time_s / unit.seconds, decimals) for time_s in (piece.start_s, piece.end_s))
                if left != right:
                    rectangles[piece.kind].append(f"M{left},{top:g}H{right}V{bottom:g}H{left}Z")
    return [
        {
            "type": "path",
            "xref": "x",
            "yref": yref,
            "layer": "between",
            "path": "".join(rectangles[part.key]),
            "fillcolor": part.color,
            "line": {"width": 0},
        }
        for part in TIMELINE_KINDS
        if rectangles[part.key]
    ]


def _short(number: float, decimals: int) -> str:
    """A number with few decimals and without trailing zeros."""
    text = f"{number:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


def _end_line(panel: _Panel, suffix: str, unit: _Unit) -> Json:
    end = float(f"{panel.end_s / unit.seconds:.6g}")
    return {
        "type": "line",
        "xref": "x",
        "yref": f"y{suffix} domain",
        "x0": end,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "line": {"color": "var(--ink)", "width": 1.5},
    }


def _title(panel: _Panel, suffix: str, *, baseline: bool) -> Json:
    mean = format_seconds(panel.case.seconds_per_minibatch["mean"])
    facts = f"{format_seconds(panel.end_s)} (mean of the run {mean}), waiting {percent(_share(panel, 'wait'))}"
    role = ", baseline:" if baseline else ":"
    return {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yref": f"y{suffix} domain",
        "y": 1,
        "yanchor": "bottom",
        "text": f"<b>{plain(panel.case.label)}</b>{role} {facts}",
        "showarrow": False,
        "font": {"size": 13, "color": "var(--ink)"},
    }


def _lane_axis(panel: _Panel, domain: list[float]) -> Json:
    every = 1 if len(panel.lanes) <= 8 else 2
    return axis(
        domain=[round(edge, 5) for edge in domain],
        range=[_LANE * len(panel.lanes), 0],
        tickvals=[_LANE * row + 4 for row in range(0, len(panel.lanes), every)],
        ticktext=[f"rank {lane.rank}" for lane in panel.lanes[::every]],
        tickfont={"size": 11, "color": "var(--muted)"},
        showgrid=False,
        zeroline=False,
        ticklabelstandoff=4,
    )


def _hover_bars(panel: _Panel, suffix: str, unit: _Unit, *, microbatches_each: int) -> Json:
    """Invisible bars, one a microbatch (or a group of them), that say what they hold."""
    starts, lasts, rows, texts = [], [], [], []
    for row, lane in enumerate(panel.lanes):
        for block in lane.blocks(microbatches_each=microbatches_each):
            starts.append(float(f"{block.start_s / unit.seconds:.5g}"))
            lasts.append(float(f"{(block.end_s - block.start_s) / unit.seconds:.5g}"))
            rows.append(_LANE * row + 5)
            texts.append(f"rank {lane.rank}, {_block_text(block)}")
    return {
        "type": "bar",
        "orientation": "h",
        "yaxis": f"y{suffix}",
        "base": starts,
        "x": lasts,
        "y": rows,
        "width": _LANE - 1,
        "marker": {"color": "rgba(0,0,0,0)"},
        "hovertext": texts,
        "hoverinfo": "text",
    }


def _block_text(block: Block) -> str:
    first, last = block.first_microbatch, block.last_microbatch
    if first < 0:
        name = "before the first microbatch" if block.start_s <= 0 else "after the last microbatch"
    else:
        name = f"microbatch {first + 1}" if first == last else f"microbatches {first + 1} to {last + 1}"
    times = (
        f"{part.label} {format_seconds(block.seconds[part.key])}"
        for part in TIMELINE_KINDS
        if part.key in block.seconds
    )
    return f"{name}: {format_seconds(block.end_s - block.start_s)}<br>" + "<br>".join(times)


def _seconds_by_kind(pieces: Sequence[Piece]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for piece in pieces:
        seconds[piece.kind] = seconds.get(piece.kind, 0.0) + piece.end_s - piece.start_s
    return seconds


def _share(panel: _Panel, kind: str) -> float:
    """Share of the shown lanes' time that is of `kind`."""
    of_kind = sum(_seconds_by_kind(lane.compute).get(kind, 0.0) for lane in panel.lanes)
    return of_kind / (panel.end_s * len(panel.lanes))


def _rows(panels: list[_Panel], kinds: set[str]) -> list[tuple[str, ...]]:
    rows = []
    for panel in panels:
        for lane in panel.lanes:
            seconds = _seconds_by_kind(lane.compute)
            microbatches = 1 + max((piece.microbatch for piece in lane.compute), default=-1)
            rows.append(
                (
                    f"{panel.case.label}, rank {lane.rank}",
                    *(format_seconds(seconds.get(part.key, 0.0)) for part in TIMELINE_KINDS if part.key in kinds),
                    plural(microbatches, "microbatch"),
                )
            )
    return rows
