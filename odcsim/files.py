"""Reading and writing files whole: what a reader sees is the old file or the new one, never half of either."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from odcsim.errors import InputError

__all__ = ["read_text", "require_output_folder", "write_atomically", "write_together"]


def require_output_folder(folder: Path, *, key: str) -> None:
    """Find out, without touching anything, whether files can be written to a folder that may not be there yet.

    Args:
        folder: where files will go.
        key: the option that named it.

    Raises:
        InputError: it is no folder, or cannot be made or written to.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        what = "is no folder" if nearest == folder else f"{nearest} is no folder"
        raise InputError(f"{what}; allowed: a folder, which is made if missing", key=key, value=str(folder))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write to {nearest}", key=key, value=str(folder))


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a temporary file beside it.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    write_together({path: text})


def write_together(texts: Mapping[Path, str]) -> None:
    """Write several files, each by way of a temporary file beside it; none of them changes before all are written.

    Args:
        texts: what each file is to hold.

    Raises:
        InputError: a folder cannot be made or written to.
    """
    with ExitStack() as cleaning:
        temporaries = {path: _written_beside(path, text, cleaning) for path, text in texts.items()}
        for path, temporary in temporaries.items():
            try:
                temporary.replace(path)
            except OSError as error:
                raise _not_writable(path, error) from error


def _written_beside(path: Path, text: str, cleaning: ExitStack) -> Path:
    """A temporary file with the text, which `cleaning` removes if it is still there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise InputError("is a folder; a file is to be written here", file=path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        cleaning.callback(temporary.unlink, missing_ok=True)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        # mkstemp makes files private to their owner; a report is meant to be read.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
    except OSError as error:
        raise _not_writable(path, error) from error
    return temporary


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write here ({error.strerror})", file=path)


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
