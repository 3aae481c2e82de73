"""An advice as one HTML page: what to do, why, every candidate, figures, and how to repeat it."""

from __future__ import annotations

from collections.abc import Sequence

from odcsim.analysis.advice import Advice
from odcsim.report.advice_cells import (
    CANDIDATE_HEADINGS,
    PAIR_HEADINGS,
    candidate_cells,
    candidate_mark,
    knob_headings,
    knob_rows,
    pair_rows,
    regret_headings,
    regret_rows,
)
from odcsim.report.advice_figures import candidates_figure, ladder_figure, regret_figure
from odcsim.report.advice_wording import answer, explanation, gain_text, how_compared, signed_gain
from odcsim.report.bars import fractions_figure, memory_figure
from odcsim.report.distributions import lengths_figure
from odcsim.report.frame import figures_section, framed, tiles_row, top, warnings_box
from odcsim.report.markup import Markup, element, join, section, table
from odcsim.report.plotting import Figure
from odcsim.report.wording import context, percent

__all__ = ["advice_page"]

_CONTEXT_NAMES = {
    "lengths": "Sequence lengths",
    "minibatch": "Minibatch",
    "model": "Model",
    "cluster": "Cluster",
    "engine": "Run",
}

_READING = {
    "candidate": "A sync with a policy, on the scenario's own samples; the scenario's first case is what you run now.",
    "gain": "Samples trained on per second, over what you run now, less 1; in brackets its 95% interval.",
    "computing, waiting, transfers": "Shares of rank-time spent computing, waiting for other ranks, and waiting for "
    "transfers that no compute hides.",
    "x bound": "Mean minibatch time over the mean of a lower bound that no plan can beat under the same sync. That of "
    "FSDP, where ranks wait for each other at every microbatch, is the higher one.",
    "as good": "Less than 1% behind the fastest that fits in memory, or no more than chance explains. Of all that are "
    "as good the simplest is advised: FSDP before ODC, plans made ahead before microbatches that ranks pull, fewer "
    "changes first.",
    "knob": "The cap on a microbatch's tokens, samples of a minibatch, overlap: each turned alone, and the best two "
    "together. A larger cap trains the same; another number of samples is another training recipe; overlap needs "
    "software that can.",
    "compute off by 10%": "Each microbatch's compute takes a random factor (log-normal, mean 1) that plans do not "
    "know; its logarithm has a standard deviation of 0.1.",
    "loss": "Mean minibatch time over that of the best candidate in the same world, less 1.",
}


def advice_page(advice: Advice, *, command: str) -> str:
    """The advice as one page that needs no network.

    Args:
        advice: on a scenario.
        command: the command line that repeats it.
    """
    figures = _figures(advice)
    return framed(
        f"{advice.name}: odcsim advise",
        top(
            "Which sync, policy and knobs, by odcsim advise",
            advice.name,
            {_CONTEXT_NAMES[name]: line for name, line in context(advice.result).items()},
        ),
        _answer(advice),
        warnings_box(advice.warnings),
        _why(advice),
        _candidates(advice),
        figures_section("Figures", figures, id_="figures"),
        _knobs(advice),
        _pairs(advice),
        _regret(advice),
        _left_out(advice),
        section(
            "How to repeat this",
            element("pre", element("code", command)),
            element("p", how_compared(advice), class_="intro after"),
            id_="repeat",
        ),
        _glossary(),
        figures=figures,
    )


def _figures(advice: Advice) -> list[Figure]:
    found = [
        candidates_figure(advice),
        ladder_figure(advice),
        regret_figure(advice),
        fractions_figure(advice.result),
        lengths_figure(advice.result),
        memory_figure(advice.result),
    ]
    return [figure for figure in found if figure is not None]


