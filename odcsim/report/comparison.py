"""The tables of a report that compare cases: the figures that decide, and what became of samples and tokens."""

from __future__ import annotations

from odcsim.report.markup import Markup, element, section, table
from odcsim.report.wording import METRICS, best_case, interval_text, memory_text, percent, rate
from odcsim.results import CaseResult, RunResult
from odcsim.units import format_bytes, format_count, format_seconds

__all__ = ["comparison", "details"]


def comparison(result: RunResult) -> Markup:
    """The section with one row a case, and advice for those that do not fit in memory."""
    baseline, best = result.cases[0], best_case(result)
    groups = element(
        "tr",
        element("th", "case", scope="col", rowspan="2"),
        element("th", "seconds a minibatch", scope="colgroup", colspan="2"),
        *(_metric_heading(key, rowspan="2") for key in METRICS if key not in {"mean", "p95"}),
    )
    head = element("thead", groups, element("tr", _metric_heading("mean"), _metric_heading("p95")))
    body = element("tbody", *(_case_row(case, baseline=baseline, best=best) for case in result.cases))
    title = "Comparison of the cases"
    content = element("table", element("caption", title, class_="unseen"), head, body, class_="comparison")
    advice = [
        element(
            "p", element("b", f"{case.label} does not fit: "), case.memory.advice or memory_text(case), class_="over"
        )
        for case in result.cases
        if not case.memory.fits
    ]
    return section(
        title,
        element("div", content, class_="scroll", tabindex="0", role="region", aria_label=title),
        *advice,
        id_="comparison",
    )


def _metric_heading(key: str, **attributes: str) -> Markup:
    metric = METRICS[key]
    name = element("a", metric.heading, href=f"#metric-{key}", title=metric.meaning)
    return element("th", name, scope="col", **attributes)


def _case_row(case: CaseResult, *, baseline: CaseResult, best: CaseResult) -> Markup:
    badges = []
    if case is baseline:
        badges.append(element("span", "baseline", class_="badge"))
    if case is best and best is not baseline:
        badges.append(element("span", "fastest that fits" if best.memory.fits else "fastest", class_="badge good"))
    seconds = case.seconds_per_minibatch
    if case is baseline:
        speedup = element("td", "1")
    else:
        speedup = element(
            "td", element("b", f"{case.speedup:.2f}"), " ", element("span", interval_text(case), class_="more")
        )
    memory = element(
        "td",
        format_bytes(case.memory.peak_bytes),
        " ",
        element("span", "fits", class_="more")
        if case.memory.fits
        else element("strong", f"OVER by {format_bytes(case.memory.over_bytes)}", class_="alarm"),
    )
    return element(
        "tr",
        element("th", element("span", case.label, class_="label"), *badges, scope="row"),
        element("td", format_seconds(seconds["mean"])),
        element("td", format_seconds(seconds["p95"])),
        speedup,
        element("td", rate(case.samples_per_second / case.ranks)),
        element("td", rate(case.tokens_per_second)),
        element("td", percent(case.utilization)),
        element("td", percent(case.bubble_rate)),
        element("td", percent(case.mfu)),
        memory,
        element("td", f"{case.lower_bound_ratio:.3f}"),
        class_="best" if case is best and best is not baseline else False,
    )


def details(result: RunResult) -> Markup:
    """The section on microbatches, and on samples and tokens that were run, dropped or cut off."""
    header = (
        "case",
        "sync",
        "policy",
        "overlap",
        "microbatches a rank",
        "padding",
        "largest microbatch",
        "samples run",
        "dropped",
        "tokens run",
        "dropped",
        "cut off",
    )
    rows = [
        (
            case.label,
            case.sync,
            case.policy,
            case.overlap,
            f"{case.mean_microbatches_per_rank:.2f}",
            percent(case.padding_share) if case.pad or case.padding_share else "none",
            f"{case.memory.largest_microbatch_tokens:,} tokens",
            f"{case.conservation.run_samples:,}",
            f"{case.conservation.dropped_samples:,}",
            format_count(case.conservation.run_tokens),
            format_count(case.conservation.dropped_tokens),
            format_count(case.conservation.truncated_tokens),
        )
        for case in result.cases
    ]
    return section(
        "Microbatches, samples and tokens",
        table(header, rows, caption="Microbatches, samples and tokens"),
        id_="details",
    )
