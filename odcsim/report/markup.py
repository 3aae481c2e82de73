"""HTML that cannot be broken by what users write: every text is escaped unless it is `Markup` already.

Also renders nested mappings, such as a scenario, as definition lists, with quantities in the units their keys name.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from odcsim.units import format_bytes, format_seconds

__all__ = ["Markup", "definitions", "element", "join", "section", "table", "value_text"]

_VOID = frozenset({"meta", "br", "hr"})
# Lists longer than this are summed up, not written out.
_LONGEST_LIST = 12
# Longer texts get a line of their own.
_SHORT_TEXT = 30
_UNIT_ENDINGS = ("_flops_per_s", "_bytes_per_s", "_bytes", "_s")


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def _escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def join(parts: Iterable[str]) -> Markup:
    """Parts one after the other; those that are not `Markup` are escaped."""
    return Markup("".join(_escaped(part) for part in parts))


def element(name: str, /, *children: str, **attributes: str | bool) -> Markup:
    """An element.

    Args:
        name: its tag.
        children: its content, escaped unless `Markup`.
        attributes: `class_` becomes `class`, `aria_label` becomes `aria-label`; True is an attribute without value,
            False leaves it out.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> Markup:
    """A table whose first column names its rows; it scrolls sideways where it is too wide."""
    head = element("tr", *(element("th", text, scope="col") for text in header))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", text) for text in row[1:])) for row in rows
    ]
    content = element(
        "table", element("caption", caption, class_="unseen"), element("thead", head), element("tbody", *body)
    )
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def section(title: str, *children: str, id_: str) -> Markup:
    """A section of the page with its heading."""
    heading = element("h2", title, id=f"{id_}-title")
    return element("section", heading, *children, id=id_, aria_labelledby=f"{id_}-title")


def definitions(mapping: Mapping[str, object]) -> Markup:
    """A nested mapping as a definition list.

    Empty values are left out. A mapping under `sources` says where its neighbours come from: each source is put below
    the value of the same key.
    """
    entries = {str(key): value for key, value in mapping.items() if value is not None and value != {}}
    sources = entries.get("sources")
    sources_by_key = {str(key): value for key, value in sources.items()} if isinstance(sources, Mapping) else {}
    if sources_by_key and set(sources_by_key) <= set(entries):
        del entries["sources"]
    items: list[str] = []
    for key, value in entries.items():
        items += [element("dt", _name_of(key)), _definition(key, value)]
        if key in sources_by_key and "sources" not in entries:
            items.append(element("dd", _linked(value_text("source", sources_by_key[key])), class_="source"))
    return element("dl", *items)


def _definition(key: str, value: object) -> Markup:
    if isinstance(value, Mapping):
        return element("dd", definitions(value))
    if _is_list_of_mappings(value):
        assert isinstance(value, Sequence)
        return element("dd", *(definitions(entry) for entry in value))
    text = value_text(key, value)
    return element("dd", _linked(text), class_="long" if len(text) > _SHORT_TEXT else False)


def _name_of(key: str) -> str:
    """A key for people: without the unit, which its value is shown with."""
    for ending in _UNIT_ENDINGS:
        if key.endswith(ending):
            key = key.removesuffix(ending)
            break
    return key.replace("_", " ")


def _is_list_of_mappings(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(entry, Mapping) for entry in value)
    )


def _linked(text: str) -> Markup:
    """The text, as a link if all of it is an address."""
    if text.startswith(("https://", "http://")) and " " not in text:
        return element("a", text, href=text, rel="noreferrer")
    return _escaped(text)


def value_text(key: str, value: object) -> str:
    """A single value for people, in the unit that its key names.

    Args:
        key: `memory_bytes`, `latency`, ...: its ending tells the unit.
        value: a number, a text, a list of them, or None.
    """
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number_text(key, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > _LONGEST_LIST:
            return f"{len(value):,} values"
        return ", ".join(value_text(key, entry) for entry in value) or "none"
    return str(value)


def _number_text(key: str, number: float) -> str:
    if key.endswith("flops_per_s"):
        return _flops_text(number)
    if key.endswith("bytes_per_s") or key == "bandwidth":
        return f"{format_bytes(number)}/s"
    if key.endswith("bytes"):
        return format_bytes(number)
    if key.endswith("_s") or key in {"latency", "visit_overhead", "minibatch_overhead"}:
        return format_seconds(number) if number else "0 s"
    if key == "seed":
        return str(number)
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.6g}"


def _flops_text(flops_per_s: float) -> str:
    """A compute rate: "989.4 TFLOP/s"."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if flops_per_s >= factor:
            return f"{flops_per_s / factor:.4g} {prefix}FLOP/s"
    return f"{flops_per_s:.4g} FLOP/s"