def _answer(advice: Advice) -> Markup:
    told, advised, baseline = answer(advice), advice.advised, advice.result.cases[0]
    worst = advice.regret.worst(advised.position)[1]
    tiles = [
        ("samples per second", signed_gain(advised.total.share), gain_text(advised.total)),
        (
            "waiting for other ranks",
            f"{percent(baseline.bubble_rate)} → {percent(advised.case.bubble_rate)}"
            if advised.settings
            else percent(baseline.bubble_rate),
            "of GPU time",
        ),
        (
            "over the lower bound",
            f"{advice.advised_limits.bound_ratio:.2f}",
            f"times, which no plan under {advised.case.sync.upper()} can beat",
        ),
        ("if the model is wrong", percent(worst), "lost at most"),
    ]
    if advice.syncs is not None:
        tiles.insert(1, ("ODC over FSDP", signed_gain(advice.syncs.gain.share), gain_text(advice.syncs.gain)))
    return element(
        "section",
        element("p", element("strong", told.lead), " ", told.support, class_="lead"),
        *(element("p", text, class_="intro after") for text in told.notes),
        tiles_row(tiles),
        id="answer",
        aria_label="The answer",
    )


def _why(advice: Advice) -> Markup:
    return section("Why", *(element("p", text) for text in explanation(advice)), id_="why")


def _candidates(advice: Advice) -> Markup:
    title = "Candidates"
    head = element("tr", *(element("th", text, scope="col") for text in ("candidate", *CANDIDATE_HEADINGS)))
    body = element("tbody", *(_candidate_row(advice, position) for position in range(len(advice.candidates))))
    content = element(
        "table",
        element("caption", title, class_="unseen"),
        element("thead", head),
        body,
        class_="comparison",
    )
    return section(
        title,
        element("div", content, class_="scroll", tabindex="0", role="region", aria_label=title),
        id_="candidates",
    )


def _candidate_row(advice: Advice, position: int) -> Markup:
    is_advised = position == advice.advised.position and advice.advised.fits
    mark = candidate_mark(advice, position)
    badge = [element("span", mark, class_="badge good" if is_advised else "badge")] if mark else []
    return element(
        "tr",
        element("th", element("span", advice.candidates[position].label, class_="label"), *badge, scope="row"),
        *(element("td", text) for text in candidate_cells(advice, position)),
        class_="best" if is_advised else False,
    )


def _knobs(advice: Advice) -> Markup:
    intro = "Samples a second over the same sync and policy with the scenario's own settings."
    return _table_section("Knobs, one at a time", intro, knob_headings(advice), knob_rows(advice), id_="knobs")


def _pairs(advice: Advice) -> Markup:
    intro = (
        "The best settings of two knobs that gain alone, turned together: samples a second over the same sync and "
        "policy with the scenario's own settings, over the better one of the two alone, and over what you run now."
    )
    return _table_section("Knobs, two together", intro, PAIR_HEADINGS, pair_rows(advice), id_="knob-pairs")


def _regret(advice: Advice) -> Markup:
    intro = "How far each candidate is behind the best one, if the world is not as modelled and plans do not know."
    if advice.regret.knob is not None:
        intro += f" All with what is advised: {advice.regret.knob.label}."
    rows = regret_rows(advice) if len(advice.regret.positions) > 1 else []
    return _table_section("If the model is wrong", intro, regret_headings(advice), rows, id_="regret")


def _left_out(advice: Advice) -> Markup:
    rows = [(left_out.label, left_out.reason) for left_out in advice.left_out]
    return _table_section("Left out", "", ("what", "why"), rows, id_="left-out")


def _table_section(title: str, intro: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, id_: str) -> Markup:
    """A section with a table; nothing where the table would be empty."""
    if not rows:
        return Markup("")
    told = element("p", intro, class_="intro") if intro else ""
    return section(title, told, table(header, rows, caption=title), id_=id_)


def _glossary() -> Markup:
    items = join(join([element("dt", name), element("dd", meaning)]) for name, meaning in _READING.items())
    return section("What the words mean", element("dl", items, class_="glossary"), id_="glossary")
