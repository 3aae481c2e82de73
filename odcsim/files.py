"""Reading and writing files whole: what a reader sees is the old file or the new one, never half of either."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from odcsim.errors import InputError

__all__ = ["read_text", "write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a temporary file beside it.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise InputError(f"cannot write here ({error.strerror})", file=path) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        # mkstemp makes files private to their owner; a report is meant to be read.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot write here ({error.strerror})", file=path) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_text(path: Path, *, what: str, key: str | None = None) -> str:
    """The text of a file that the user named.

    Args:
        path: the file.
        what: what the file should be: "scenario", "length trace".
        key: the key that named the file, if any.

    Raises:
        InputError: no such file, a folder, not readable, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"no such file; give the path of a {what}", file=path, key=key) from None
    except IsADirectoryError:
        raise InputError(f"is a folder; give the path of a {what}", file=path, key=key) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}); give the path of a {what}", file=path, key=key) from None
    except UnicodeDecodeError:
        raise InputError(f"is not UTF-8 text; give the path of a {what}", file=path, key=key) from None
