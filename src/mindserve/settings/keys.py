"""What one key of config.json may be, and reading a JSON object by a list of such keys.

Everything that a key's value can be refused for is said in its `Key`; `Section` hands out values that passed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from mindserve.errors import ConfigError

MAX_ECHO = 80
"""Characters of a wrong value that a message shows."""


class Kind(StrEnum):
    """JSON type of a value, as messages call it."""

    INTEGER = "an integer"
    NUMBER = "a number"
    STRING = "a string"
    BOOLEAN = "a boolean"
    OBJECT = "an object"
    ARRAY = "an array"
    ANY = "any value"


class Effect(StrEnum):
    """With which engine a key does something. Where it does nothing it is checked all the same."""

    ALWAYS = "always"
    NATIVE = "native"
    VLLM = "vllm"
    NEVER = "never"


_TYPES: Mapping[Kind, tuple[type, ...]] = {
    Kind.INTEGER: (int,),
    Kind.NUMBER: (int, float),
    Kind.STRING: (str,),
    Kind.BOOLEAN: (bool,),
    Kind.OBJECT: (dict,),
    Kind.ARRAY: (list,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: its type, what its value may be, and what happens when it is absent."""

    name: str
    kind: Kind = Kind.ANY
    default: object = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str | int, ...] = ()
    pattern: str | None = None
    """The whole string must match."""
    max_length: int | None = None
    is_required: bool = False
    effect: Effect = Effect.ALWAYS

    def refusal(self, value: object) -> str | None:
        """What `value` must be instead, or None when it is fine."""
        if self.kind is Kind.ANY:
            return None
        is_stray_bool = isinstance(value, bool) and self.kind is not Kind.BOOLEAN
        if is_stray_bool or not isinstance(value, _TYPES[self.kind]):
            return f"must be {self.kind.value}{self._range()}"
        if not self._is_in_range(value):
            return f"must be {self.kind.value}{self._range()}"
        return None

    def _is_in_range(self, value: object) -> bool:
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.minimum is None or value >= self.minimum
            return low and (self.maximum is None or value <= self.maximum) and self._is_choice(value)
        if isinstance(value, str):
            fits = self.max_length is None or len(value) <= self.max_length
            return fits and self._is_choice(value) and (self.pattern is None or bool(re.fullmatch(self.pattern, value)))
        return True

    def _is_choice(self, value: object) -> bool:
        return not self.choices or value in self.choices

    def _range(self) -> str:
        if self.choices:
            return " out of " + ", ".join(str(choice) for choice in self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f" in [{self.minimum:g}, {self.maximum:.0f}]"
        if self.minimum is not None:
            return f" of at least {self.minimum:g}"
        length = "" if self.max_length is None else f" of at most {self.max_length} characters"
        return length if self.pattern is None else f"{length} that matches {self.pattern}"


@dataclass(slots=True)
class Notes:
    """What the operator should hear about keys that do nothing."""

    limited: list[tuple[str, Effect]] = field(default_factory=list[tuple[str, Effect]])
    """The given keys that do not count always."""
    unknown: list[str] = field(default_factory=list[str])

    def without_effect(self, engine: Effect) -> list[str]:
        """The keys that do nothing with this engine."""
        return [path for path, effect in self.limited if effect is not engine]


class Section:
    """A JSON object whose values passed their keys' checks; absent ones have their default.

    Raises ConfigError, naming the key's path, for missing, mistyped and out-of-range values.
    """

    def __init__(self, raw: Mapping[str, object], *, path: str, keys: Iterable[Key], notes: Notes) -> None:
        self.path = path
        self._notes = notes
        self._values: dict[str, object] = {}
        self._given = {name for name, value in raw.items() if value is not None}
        known = {key.name: key for key in keys}
        for name in raw:
            if name not in known:
                notes.unknown.append(self.path_of(name))
        for key in known.values():
            self._values[key.name] = self._checked(key, raw)

    def path_of(self, name: str) -> str:
        """The path by which messages call a key of this section."""
        return f"{self.path}.{name}" if self.path else name

    def gives(self, name: str) -> bool:
        """Whether the file itself sets the key (null counts as absent)."""
        return name in self._given

    def integer(self, name: str) -> int:
        """Value of an integer key with a default."""
        return cast(int, self._values[name])

    def number(self, name: str) -> float:
        """Value of a number key with a default."""
        return float(cast(float, self._values[name]))

    def text(self, name: str) -> str:
        """Value of a string key with a default."""
        return cast(str, self._values[name])

    def flag(self, name: str) -> bool:
        """Value of a boolean key with a default."""
        return cast(bool, self._values[name])

    def value(self, name: str) -> object:
        """Value of a key of any kind; None when absent without a default."""
        return self._values[name]

    def members(self, name: str) -> Mapping[str, object]:
        """Value of an object key; empty when absent."""
        return cast(Mapping[str, object], self._values[name] or {})

    def child(self, name: str, keys: Iterable[Key]) -> "Section":
        """The section under an object key."""
        return Section(self.members(name), path=self.path_of(name), keys=keys, notes=self._notes)

    def children(self, name: str, keys: Iterable[Key]) -> list["Section"]:
        """The sections in an array key; an element that is no object is refused."""
        keys = tuple(keys)
        sections: list[Section] = []
        for i, element in enumerate(cast(list[object], self._values[name] or [])):
            path = f"{self.path_of(name)}[{i}]"
            if not isinstance(element, dict):
                raise ConfigError(f"{path} must be an object, got {shown(element)}.", param=path)
            sections.append(Section(cast(dict[str, object], element), path=path, keys=keys, notes=self._notes))
        return sections

    def strings(self, name: str) -> tuple[str, ...]:
        """Value of an array key that holds strings only; a bare string counts as a list of one."""
        value = self._values[name]
        if isinstance(value, str):
            return (value,) if value else ()
        elements = cast(list[object], value if isinstance(value, list) else [])
        if (value is not None and not isinstance(value, list)) or not all(isinstance(e, str) for e in elements):
            raise self.refuse(name, "must be an array of strings")
        return tuple(element for element in cast(list[str], elements) if element)

    def refuse(self, name: str, complaint: str) -> ConfigError:
        """The error for a key of this section, its value shown."""
        path = self.path_of(name)
        return ConfigError(f"{path} {complaint}, got {shown(self._values.get(name))}.", param=path)

    def _checked(self, key: Key, raw: Mapping[str, object]) -> object:
        path = self.path_of(key.name)
        value = raw.get(key.name)
        if value is None:
            if key.is_required:
                raise ConfigError(f"{path} is missing.", param=path)
            return key.default
        if complaint := key.refusal(value):
            raise ConfigError(f"{path} {complaint}, got {shown(value)}.", param=path)
        if key.effect is not Effect.ALWAYS:
            self._notes.limited.append((path, key.effect))
        return value


def shown(value: object) -> str:
    """A wrong value as a message shows it: short, on one line."""
    text = repr(value)
    return text if len(text) <= MAX_ECHO else text[:MAX_ECHO] + "..."
