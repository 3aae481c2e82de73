"""The parts that rank-time and memory are split into: their names for people, and their colours.

Colours are CSS custom properties (`var(--waiting)`); assets/page.css gives each a value for light and for dark screens,
and assets/page.js puts that value into figures. Hues tell apart what a reader acts on, also with a colour vision
deficiency: blue is work, vermilion is waiting for other ranks, gold is communication, grey is overhead.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FRACTIONS", "TIMELINE_KINDS", "Part", "case_part", "memory_part"]


@dataclass(frozen=True)
class Part:
    """One part of a whole.

    Attributes:
        key: in the result.
        label: for people.
        color: of its mark.
        ink: of text on its mark.
    """

    key: str
    label: str
    color: str
    ink: str


FRACTIONS = (
    Part("compute", "computing", "var(--compute)", "var(--on-dark-mark)"),
    Part("synchronization", "waiting for other ranks", "var(--waiting)", "var(--on-dark-mark)"),
    Part("exposed_communication", "exposed communication", "var(--communication)", "var(--on-light-mark)"),
    Part("optimizer", "optimizer", "var(--optimizer)", "var(--on-dark-mark)"),
    Part("other", "publish, settle, padding, fixed costs", "var(--other)", "var(--on-light-mark)"),
)

TIMELINE_KINDS = (
    Part("forward", "forward", "var(--forward)", "var(--on-light-mark)"),
    Part("backward", "backward", "var(--backward)", "var(--on-dark-mark)"),
    Part("wait", "waiting for other ranks", "var(--waiting)", "var(--on-dark-mark)"),
    Part("exposed", "exposed communication", "var(--communication)", "var(--on-light-mark)"),
    Part("optimizer", "optimizer", "var(--optimizer)", "var(--on-dark-mark)"),
    Part("overhead", "publish, settle", "var(--other)", "var(--on-light-mark)"),
    Part("transfer", "transfers under way (thin lane)", "var(--transfer)", "var(--on-light-mark)"),
)

_MEMORY_COLORS = {
    "parameters": "var(--memory-state-1)",
    "gradients": "var(--memory-state-2)",
    "optimizer_state": "var(--memory-state-3)",
    "gathered_units": "var(--memory-unit-1)",
    "unsharded_gradients": "var(--memory-unit-2)",
    "activations": "var(--memory-activation-1)",
    "logits": "var(--memory-activation-2)",
    "published_copy": "var(--memory-odc-1)",
    "accumulator": "var(--memory-odc-2)",
}
_SPARE_COLORS = ("var(--optimizer)", "var(--other)")


def memory_part(key: str, position: int) -> Part:
    """A part of the memory; one that is not known by name gets a grey, by its position among all parts."""
    spare = _SPARE_COLORS[position % len(_SPARE_COLORS)]
    return Part(key, key.replace("_", " "), _MEMORY_COLORS.get(key, spare), "var(--ink)")


_CASE_COLORS = (
    "var(--accent)",
    "var(--waiting)",
    "var(--memory-unit-1)",
    "var(--communication)",
    "var(--memory-odc-1)",
    "var(--neutral-strong)",
)


def case_part(label: str, position: int) -> Part:
    """A case among others, by its position; colours come round again, so figures give it a shape too."""
    return Part(label, label, _CASE_COLORS[position % len(_CASE_COLORS)], "var(--ink)")
