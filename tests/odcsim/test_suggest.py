"""The answer to an unknown name: the nearest known one, and what there is."""

from __future__ import annotations

import pytest

from odcsim.errors import UnknownNameError
from odcsim.suggest import unknown_name

POLICIES = ["local-sort", "lb-micro", "lb-mini", "verl-native"]


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("lb-mirco", "; did you mean 'lb-micro'?"),
        ("LB-Mini", "; did you mean 'lb-mini'?"),
        ("localsort", "; did you mean 'local-sort'?"),
        ("xyzzy", ""),
        ("", ""),
        (None, ""),
        (3, ""),
    ],
)
def test_the_nearest_name_is_offered(written, hint):
    error = unknown_name("policy", written, POLICIES)
    assert isinstance(error, UnknownNameError)
    assert str(error) == f"{written!r}: unknown policy{hint} (known: lb-micro, lb-mini, local-sort, verl-native)"


def test_file_and_key_are_named():
    error = unknown_name("policy", "x", ["y"], file="a.yaml", key="cases.0.policy")
    assert str(error) == "a.yaml: cases.0.policy: 'x': unknown policy (known: y)"


def test_names_keep_their_case():
    assert "did you mean 'H100'?" in str(unknown_name("GPU", "h100", ["H100"]))


def test_a_long_list_is_cut():
    names = [f"n{index:02}" for index in range(30)]
    assert str(unknown_name("name", "?", names)).endswith("n22, n23, ...)")
    assert str(unknown_name("name", "?", names[:24])).endswith("n22, n23)")
