"""Values of a JSON object, each checked as it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odcsim.errors import InputError
from odcsim.trace_format.numbers import LARGEST, is_finite_number

__all__ = ["Section"]


class Section:
    """A JSON object whose values are checked as they are taken; whatever is wrong raises an `InputError`."""

    def __init__(self, content: Mapping[str, Any], *, file: object, path: str = "") -> None:
        self.content = dict(content)
        self._file = file
        self._path = path

    def _key(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _value(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
        if key not in self.content:
            raise InputError("required key is missing", file=self._file, key=self._key(key))
        return self.content[key]

    def check(self, holds: bool, key: str, allowed: str) -> None:  # noqa: FBT001 - reads like an assertion
        """Refuse the value of `key` unless a condition holds."""
        if not holds:
            raise InputError(allowed, file=self._file, key=self._key(key), value=self.content[key])

    def whole(self, key: str, *, least: int, most: int | None = None) -> int:
        """A whole number within bounds."""
        value = self._value(key)
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        fits = type(value) is int and value >= least and (most is None or value <= most)
        self.check(fits, key, f"must be a whole number {bounds}")
        self.check(value <= LARGEST, key, f"must be at most {LARGEST}")
        assert isinstance(value, int)
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        value = self._value(key)
        self.check(is_finite_number(value), key, "must be a finite number")
        return float(value)

    def text(self, key: str) -> str:
        """A text."""
        value = self._value(key)
        self.check(isinstance(value, str), key, "must be a text")
        return str(value)

    def items(self, key: str, *, count: int | None = None) -> list[Any]:
        """A list, whatever it holds; of as many entries as there are ranks, if `count` says how many these are."""
        value = self._value(key)
        self.check(isinstance(value, list), key, "must be a list")
        if count is not None:
            self.check(len(value) == count, key, f"must hold an entry for each of the {count} ranks")
        return list(value)

    def whole_items(self, key: str, *, least: int) -> tuple[int, ...]:
        """A list of whole numbers."""
        values = self.items(key)
        fits = all(type(value) is int and value >= least for value in values)
        self.check(fits, key, f"must hold whole numbers of at least {least}")
        self.check(all(value <= LARGEST for value in values), key, f"must hold numbers of at most {LARGEST}")
        return tuple(values)

    def numbers(self, key: str, *, count: int) -> tuple[float, ...]:
        """A finite number for each rank."""
        values = self.items(key, count=count)
        self.check(all(map(is_finite_number, values)), key, "must hold finite numbers")
        return tuple(map(float, values))

    def texts(self, key: str, *, count: int) -> tuple[str, ...]:
        """A text for each rank."""
        values = self.items(key, count=count)
        self.check(all(isinstance(value, str) for value in values), key, "must hold texts")
        return tuple(values)

    def whole_numbers(self) -> dict[str, int]:
        """All keys, each of which holds a whole number of at least 0."""
        return {key: self.whole(key, least=0) for key in self.content}

    def all_texts(self) -> dict[str, str]:
        """All keys, each of which holds a text."""
        return {key: self.text(key) for key in self.content}

    def section(self, key: str) -> Section:
        """An object within this one."""
        value = self._value(key)
        self.check(isinstance(value, dict), key, "must be a JSON object")
        return Section(value, file=self._file, path=self._key(key))

    def sections(self, key: str) -> list[Section]:
        """A list of objects."""
        values = self.items(key)
        self.check(all(isinstance(value, dict) for value in values), key, "must hold JSON objects")
        return [
            Section(value, file=self._file, path=self._key(f"{key}.{position}"))
            for position, value in enumerate(values)
        ]
