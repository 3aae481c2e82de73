"""Errors: one tree, and texts of one printable line whatever the user wrote."""

from __future__ import annotations

import pytest

from odcsim.errors import InputError, OdcError, PolicyError, RunError, UnknownNameError


@pytest.mark.parametrize(
    ("error", "parents"),
    [
        (InputError, (OdcError, ValueError)),
        (UnknownNameError, (InputError,)),
        (PolicyError, (InputError,)),
        (RunError, (OdcError, RuntimeError)),
    ],
)
def test_tree(error, parents):
    assert issubclass(error, parents)
    assert not issubclass(RunError, InputError)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "allowed: 1 to 3"),
        ({"key": "cluster.nodes"}, "cluster.nodes: allowed: 1 to 3"),
        ({"file": "a.yaml", "key": "cluster.nodes", "value": 7}, "a.yaml: cluster.nodes: 7: allowed: 1 to 3"),
        ({"file": "a.yaml", "value": None}, "a.yaml: None: allowed: 1 to 3"),
        ({"value": "two\nlines"}, r"'two\nlines': allowed: 1 to 3"),
        ({"value": [1, {"a": "b"}]}, "[1, {'a': 'b'}]: allowed: 1 to 3"),
    ],
)
def test_where_and_value_come_before_the_problem(arguments, text):
    assert str(InputError("allowed: 1 to 3", **arguments)) == text


def test_parts_are_kept():
    error = InputError("no", file="a.yaml", key="b", value=3)
    assert (error.problem, error.file, error.key, error.value) == ("no", "a.yaml", "b", 3)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("two\nlines", "two lines"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("tab\there\r", r"tab\there\r"),
        ("nul\0", r"nul\x00"),
        ("turned \u202eround", r"turned \u202eround"),
        ("half \ud800", r"half \ud800"),
        ("[red]µ€[/red]", "[red]µ€[/red]"),
    ],
)
def test_nothing_reaches_the_terminal_that_it_would_act_on(written, shown):
    """Not from the problem, the file's name or the key; a value is written as a literal anyway."""
    assert str(InputError(written, file=written, key=written)) == f"{shown}: {shown}: {shown}"


def _nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def _bomb():
    value = ["x"] * 10
    for _ in range(20):
        value = [value] * 10
    return value


def _circle():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [list(range(1_000_000)), "x" * 1_000_000, 1 << 10_000_000, _nested(100_000), _bomb(), _circle(), {"a": _bomb()}],
    ids=["list", "text", "number", "nested", "bomb", "circle", "mapping"],
)
def test_a_value_of_any_size_is_shown_short(value):
    text = str(InputError("no", value=value))
    assert len(text) <= len("no: ") + 120
    assert text.endswith(": no")


def test_a_list_of_counts_is_shown_whole():
    assert str(InputError("no", value=[3, 2, 2, 2, 2, 2, 2, 2])) == "[3, 2, 2, 2, 2, 2, 2, 2]: no"
