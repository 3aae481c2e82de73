"""The exception tree of both programs.

    OdcError
    ├── InputError      (also a ValueError)  the user's input is at fault: one line, exit code 2
    │   ├── UnknownNameError                 a name that no catalog or registry holds, with the nearest one that is held
    │   └── PolicyError                      a policy cannot make a plan of this minibatch
    └── RunError        (also a RuntimeError)  a run failed: exit code 1

An `InputError` says where (file, key), what was found there (value) and what is allowed, in one line.
"""

from __future__ import annotations

import reprlib

__all__ = ["InputError", "OdcError", "PolicyError", "RunError", "UnknownNameError"]

_LONGEST_SHOWN_VALUE = 120


class _ShortRepr(reprlib.Repr):
    """A repr whose cost does not grow with the value: what is shown may be huge, nested deeply, or refer to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxlist = self.maxtuple = self.maxdict = 40
        self.maxstring = self.maxother = _LONGEST_SHOWN_VALUE

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 - reprlib passes it
        # Python refuses to write out an int of thousands of digits.
        return repr(x) if x.bit_length() <= 4 * _LONGEST_SHOWN_VALUE else f"a number of {x.bit_length()} bits"


def _shown(value: object) -> str:
    text = " ".join(_ShortRepr().repr(value).split())
    return text if len(text) <= _LONGEST_SHOWN_VALUE else text[: _LONGEST_SHOWN_VALUE - 3] + "..."


def _on_one_line(text: str) -> str:
    """The text with line ends as spaces and every other character that a terminal would act on written out."""
    return "".join(sign if sign.isprintable() else " " if sign == "\n" else repr(sign)[1:-1] for sign in text)


class OdcError(Exception):
    """Base of every error that odcsim and odcrt raise on purpose."""


class InputError(OdcError, ValueError):
    """Something the user wrote cannot be used.

    Args:
        problem: what is wrong, and what is allowed instead; no final stop is added.
        file: the file that holds the value, if any.
        key: where in the file: a dotted key ("cluster.nodes") or a line ("line 7").
        value: the value found there; left out of the text when not given.
    """

    _NO_VALUE = object()

    def __init__(
        self, problem: str, *, file: object | None = None, key: str | None = None, value: object = _NO_VALUE
    ) -> None:
        self.problem = problem
        self.file = None if file is None else str(file)
        self.key = key
        self.value = None if value is self._NO_VALUE else value
        where = [part for part in (self.file, key) if part]
        if value is not self._NO_VALUE:
            where.append(_shown(value))
        super().__init__(_on_one_line(": ".join([*where, problem])))


class UnknownNameError(InputError):
    """A name that no catalog or registry holds; the text offers the nearest ones and the whole list if it is short."""


class PolicyError(InputError):
    """A policy cannot make a plan, for a sample over the cap, say; raised alike on every rank."""


class RunError(OdcError, RuntimeError):
    """A run that started could not be finished."""
