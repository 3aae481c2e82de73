"""Reading length traces and their sidecars: what is accepted, and how each fault is named."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.lengths import LengthTrace, read_trace

WriteTrace = Callable[..., Path]

LONGEST = 1_000_000_000


@pytest.fixture
def write(tmp_path: Path) -> WriteTrace:
    def write_files(
        content: str | bytes, *, sidecar: dict[str, Any] | str | None = None, name: str = "lengths.csv"
    ) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if sidecar is not None:
            text = sidecar if isinstance(sidecar, str) else json.dumps(sidecar)
            path.with_suffix(".json").write_text(text, encoding="utf-8")
        return path

    return write_files


@pytest.mark.parametrize(
    "content",
    [
        "5\n17\n1000000000\n",
        "5\n17\n1000000000",
        "5\r\n17\r\n1000000000\r\n",
        b"\xef\xbb\xbf5\n17\n1000000000\n",
        b"\xef\xbb\xbf# tokens\r\n5\r\n17\r\n1000000000",
        "# tokens\n5\n\n  17 \n# the last\n1000000000\n\n",
        "005\n0017\n1000000000\n",
    ],
)
def test_accepted_forms_give_the_same_lengths(write: WriteTrace, content: str | bytes) -> None:
    trace = read_trace(write(content))
    assert trace.lengths_S.tolist() == [5, 17, LONGEST]
    assert trace.lengths_S.dtype == np.int64


def test_without_a_sidecar_rows_are_independent_and_not_called_synthetic(write: WriteTrace) -> None:
    trace = read_trace(write("3\n4\n", name="chat.v2.csv"))
    assert (trace.name, trace.group_size, trace.synthetic, trace.provenance) == ("chat.v2", 1, False, {})


def test_the_sidecar_is_read_and_passed_on(write: WriteTrace) -> None:
    facts = {"count": 5, "group_size": 2, "synthetic": True, "licence": "MIT", "quantiles": {"p50": 3}}
    trace = read_trace(write("1\n2\n3\n4\n5\n", sidecar=facts))
    assert (trace.group_size, trace.synthetic) == (2, True)
    assert trace.provenance == facts


def test_lengths_are_read_only(write: WriteTrace) -> None:
    trace = read_trace(write("3\n4\n"))
    with pytest.raises(ValueError, match="read-only"):
        trace.lengths_S[0] = 9


def test_a_trace_made_from_an_array_leaves_that_array_writable() -> None:
    lengths_S = np.array([3, 4])
    trace = LengthTrace("mine", lengths_S)
    lengths_S[0] = 5
    assert not trace.lengths_S.flags.writeable


@pytest.mark.parametrize(
    ("content", "line", "value"),
    [
        ("7\n0\n", 2, "0"),
        ("7\n8\n-3\n", 3, "-3"),
        ("7\nabc\n", 2, "abc"),
        ("12.5\n", 1, "12.5"),
        ("7\n\n# c\nNaN\n", 4, "NaN"),
        ("7\n8\n9\n10\n11\n12\n1000000001\n", 7, "1000000001"),
        ("7\n99999999999999999999999999\n", 2, "99999999999999999999999999"),
        ("length\n7\n", 1, "length"),
        ("7\n8 9\n", 2, "8 9"),
        ("7\n8,9\n", 2, "8,9"),
        ("7\n+8\n", 2, "+8"),
        ("7\n1_000\n", 2, "1_000"),
        ("7\n1e3\n", 2, "1e3"),
        ("7\n²\n", 2, "²"),
        ("7\n٣\n", 2, "٣"),
        ("7\r\n8\r\nx\r\n", 3, "x"),
        ("7\n8 # long\n", 2, "8 # long"),
    ],
)
def test_a_bad_line_is_named_by_its_number(write: WriteTrace, content: str | bytes, line: int, value: str) -> None:
    path = write(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert (caught.value.file, caught.value.key, caught.value.value) == (str(path), f"line {line}", value)
    assert "whole number of tokens from 1 to 1,000,000,000" in str(caught.value)


def test_a_number_of_thousands_of_digits_is_one_short_line(write: WriteTrace) -> None:
    path = write("7\n" + "9" * 5000 + "\n")
    with pytest.raises(InputError, match="line 2") as caught:
        read_trace(path)
    assert len(str(caught.value)) < len(str(path)) + 300


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n", b"\xef\xbb\xbf"])
def test_a_file_without_lengths_is_refused(write: WriteTrace, content: str | bytes) -> None:
    with pytest.raises(InputError, match="holds no length"):
        read_trace(write(content), key="workload.lengths.trace")


def test_files_that_cannot_be_opened_are_named_with_the_key_that_named_them(tmp_path: Path, write: WriteTrace) -> None:
    for path, problem in [
        (tmp_path / "missing.csv", "no such file"),
        (tmp_path, "is a folder"),
        (write("7\n".encode("utf-16"), name="wide.csv"), "not UTF-8"),
    ]:
        with pytest.raises(InputError, match=problem) as caught:
            read_trace(path, key="workload.lengths.trace")
        assert str(caught.value).startswith(f"{path}: workload.lengths.trace: ")


def test_a_histogram_given_as_a_trace_is_told_where_it_belongs(write: WriteTrace) -> None:
    with pytest.raises(InputError, match="'histogram'"):
        read_trace(write("{}", name="hist.json"))


@pytest.mark.parametrize(
    ("sidecar", "key", "problem"),
    [
        ("{\n 'x': 1}", "line 2", "is not JSON"),
        ("[1, 2]", None, "must be a JSON object"),
        ("[" * 100_000, None, "is not JSON that can be read"),
        ({"group_size": 0}, "group_size", "whole number from 1 to the number of lengths, 4"),
        ({"group_size": 5}, "group_size", "whole number from 1 to the number of lengths, 4"),
        ({"group_size": 2.0}, "group_size", "whole number"),
        ({"group_size": "2"}, "group_size", "whole number"),
        ({"group_size": True}, "group_size", "whole number"),
        ({"group_size": None}, "group_size", "whole number"),
        ({"count": 3}, "count", "number of lengths in the trace, 4"),
        ({"count": "4"}, "count", "number of lengths in the trace, 4"),
        ({"synthetic": "no"}, "synthetic", "true or false"),
    ],
)
def test_a_faulty_sidecar_is_named(
    write: WriteTrace, sidecar: dict[str, Any] | str, key: str | None, problem: str
) -> None:
    path = write("1\n2\n3\n4\n", sidecar=sidecar)
    with pytest.raises(InputError, match=problem) as caught:
        read_trace(path)
    assert caught.value.file == str(path.with_suffix(".json"))
    assert caught.value.key == key


def test_a_sidecar_may_start_with_a_byte_order_mark(write: WriteTrace) -> None:
    path = write("1\n2\n", sidecar="\ufeff" + json.dumps({"licence": "MIT"}))
    assert read_trace(path).provenance == {"licence": "MIT"}


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, LONGEST), min_size=1, max_size=50),
    end=st.sampled_from(["\n", "\r\n"]),
    comment=st.sampled_from(["", "# tokens", "  # tokens"]),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], end: str, comment: str
) -> None:
    path = tmp_path_factory.mktemp("traces") / "lengths.csv"
    text = comment + end + end.join(map(str, lengths)) + end
    path.write_bytes(text.encode())
    assert read_trace(path).lengths_S.tolist() == lengths


@pytest.mark.parametrize("head", ["", "# tokens\n", " # an indented comment sends every line through the slow scan\n"])
def test_a_million_lines_are_read_in_less_than_four_times_what_int_takes(write: WriteTrace, head: str) -> None:
    """Beside `int` of every line in the same minute: some machines are twice as fast as others, or as themselves."""
    lengths_S = np.random.default_rng(0).integers(1, 100_000, 1_000_000)
    path = write(head + "\n".join(map(str, lengths_S.tolist())) + "\n")
    start_s = time.process_time()
    plain = [int(line) for line in path.read_text().split("\n") if line.isdigit()]
    plain_s = time.process_time() - start_s
    start_s = time.process_time()
    trace = read_trace(path)
    assert time.process_time() - start_s < 4 * plain_s
    assert len(plain) == len(lengths_S)
    assert np.array_equal(trace.lengths_S, lengths_S)
