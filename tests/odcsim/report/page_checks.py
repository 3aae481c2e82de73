"""What the tests of pages and figures share: a reader of HTML, and colours."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import plotly.graph_objects as go

from odcsim.report.frame import plotly_javascript

CSS = (files("odcsim.report") / "assets" / "page.css").read_text(encoding="utf-8")
NASTY = "<script>alert(1)</script>&\"'<b>%{x}"
_WITHOUT_END = {"meta", "br", "hr"}


class Document(HTMLParser):
    """Checks that elements nest, and collects texts, attributes, and the rows of tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag not in _WITHOUT_END:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"script", "style"}:
            self.texts.append(data)
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def row(self, label: str) -> list[str]:
        """The row of the comparison, which is the first table."""
        return next(row for row in self.rows if row and row[0].startswith(label))


def without_plotly(page: str) -> str:
    return page.replace(plotly_javascript(), "")


def in_colours(value: object) -> object:
    """The figure as the page's script resolves it, with one colour for all."""
    if isinstance(value, str):
        return re.sub(r"^var\(--[a-z0-9-]+\)$", lambda match: "Arial" if "font" in match[0] else "#123456", value)
    if isinstance(value, list):
        return [in_colours(entry) for entry in value]
    if isinstance(value, dict):
        return {key: in_colours(entry) for key, entry in value.items()}
    return value


def tokens_of(value: object) -> set[str]:
    return set(re.findall(r"var\((--[a-z0-9-]+)\)", json.dumps(value)))


def figure_data(page: str) -> list[tuple[str, str]]:
    """For each figure of a page, where it goes and its JSON."""
    return re.findall(r'<script type="application/json" data-figure="([^"]+)">(.*?)</script>', page)


def check_figures(page: str) -> list[str]:
    """Every figure has its place, holds what plotly accepts, and takes its colours from the page; returns places."""
    found = figure_data(page)
    known = set(re.findall(r"(--[a-z0-9-]+):", CSS))
    for place, text in found:
        assert f'id="{place}"' in page
        drawn = in_colours(json.loads(text))
        assert isinstance(drawn, dict)
        go.Figure(data=drawn["data"], layout=drawn["layout"])  # refuses unknown keys and values
        assert tokens_of(json.loads(text)) <= known
    return [place for place, _ in found]
