"""Files that are written bit by bit and yet appear whole: under their name once closed, and not at all otherwise."""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from odcsim.errors import InputError

__all__ = ["WholeFile"]

_BUFFER_BYTES = 1 << 18
# Traces shrink to a tenth at any level; the higher ones only take longer.
_COMPRESSION = 4


class WholeFile:
    """A text file in the making, beside its place. As a context manager it is closed, or discarded by an exception.

    Args:
        path: its place; folders are made.
        compressed: as gzip; equal texts give equal bytes.

    Raises:
        InputError: (also when writing and closing) the file cannot be written.
    """

    def __init__(self, path: Path, *, compressed: bool) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        except OSError as error:
            raise InputError(f"cannot write here ({error.strerror})", file=path) from error
        self._temporary = Path(temporary)
        self._raw = os.fdopen(handle, "wb")
        # The header of a gzip file may hold a name and a time, which would differ from run to run.
        self._gzip = (
            gzip.GzipFile(filename="", mode="wb", compresslevel=_COMPRESSION, fileobj=self._raw, mtime=0)
            if compressed
            else None
        )
        self._texts: list[str] = []
        self._waiting = 0
        self._open = True

    def write(self, text: str) -> None:
        """Append a text."""
        assert self._open, f"{self.path} is closed"
        self._texts.append(text)
        self._waiting += len(text)
        if self._waiting >= _BUFFER_BYTES:
            try:
                self._flush()
            except OSError as error:
                raise self._failed(error) from error

    def _flush(self) -> None:
        (self._gzip or self._raw).write("".join(self._texts).encode())
        self._texts.clear()
        self._waiting = 0

    def close(self) -> None:
        """Finish the file and put it in its place. Safe to call twice."""
        if not self._open:
            return
        try:
            self._flush()
            if self._gzip is not None:
                self._gzip.close()
            self._raw.close()
            # mkstemp makes files private to their owner; these are meant to be read.
            umask = os.umask(0)
            os.umask(umask)
            self._temporary.chmod(0o666 & ~umask)
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._failed(error) from error
        self._open = False

    def _failed(self, error: OSError) -> InputError:
        self.discard()
        return InputError(f"cannot write here ({error.strerror})", file=self.path)

    def discard(self) -> None:
        """Leave nothing behind. Without effect once the file is closed."""
        if not self._open:
            return
        self._open = False
        self._texts.clear()
        self._temporary.unlink(missing_ok=True)
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
