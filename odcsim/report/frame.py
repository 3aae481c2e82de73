"""What every page is framed by: head, styles, scripts, and the pieces that pages share.

A page holds plotly's JavaScript, its styles and its data, and forbids itself any network access (its content security
policy). All numbers are in tables too, so nothing depends on seeing the figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from odcsim.report.markup import Markup, element, section, table
from odcsim.report.plotting import Figure

__all__ = ["figures_section", "framed", "plotly_javascript", "tiles_row", "top", "warnings_box"]

_NO_NETWORK = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def framed(title: str, header: Markup, *sections: Markup, figures: Sequence[Figure]) -> str:
    """A whole page.

    Args:
        title: of the window.
        header: what stands on top; see `top`.
        sections: of the page, in order.
        figures: those that the sections hold, in their order.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_NO_NETWORK}">'),
        element("title", title),
        Markup(f"<style>{_asset('page.css')}</style>"),
    )
    scripts = [
        *(_figure_data(figure) for figure in figures),
        Markup(f"<script>{plotly_javascript()}</script>"),
        Markup(f"<script>{_asset('page.js')}</script>"),
    ]
    body = element("body", header, element("main", *sections), *scripts)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


@cache
def _asset(name: str) -> str:
    return (files("odcsim.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def plotly_javascript() -> str:
    """plotly.js, found beside plotly's Python package without importing that (0.1 s)."""
    spec = find_spec("plotly")
    assert spec is not None, "plotly, which odcsim depends on, is not installed"
    assert spec.submodule_search_locations, "plotly is not a package"
    script = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    text = script.read_text(encoding="utf-8")
    assert "</script" not in text
    return text


def _figure_data(figure: Figure) -> Markup:
    """A figure for page.js; `<` is written so that nothing in it can end the script element."""
    text = json.dumps(figure.to_json(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" data-figure="plot-{figure.key}">{text}</script>')


def top(kicker: str, title: str, lines: Mapping[str, str]) -> Markup:
    """The header of a page: what kind of page, its name, and a few named lines of context."""
    return element(
        "header",
        element("p", kicker, class_="kicker"),
        element("h1", title),
        element(
            "dl",
            *(element("div", element("dt", name), element("dd", text)) for name, text in lines.items()),
            class_="context",
        ),
    )


def tiles_row(tiles: Iterable[tuple[str, str, str]]) -> Markup:
    """A row of figures that count: each its name, its value, and a remark that may be empty."""
    return element(
        "div",
        *(
            element(
                "div",
                element("span", name, class_="name"),
                element("span", value, class_="value"),
                element("span", more, class_="more") if more else "",
                class_="tile",
            )
            for name, value, more in tiles
        ),
        class_="tiles",
    )


def warnings_box(warnings: Sequence[str]) -> Markup:
    """Warnings, or nothing."""
    if not warnings:
        return Markup("")
    items = element("ul", *(element("li", warning) for warning in warnings))
    return element("aside", element("h2", "Warnings"), items, class_="callout", aria_label="Warnings")


def figures_section(title: str, figures: Iterable[Figure], *, id_: str, intro: str = "") -> Markup:
    """A section of figures, with the numbers behind each."""
    without_script = element("p", "Figures need JavaScript; the numbers behind each are in the table below it.")
    drawn = element("div", *(_figure(figure) for figure in figures), class_="figures")
    explained = element("p", intro, class_="intro") if intro else ""
    return section(title, explained, element("noscript", without_script), drawn, id_=id_)


def _figure(figure: Figure) -> Markup:
    legend = element(
        "ul",
        *(
            element("li", element("span", class_="swatch", style=f"background:{part.color}"), part.label)
            for part in figure.legend
        ),
        class_="legend",
    )
    return element(
        "figure",
        element("figcaption", element("h3", figure.title), element("p", figure.caption)),
        legend if figure.legend else "",
        element(
            "div",
            id=f"plot-{figure.key}",
            class_="plot",
            role="img",
            aria_label=f"{figure.title}. {figure.description}",
            style=f"min-height:{figure.layout['height']}px",
        ),
        element(
            "details",
            element("summary", "Numbers"),
            table(figure.header, figure.rows, caption=f"{figure.title}: numbers"),
        ),
        class_="wide" if figure.wide else False,
    )
