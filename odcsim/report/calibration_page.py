"""Fitted costs as one HTML page: what they are, how well they fit, part by part, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping

from odcsim.analysis.calibrate import Calibration
from odcsim.costs.calibrated import VISIT_KINDS, CalibratedCosts
from odcsim.report.calibration_figures import part_figures
from odcsim.report.calibration_wording import calibration_context, calibration_headline, calibration_name, case_text
from odcsim.report.cost_terms import part_label, term_tables, transfers_of
from odcsim.report.frame import figures_section, framed, tiles_row, top, warnings_box
from odcsim.report.markup import Markup, definitions, element, join, section, table
from odcsim.report.wording import fine_percent

__all__ = ["calibration_page"]

_READING = {
    "value [low, high]": "A fitted term with its 95% interval, from fits to resampled ranks and minibatches: how far "
    "another run of the same kind may lie, not how wrong the form of the law is.",
    "spread": "Standard deviation of the bulk of the residuals, measured / fitted - 1. What lies far off counts less.",
    "not told apart": "The runs cannot tell this term from the others: it is 0, and what it stands for is in them.",
    "visit": "One unit's forward or backward for one microbatch. The root is visited twice each way: as embedding, and "
    "as head.",
    "collective": "Timed from the last rank's arrival to its end, in the mean over ranks.",
    "one-sided": "A rank's own transfer. It gets longer while others are under way.",
}


def calibration_page(calibration: Calibration, *, command: str, costs_file: str) -> str:
    """The page; see `odcsim.report.render_calibration_page`."""
    costs = calibration.costs
    compute = part_figures([part for part in calibration.parts if part.name in VISIT_KINDS], key="visit")
    transfers = part_figures([part for part in calibration.parts if part.name not in VISIT_KINDS], key="transfer")
    name = calibration_name(costs)
    intro = "Above: measured times against the fit; on the dotted line they agree. Below: what the fit leaves."
    return framed(
        f"{name}: odcsim calibrate",
        top("Costs fitted to recorded runs by odcsim calibrate", name, calibration_context(costs)),
        _answer(costs),
        warnings_box(costs.warnings),
        _terms(costs),
        figures_section("How well compute fits", compute, id_="compute", intro=intro) if compute else Markup(""),
        figures_section("How well transfers fit", transfers, id_="transfers-fit", intro=intro)
        if transfers
        else Markup(""),
        _origin(costs),
        _repeat(command, costs_file),
        _glossary(),
        figures=[*compute, *transfers],
    )


def _answer(costs: CalibratedCosts) -> Markup:
    lead, support = calibration_headline(costs)
    spreads = {part_label(kind): getattr(costs.compute, kind).spread for kind in VISIT_KINDS}
    spreads |= {name: cost.spread for name, cost in transfers_of(costs).items()}
    loosest = max(spreads, key=spreads.__getitem__)
    tiles = [
        ("block forward, spread", fine_percent(costs.compute.block_forward.spread), ""),
        ("block backward, spread", fine_percent(costs.compute.block_backward.spread), ""),
        ("loosest part, spread", fine_percent(spreads[loosest]), loosest),
        ("microbatches seen", f"{costs.origin.microbatches:,}", ""),
        ("warnings", str(len(costs.warnings)), ""),
    ]
    return element(
        "section",
        element("p", element("strong", lead), " ", support, class_="lead"),
        tiles_row(tiles),
        id="answer",
        aria_label="The answer",
    )


def _terms(costs: CalibratedCosts) -> Markup:
    tables = term_tables(costs)
    return section(
        "What was fitted",
        *(
            element(
                "div",
                element("h3", entry.title),
                element("p", entry.note, class_="intro") if entry.note else "",
                table(entry.header, entry.rows, caption=entry.title),
                class_="terms",
            )
            for entry in tables
        ),
        id_="terms",
    )


def _origin(costs: CalibratedCosts) -> Markup:
    origin = costs.origin
    rows = [
        (run, case_text(case), digest)
        for run, case, digest in zip(origin.runs, origin.cases, origin.digests, strict=True)
    ]
    sections: dict[str, Mapping[str, object]] = {
        "ranks": {
            "ranks": origin.ranks,
            "ranks_per_node": origin.ranks_per_node,
            "processors of a host": origin.processors,
            "minibatches": origin.minibatches,
            "microbatches": origin.microbatches,
        },
        "versions": origin.versions,
        "model": costs.model or {},
        "training": costs.training or {},
    }
    cards = [
        element("div", element("h3", name), definitions(content), class_="card")
        for name, content in sections.items()
        if content
    ]
    return section(
        "Where they come from",
        table(("run", "case", "digest of run.json"), rows, caption="Runs that were fitted to"),
        element("div", *cards, class_="cards"),
        id_="origin",
    )


def _repeat(command: str, costs_file: str) -> Markup:
    return section(
        "How to use and repeat this",
        element("p", "A scenario takes the costs by", class_="intro"),
        element("pre", element("code", f"compute: {{calibrated: {costs_file}}}")),
        element("p", "and this fitted them:", class_="intro"),
        element("pre", element("code", command)),
        element(
            "p",
            "docs/calibrate.md says by which laws they follow the number of ranks, and what they leave out.",
            class_="intro",
        ),
        id_="repeat",
    )


def _glossary() -> Markup:
    items = join(join([element("dt", name), element("dd", meaning)]) for name, meaning in _READING.items())
    return section("What the words mean", element("dl", items, class_="glossary"), id_="glossary")
