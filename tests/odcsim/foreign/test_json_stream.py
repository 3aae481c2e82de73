"""Large JSON, an event at a time: nothing is lost at the seams, and damage is told from a cut."""

from __future__ import annotations

import gzip
import json

import pytest

from odcsim.errors import InputError
from odcsim.foreign import json_stream
from odcsim.foreign.json_stream import stream_trace

DOCUMENT = {
    "schemaVersion": 1,
    "number": 1234567890123,
    "deviceProperties": [],
    "distributedInfo": {"rank": 0, "deep": [{"a": [1, 2, {"b": None}]}]},
    "traceEvents": [
        {"name": 'quotes " and \\ and [ and }', "ts": 5120604173085.815, "ok": True},
        {"name": "ümlaut ✓", "ts": -1.5e-7},
        {},
    ],
    "after": "text",
}


def whole(found):
    """The document of what was streamed."""
    document = {}
    for key, value in found:
        if key == "traceEvents":
            document.setdefault(key, []).append(value)
        else:
            document[key] = value
    return document


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_streamed_is_what_was_written(tmp_path, monkeypatch, chunk, indent, compressed):
    monkeypatch.setattr(json_stream, "_CHUNK_CHARACTERS", chunk)
    data = json.dumps(DOCUMENT, indent=indent, ensure_ascii=False).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert whole(stream_trace(path)) == DOCUMENT


def test_events_may_be_none(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [ ], "a": 1}')
    assert list(stream_trace(path)) == [("a", 1)]


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_a_cut_is_told_wherever_it_is(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(json_stream, "_CHUNK_CHARACTERS", chunk)
    text = json.dumps(DOCUMENT)
    path = tmp_path / "trace.json"
    for length in range(1, len(text)):
        path.write_text(text[:length])
        with pytest.raises(InputError, match=r"trace\.json: the file is cut off"):
            list(stream_trace(path))


def test_compressed_data_that_are_cut_or_damaged(tmp_path):
    data = gzip.compress(json.dumps({**DOCUMENT, "more": list(range(9999))}).encode(), mtime=0)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data[:-20])
    with pytest.raises(InputError, match="the file is cut off"):
        list(stream_trace(path))
    path.write_bytes(data[:900] + b"\0" * 50 + data[950:])
    with pytest.raises(InputError, match="is not whole gzip data"):
        list(stream_trace(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no JSON object"),
        ("PK\x03\x04", "holds no JSON object"),
        ("[1, 2]", "holds a list"),
        ('{"a": 1 "b": 2, "c": 33333333333333333}', "is not JSON .a comma is missing"),
        ('{"a" 1, "c": 33333333333333333}', "character 5: is not JSON .':' is missing"),
        ('{"traceEvents": [{"a": nope}, {"b": 2}, {"c": 333333333}]}', "is not JSON .Expecting value"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, message):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(stream_trace(path))


def test_a_text_without_end_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_CHUNK_CHARACTERS", 10)
    monkeypatch.setattr(json_stream, "_LONGEST_VALUE_CHARACTERS", 1000)
    path = tmp_path / "trace.json"
    path.write_text('{"a": "' + "x" * 5000 + "}")
    with pytest.raises(InputError, match=r"is not JSON \(Unterminated string"):
        list(stream_trace(path))


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        list(stream_trace(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        list(stream_trace(tmp_path / "none.json"))
