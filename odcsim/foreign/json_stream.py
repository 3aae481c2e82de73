"""Chrome trace JSON read bit by bit: one event is in memory at a time, whatever the file's size.

What is understood: one JSON object whose key `traceEvents` holds a list. Plain text or gzip, told by the first bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from odcsim.errors import InputError

__all__ = ["EVENTS_KEY", "stream_trace"]

EVENTS_KEY = "traceEvents"

_WHAT = "a trace of PyTorch's profiler (export_chrome_trace)"
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_CHARACTERS = 1 << 20
# No event and no value beside the events is longer; what seems to be is a text that lacks its end.
_LONGEST_VALUE_CHARACTERS = 1 << 28
# A value that is cut off makes the decoder fail this near to the end of the text, or say that a text is unterminated.
_CUT_CHARACTERS = 8
_SPACE = re.compile(r"\s*")


def stream_trace(path: Path) -> Iterator[tuple[str, Any]]:
    """Keys and values of a trace in the order of the file; every event on its own, under the key `traceEvents`.

    Raises:
        InputError: the file cannot be read, is cut off, is not JSON, or is not an object.
    """
    with closing(_opened(path)) as stream:
        text = _Text(stream, path)
        first = text.peek()
        if first != "{":
            found = "a list" if first == "[" else "no JSON object"
            raise InputError(f"is not {_WHAT}: it holds {found}", file=path)
        text.skip()
        while text.peek() != "}":
            key = text.value()
            text.expect(":")
            if key == EVENTS_KEY and text.peek() == "[":
                text.skip()
                while text.peek() != "]":
                    yield EVENTS_KEY, text.value()
                    text.comma_before("]")
                text.skip()
            else:
                yield key, text.value()
            text.comma_before("}")


def _opened(path: Path) -> IO[str]:
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file; give {_WHAT}", file=path) from None
    except IsADirectoryError:
        raise InputError(f"is a folder; give {_WHAT}", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); give {_WHAT}", file=path) from None
    magic = raw.read(len(_GZIP_MAGIC))
    raw.seek(0)
    stream = io.BufferedReader(_GzipOf(raw)) if magic == _GZIP_MAGIC else raw
    # Names of kernels and files may hold anything.
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace")


class _GzipOf(gzip.GzipFile):
    """Compressed data that closes the file it comes from."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._raw_file = raw

    def close(self) -> None:
        super().close()
        self._raw_file.close()


class _Text:
    """The part of a JSON text that is being looked at."""

    def __init__(self, stream: IO[str], path: Path) -> None:
        self._stream = stream
        self._path = path
        self._decode = json.JSONDecoder().raw_decode
        self._buffer = ""
        self._at = 0
        self._passed = 0  # characters that are not in the buffer any more

    def _more(self) -> bool:
        """Read on; False at the end."""
        # Twice as much for a value that still lacks its end: the cost of trying again stays in proportion.
        left = len(self._buffer) - self._at
        try:
            chunk = self._stream.read(max(_CHUNK_CHARACTERS, left))
        except EOFError:
            raise self._cut() from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"is not whole gzip data ({error})", file=self._path) from None
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", file=self._path) from None
        self._buffer = self._buffer[self._at :] + chunk
        self._passed += self._at
        self._at = 0
        return bool(chunk)

    def peek(self) -> str:
        """The next character that is no space."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                if self._passed + self._at:
                    raise self._cut()
                return ""

    def skip(self) -> None:
        """Pass over the character that was peeked at."""
        self._at += 1

    def expect(self, character: str) -> None:
        """Pass over a character that must come next."""
        if self.peek() != character:
            raise self._damaged(f"{character!r} is missing")
        self.skip()

    def comma_before(self, end: str) -> None:
        """Pass over a comma, unless the end follows."""
        if self.peek() == ",":
            self.skip()
        elif self.peek() != end:
            raise self._damaged("a comma is missing")

    def value(self) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """The next value."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                seems_cut = error.msg.startswith("Unterminated") or error.pos > len(self._buffer) - _CUT_CHARACTERS
                if not seems_cut or len(self._buffer) - self._at > _LONGEST_VALUE_CHARACTERS:
                    raise self._damaged(error.msg) from None
                if not self._more():
                    raise self._cut() from None
                continue
            except RecursionError:
                raise self._damaged("nested too deeply") from None
            # A number may go on in what has not been read yet.
            if end == len(self._buffer) and type(value) in {int, float} and self._more():
                continue
            self._at = end
            return value

    def _cut(self) -> InputError:
        return InputError(
            "the file is cut off: its JSON has no end; wait until the profiler has written it, copy it again, or "
            "record again",
            file=self._path,
        )

    def _damaged(self, problem: str) -> InputError:
        place = f"character {self._passed + self._at}"
        return InputError(f"is not JSON ({problem}); give {_WHAT}", file=self._path, key=place)
