"""Quantities: right numbers, refusals that say what is allowed, and figures for people."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.units import format_bytes, format_count, format_seconds, parse_quantity

DIMENSIONS = ["bytes", "bytes/s", "FLOP/s", "seconds"]


@pytest.mark.parametrize(
    ("written", "dimension", "number"),
    [
        ("80 GB", "bytes", 80e9),
        ("80GB", "bytes", 80e9),
        ("  80   GB ", "bytes", 80e9),
        ("80 GiB", "bytes", 85_899_345_920),
        ("1 KiB", "bytes", 1024),
        ("1.5 kB", "bytes", 1500),
        ("1 KB", "bytes", 1000),
        ("2 TB", "bytes", 2e12),
        ("7 B", "bytes", 7),
        (7, "bytes", 7),
        ("7", "bytes", 7),
        ("400 Gb/s", "bytes/s", 50e9),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("400 Gbps", "bytes/s", 50e9),
        ("300 GB/s", "bytes/s", 300e9),
        ("8 b/s", "bytes/s", 1),
        ("1 GiB/s", "bytes/s", 2**30),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("312 TFLOPS", "FLOP/s", 312e12),
        ("1 PFLOP/s", "FLOP/s", 1e15),
        ("5 us", "seconds", 5e-6),
        ("5 µs", "seconds", 5e-6),
        ("3 ns", "seconds", 3e-9),
        ("0.15 s", "seconds", 0.15),
        (".5 ms", "seconds", 5e-4),
        ("2. min", "seconds", 120),
        ("1 h", "seconds", 3600),
        ("1e3 ms", "seconds", 1),
        ("+2.5E-1 s", "seconds", 0.25),
        (0, "seconds", 0),
        (-0.0, "seconds", 0),
    ],
)
def test_quantities(written, dimension, number):
    assert parse_quantity(written, dimension) == pytest.approx(number, rel=1e-15)


@pytest.mark.parametrize(
    ("written", "dimension", "problem"),
    [
        ("80 GX", "bytes", "unknown unit 'GX' for bytes"),
        ("80 gb", "bytes", "unknown unit 'gb' for bytes"),
        ("80 Gb", "bytes", "unknown unit 'Gb' for bytes"),
        ("80 GB", "bytes/s", "unknown unit 'GB' for bytes/s"),
        ("80 GB/s", "bytes", "unknown unit 'GB/s' for bytes"),
        ("5 us", "FLOP/s", "unknown unit 'us' for FLOP/s"),
        ("312 TFLOP", "FLOP/s", "unknown unit 'TFLOP' for FLOP/s"),
        ("1 day", "seconds", "unknown unit 'day' for seconds"),
        ("GB", "bytes", "not a quantity in bytes"),
        ("", "bytes", "not a quantity in bytes"),
        ("80 80 GB", "bytes", "not a quantity in bytes"),
        ("1,000 B", "bytes", "not a quantity in bytes"),
        ("nan", "bytes", "not a quantity in bytes"),
        ("inf s", "seconds", "not a quantity in seconds"),
        ("-1 GB", "bytes", "must not be negative"),
        (-1e-300, "seconds", "must not be negative"),
        (math.nan, "seconds", "must be finite"),
        (math.inf, "seconds", "must be finite"),
        (-math.inf, "seconds", "must be finite"),
        ("1e400 s", "seconds", "must be finite"),
        ("1e308 GB", "bytes", "must be finite"),
        (10**400, "bytes", "must be finite"),
        (True, "bytes", "not a quantity in bytes"),
        (None, "bytes", "not a quantity in bytes"),
        ([80], "bytes", "not a quantity in bytes"),
        ({"value": 80}, "bytes", "not a quantity in bytes"),
    ],
)
def test_refused(written, dimension, problem):
    with pytest.raises(ValueError, match="allowed: ") as caught:
        parse_quantity(written, dimension)
    assert str(caught.value).startswith(f"{problem}; allowed: ")


@given(st.floats(0, 1e290), st.sampled_from(DIMENSIONS))
def test_a_number_stands_for_itself_with_or_without_quotes(number, dimension):
    assert parse_quantity(number, dimension) == number == parse_quantity(repr(number), dimension)


@given(st.text(), st.sampled_from(DIMENSIONS))
def test_any_text_is_a_quantity_or_refused(text, dimension):
    try:
        number = parse_quantity(text, dimension)
    except ValueError:
        return
    assert math.isfinite(number)
    assert number >= 0


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (7, "7 B"), (999.4, "999 B"), (999.6, "1 kB"), (17_190_000_000, "17.2 GB"), (1.234e15, "1,234 TB")],
)
def test_bytes_for_people(number, text):
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 ns"),
        (2.414, "2.41 s"),
        (12_345, "12,345 s"),
        (0.0152, "15.2 ms"),
        (0.9996, "1 s"),
        (5e-6, "5 us"),
        (3e-10, "0.3 ns"),
    ],
)
def test_seconds_for_people(number, text):
    assert format_seconds(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (16_300, "16.3K"), (999_999, "1M"), (1_777_088_000, "1.78B"), (2e12, "2T")],
)
def test_counts_for_people(number, text):
    assert format_count(number) == text
