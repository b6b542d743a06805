"""Typed reading of a configuration file's entries; what is wrong is named with file and key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from mindserve.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it came from."""

    source: str
    values: Mapping[str, object]
    own_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the file itself calls a key, where that differs: for error texts."""

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """An int of at least 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, "an integer of at least 0")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """An int of at least 1."""
        value = self.integer(key, default)
        if value == 0:
            raise self.wrong(key, "an integer of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """An int or float."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A bool."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def section(self, key: str) -> "Fields | None":
        """A nested object, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(f"{self.source}: {key}", cast("Mapping[str, object]", value))

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._items(key)
        if any(isinstance(item, bool) or not isinstance(item, int | float) for item in value):
            raise self.wrong(key, "a list of numbers")
        return tuple(float(cast("float", item)) for item in value)

    def integers(self, key: str) -> tuple[int, ...]:
        """One int or a list of them; () when absent."""
        value = self.values.get(key)
        items = () if value is None else self._items(key) if isinstance(value, list | tuple) else (value,)
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.wrong(key, "an integer or a list of integers")
        return tuple(cast("tuple[int, ...]", items))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; () when absent."""
        items = self._items(key) if key in self else ()
        if any(not isinstance(item, str) for item in items):
            raise self.wrong(key, "a list of strings")
        return cast("tuple[str, ...]", items)

    def wrong(self, key: str, expected: str) -> ModelLoadError:
        """The error for a key that is not as it should be."""
        return ModelLoadError(
            f"{self.source}: {self._own(key)} should be {expected}, got {str(self.values.get(key))[:80]}"
        )

    def _own(self, key: str) -> str:
        return self.own_names.get(key, key)

    def _value(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelLoadError(f"{self.source}: {self._own(key)} is missing")
        return default

    def _items(self, key: str) -> tuple[object, ...]:
        value = self._value(key, None)
        if not isinstance(value, list | tuple):
            raise self.wrong(key, "a list")
        return tuple(cast("list[object]", value))
