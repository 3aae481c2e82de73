"""The end of a report: what was assumed, how to repeat the run, what the words mean."""

from __future__ import annotations

import json
from collections.abc import Mapping

from odcsim.report.markup import Markup, definitions, element, section
from odcsim.report.wording import METRICS, lookup
from odcsim.results import RunResult

__all__ = ["assumptions", "glossary", "repeat"]

# Sections of a scenario in the order of the cards, which fill columns: short ones first.
_SHORT_SECTIONS = ("model", "training", "compute", "on_demand")
_OTHER_SETTINGS = "other settings"
_LONG_SECTIONS = ("cluster", "workload")
_SECTIONS = (*_SHORT_SECTIONS, *_LONG_SECTIONS)
# The name is the title; cases have a table; the simulator does not read the runtime's settings.
_NOT_SHOWN = ("name", "cases", "runtime")

_WORDS = {
    "rank": "One data-parallel worker: a GPU with its shard of parameters, gradients and optimizer state.",
    "minibatch": "All samples of one optimizer step, over all ranks.",
    "microbatch": "The samples that one rank runs forward and backward together, packed without padding.",
    "fsdp": "Collectives for every unit (all-gather, reduce-scatter): ranks meet at each of them, so they need equal "
    "numbers of microbatches and wait for the slowest at every layer.",
    "odc": "On-Demand Communication: parameters are read from their owners and gradients added into them by one-sided "
    "transfers; ranks meet once a minibatch and may run different numbers of microbatches.",
    "policy": "How samples become microbatches on ranks.",
    "exposed communication": "Time in which a rank computes nothing because a transfer it needs is under way.",
    "publish, settle": "Under odc: making a rank's shard readable at the start of a minibatch; handing the accumulated "
    "gradients to the optimizer at its end.",
}


def assumptions(result: RunResult) -> Markup:
    """The section with the scenario as it was understood."""
    scenario = {key: value for key, value in result.scenario.items() if key not in _NOT_SHOWN}
    sections = {key: scenario.pop(key, None) for key in _SECTIONS}
    sections[_OTHER_SETTINGS] = scenario
    cards = [
        element(
            "div",
            element("h3", key.replace("_", " ")),
            _badge(key, sections[key]),
            definitions(_as_mapping(key, sections[key])),
            class_="card",
        )
        for key in (*_SHORT_SECTIONS, _OTHER_SETTINGS, *_LONG_SECTIONS)
        if sections[key]
    ]
    intro = "The scenario as it was understood, defaults and catalog entries filled in."
    if result.engine != "measured":
        intro += " Simulated times are as good as these figures; the intervals above do not cover errors in them."
    return section("Assumptions", element("p", intro), element("div", *cards, class_="cards"), id_="assumptions")


def _as_mapping(key: str, value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {key: value}


def _badge(key: str, value: object) -> Markup:
    """Whether lengths are real or made up, where the workload says so."""
    synthetic = _synthetic(value) if key == "workload" else None
    if synthetic is None:
        return Markup("")
    name, style = ("synthetic lengths", "badge caution") if synthetic else ("real lengths", "badge good")
    return element("p", element("span", name, class_=style))


def _synthetic(workload: object) -> bool | None:
    for source in (lookup(workload, "source"), lookup(workload, "lengths", "source"), lookup(workload, "lengths")):
        flag = lookup(source, "synthetic")
        if isinstance(flag, bool):
            return flag
        if isinstance(source, str):
            return "synthetic" in source.lower()
        if isinstance(source, Mapping) and {"lognormal", "uniform", "constant"} & set(source):
            return True
    return None


def repeat(result: RunResult, command: str) -> Markup:
    """The section with the command line that repeats the run, and the scenario as JSON."""
    return section(
        "How to repeat this run",
        element("pre", element("code", command)),
        element(
            "p",
            "Everything random comes from the scenario's seed: the same scenario and the same version of odcsim give "
            "the same numbers.",
        )
        if result.engine != "measured"
        else "",
        element(
            "details",
            element("summary", "The scenario as it was understood, as JSON"),
            element("pre", element("code", json.dumps(result.scenario, indent=1, ensure_ascii=False))),
        ),
        id_="repeat",
    )


def glossary() -> Markup:
    """The section that defines metrics and words."""
    items: list[str] = []
    for key, metric in METRICS.items():
        items += [element("dt", metric.heading, id=f"metric-{key}"), element("dd", metric.meaning)]
    for name, meaning in _WORDS.items():
        items += [element("dt", name), element("dd", meaning)]
    return section("What the words mean", element("dl", *items, class_="glossary"), id_="glossary")
