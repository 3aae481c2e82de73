"""Fitted costs for people: a table for visits, for transfers, for steps and for memory, which page and terminal share.

A term is written as its value with its 95% interval, in the unit that suits the value: "4.74 ms [4.59, 4.88]".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from odcsim.costs.calibrated import (
    ONE_SIDED_BASE,
    VISIT_KINDS,
    CalibratedCosts,
    MemoryCosts,
    StepCosts,
    Term,
    TransferCost,
)
from odcsim.report.wording import fine_percent, plural

__all__ = ["TermTable", "part_label", "term_tables", "transfers_of"]

_THOUSAND = 1e3
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps"))
_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_NOT_TOLD_APART = "not told apart"
_STEPS = {
    "meeting": "meeting, for each rank beyond the first",
    "publish": "publish",
    "settle": "settle",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class TermTable:
    """Terms of the same kind.

    Attributes:
        key: names it in the page.
        title: what its rows have in common.
        note: how to read it.
        header: of its columns; the first names the row.
        rows: texts.
    """

    key: str
    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def part_label(name: str) -> str:
    """A part's name for people: "block forward"."""
    return name.replace("_", " ")


def transfers_of(costs: CalibratedCosts) -> dict[str, TransferCost]:
    """Every kind of transfer by the name of its part."""
    found = {}
    for transport, pair in costs.collectives.items():
        found[f"all-gather over {transport}"] = pair.gather
        found[f"reduce-scatter over {transport}"] = pair.scatter_accumulate
    if costs.one_sided is not None:
        found["one-sided gather"] = costs.one_sided.gather
        found["one-sided scatter-accumulate"] = costs.one_sided.scatter_accumulate
    return found


def term_tables(costs: CalibratedCosts) -> tuple[TermTable, ...]:
    """The tables, without those that the runs show nothing of."""
    tables = [_visits(costs), _transfers(costs), _steps(costs.steps)]
    if costs.memory is not None:
        tables.append(_memory(costs.memory))
    return tuple(table for table in tables if table.rows)


def _visits(costs: CalibratedCosts) -> TermTable:
    rows = []
    for kind in VISIT_KINDS:
        cost = getattr(costs.compute, kind)
        rows.append(
            (
                part_label(kind),
                _time(cost.squared_tokens, times=_THOUSAND**2),
                _time(cost.tokens, times=_THOUSAND),
                _time(cost.constant),
                fine_percent(cost.spread),
                f"{cost.observations:,}",
            )
        )
    return TermTable(
        key="visits",
        title="Compute of a unit",
        note="A microbatch costs the sum of three terms: for its squared lengths, for its tokens, and for being one. "
        "Blocks are passed as often as the model has layers. Spread: standard deviation of the residuals' bulk.",
        header=("visit", "(1K tokens)^2", "1K tokens", "constant", "spread", "seen"),
        rows=tuple(rows),
    )


def _transfers(costs: CalibratedCosts) -> TermTable:
    origin, transfers = costs.origin, transfers_of(costs)
    contended = any(cost.contention is not None for cost in transfers.values())
    lagging = any(cost.lag is not None and cost.lag.high > 0 for cost in transfers.values())
    steps = max(origin.ranks_per_node - 1 + origin.ranks // origin.ranks_per_node - 1, 1)
    notes = []
    if costs.collectives:
        notes.append(f"Latency: of each of a collective's {plural(steps, 'step')}; a one-sided transfer pays it once.")
    if contended:
        notes.append(
            "Contention: how much longer each other transfer under way at the same time makes a one-sided one."
        )
    if lagging:
        notes.append("Lag: how much later than ranks do in the mean the last one leaves a collective.")
    return TermTable(
        key="transfers",
        title="Transfers",
        note=" ".join(notes),
        header=(
            "transfer",
            "latency",
            "bandwidth",
            *(["contention"] if contended else []),
            *(["lag"] if lagging else []),
            "spread",
            "seen",
        ),
        rows=tuple(
            (
                name,
                _time(cost.latency),
                _bandwidth(cost.seconds_per_byte),
                *([_share(cost.contention)] if contended else []),
                *([_share(cost.lag)] if lagging else []),
                fine_percent(cost.spread),
                f"{cost.observations:,}",
            )
            for name, cost in transfers.items()
        ),
    )


def _steps(steps: StepCosts) -> TermTable:
    found: Mapping[str, Term | None] = {name: getattr(steps, name) for name in _STEPS}
    return TermTable(
        key="steps",
        title="Steps of a minibatch",
        note="",
        header=("step", "time"),
        rows=tuple((_STEPS[name], _time(term)) for name, term in found.items() if term is not None),
    )


def _memory(memory: MemoryCosts) -> TermTable:
    rows = [("process before training", _size(memory.process))]
    for way, term in memory.base.items():
        under = "ODC" if way == ONE_SIDED_BASE else f"FSDP over {way}"
        rows.append((f"training under {under}, whatever a microbatch holds", _size(term)))
    rows.append(("1K tokens of a microbatch", _size(memory.per_token, times=_THOUSAND)))
    if memory.staging is not None:
        rows.append(("shared memory of collectives", _size(memory.staging)))
    return TermTable(
        key="memory",
        title="Memory of a rank",
        note="As the operating system counts it. Under FSDP the rank's shard of the gradients comes on top from a "
        f"minibatch's second microbatch on. Spread {fine_percent(memory.spread)}, "
        f"{plural(memory.observations, 'reading')}.",
        header=("memory", "size"),
        rows=tuple(rows),
    )


def _time(term: Term, *, times: float = 1.0) -> str:
    return _interval(term, times, _TIME_UNITS)


def _size(term: Term, *, times: float = 1.0) -> str:
    return _interval(term, times, _SIZE_UNITS)


def _interval(term: Term, times: float, units: tuple[tuple[float, str], ...]) -> str:
    """A value with its interval, all in the unit in which the larger end is at least 1."""
    if not term.identified:
        return _NOT_TOLD_APART
    largest = max(term.value or term.high, 0.0) * times
    if largest == 0:
        return "0"
    factor, unit = next((entry for entry in units if _rounded(largest / entry[0]) >= 1), units[-1])
    value, low, high = (_number(end * times / factor) for end in (term.value, term.low, term.high))
    return f"{value} {unit} [{low}, {high}]"


def _bandwidth(term: Term) -> str:
    """Bytes a second from seconds a byte, whose interval is turned round."""
    if not term.identified:
        return _NOT_TOLD_APART
    if term.high == 0:
        return "no limit"
    fastest = 1 / (term.value or term.high)
    factor, unit = next((entry for entry in _SIZE_UNITS if _rounded(fastest / entry[0]) >= 1), _SIZE_UNITS[-1])
    slow = _number(1 / term.high / factor)
    if term.value == 0:
        return f"over {slow} {unit}/s"
    fast = "no limit" if term.low == 0 else _number(1 / term.low / factor)
    return f"{_number(1 / term.value / factor)} {unit}/s [{slow}, {fast}]"


def _share(term: Term | None) -> str:
    if term is None:
        return ""
    if not term.identified:
        return "not seen"
    value, low, high = (_number(100 * end) for end in (term.value, term.low, term.high))
    return "none" if high == "0" else f"{value}% [{low}, {high}]"


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _number(number: float) -> str:
    """Three digits, without exponents."""
    rounded = _rounded(number)
    if rounded >= 1000:
        return f"{rounded:.0f}"
    return "0" if rounded < 5e-4 else f"{rounded:.3g}"
