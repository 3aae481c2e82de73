"""Draw docs/figures/timeline.svg, the picture of the README: one minibatch of the quickstart under FSDP and under ODC.

Usage: python benchmarks/readme_picture.py

Everything in it is simulated by scenarios/quickstart.yaml; runs of one kind are merged into one rectangle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from odcsim import CaseResult, load_scenario, simulate
from odcsim.engines.timeline import Span
from odcsim.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = ROOT / "scenarios" / "quickstart.yaml"
PICTURE = ROOT / "docs" / "figures" / "timeline.svg"
# The baseline, and ODC with the policy that only it allows.
CASES = (("fsdp", "lb-micro"), ("odc", "lb-mini"))

WIDTH, LEFT, RIGHT, LANE, GAP, HEAD, TOP = 960, 62, 18, 15, 3, 30, 8
# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = {"forward": "#56b4e9", "backward": "#0072b2", "wait": "#e69f00"}
MEANINGS = {"forward": "forward", "backward": "recompute and backward", "wait": "waiting for other ranks"}


@dataclass(frozen=True)
class Bar:
    """A stretch of one kind on one lane, in seconds."""

    kind: str
    start_s: float
    end_s: float


def bars(spans: Iterable[Span]) -> Iterator[Bar]:
    """Spans of one rank's compute stream, neighbours of one kind and microbatch merged."""
    drawn = sorted(
        (span for span in spans if span.stream == "compute" and span.name in COLOURS), key=lambda span: span.start_s
    )
    for (kind, _), group in groupby(drawn, key=lambda span: (span.name, span.microbatch)):
        members = list(group)
        yield Bar(kind, members[0].start_s, members[-1].end_s)


def draw(cases: list[CaseResult]) -> str:
    """The picture, as SVG."""
    longest_s = max(float(case.minibatch_s_N[0]) for case in cases)
    scale = (WIDTH - LEFT - RIGHT) / longest_s
    block = HEAD + cases[0].ranks * (LANE + GAP) + 12
    height = TOP + len(cases) * block + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="One minibatch on eight ranks under FSDP and under ODC">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for position, case in enumerate(cases):
        top = TOP + position * block
        waiting = 1 - sum(
            bar.end_s - bar.start_s for span in _by_rank(case) for bar in bars(span) if bar.kind != "wait"
        ) / (case.ranks * float(case.minibatch_s_N[0]))
        parts.append(
            f'<text x="{LEFT}" y="{top + 20}" fill="#222222"><tspan font-weight="bold">{case.label}</tspan>'
            f"  {case.minibatch_s_N[0]:.1f} s, {waiting:.0%} of it not computing</text>"
        )
        for rank, spans in enumerate(_by_rank(case)):
            y = top + HEAD + rank * (LANE + GAP)
            parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end" fill="#555555">rank {rank}</text>')
            parts += [
                f'<rect x="{LEFT + bar.start_s * scale:.1f}" y="{y}" width="{(bar.end_s - bar.start_s) * scale:.1f}" '
                f'height="{LANE}" fill="{COLOURS[bar.kind]}"/>'
                for bar in bars(spans)
                if (bar.end_s - bar.start_s) * scale >= 0.2
            ]
        end = LEFT + float(case.minibatch_s_N[0]) * scale
        bottom = top + HEAD + case.ranks * (LANE + GAP)
        parts.append(f'<path d="M{end:.1f} {top + HEAD - 4}V{bottom}" stroke="#222222"/>')
    x = LEFT
    for kind, meaning in MEANINGS.items():
        parts.append(f'<rect x="{x}" y="{height - 26}" width="14" height="14" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{x + 20}" y="{height - 14}" fill="#222222">{meaning}</text>')
        x += 60 + 7 * len(meaning)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _by_rank(case: CaseResult) -> list[list[Span]]:
    lanes: list[list[Span]] = [[] for _ in range(case.ranks)]
    for span in case.spans:
        lanes[span.rank].append(span)
    return lanes


def main() -> None:
    """Simulate the quickstart and write the picture."""
    result = simulate(load_scenario(SCENARIO), base_folder=SCENARIO.parent)
    found = {(case.sync, case.policy): case for case in result.cases}
    write_atomically(PICTURE, draw([found[key] for key in CASES]))
    print(f"written to {PICTURE}")


if __name__ == "__main__":
    main()
