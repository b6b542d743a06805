"""How a top-level parameter that stands alone is read: type, range, texts and documentation in one object.

`read` takes the decoded body and gives the value for `ChatRequest`, None for absent or null. `json_schema` describes
the same rule for the documentation page. `parameters.py` lists the parameters themselves.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from mindserve.contract.failure import failure
from mindserve.contract.json_values import Document, is_array

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1


class Kind(StrEnum):
    """JSON type of a scalar, as the type error's text calls it."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    UNSIGNED = "unsigned"
    FLOAT = "float"

    def admits(self, value: object) -> bool:
        """Whether a JSON value is of this type. `true` is no number; integers beyond 64 bits count as floats."""
        match self:
            case Kind.BOOLEAN:
                return type(value) is bool
            case Kind.INTEGER:
                return type(value) is int and INT64_MIN <= value <= UINT64_MAX
            case Kind.UNSIGNED:
                return type(value) is int and 0 <= value <= UINT64_MAX
            case Kind.FLOAT:
                return type(value) is int or type(value) is float


class Field(Protocol):
    """One parameter of the request."""

    @property
    def name(self) -> str:
        """Its key in the body."""
        ...

    def read(self, document: Document) -> Any:
        """The checked value, None where the client left it out. Raises InvalidRequest."""
        ...

    def json_schema(self) -> dict[str, Any]:
        """The same rule as JSON schema."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A boolean or a number."""

    name: str
    kind: Kind
    description: str
    default: bool | float | None = None
    minimum: float | None = None
    is_minimum_excluded: bool = False
    maximum: float | None = None
    also_valid: int | None = None
    """A value outside the range that is fine (-1 of top_k)."""
    range_text: str = ""
    """Shown for a value outside the range; `{value}` is that value."""
    type_text: str = "{name} must be {kind} type."
    read_beside: tuple[str, ...] = ()
    """Ignored, unchecked, unless one of these keys is there too, be it null."""
    any_value_beside: str | None = None
    """With this parameter true the type is checked, the range is not."""
    example: bool | float | None = None

    def read(self, document: Document) -> Any:
        """The value, None where absent, null or ignored."""
        value = document.get(self.name)
        if value is None or (self.read_beside and not any(key in document for key in self.read_beside)):
            return None
        if not self.kind.admits(value):
            raise failure(self.type_text, param=self.name, name=self.name, kind=self.kind)
        if not (self._is_in_range(value) or (self.any_value_beside and document.get(self.any_value_beside) is True)):
            raise failure(self.range_text, param=self.name, value=value)
        return float(value) if self.kind is Kind.FLOAT else value

    def _is_in_range(self, value: float) -> bool:
        if value == self.also_valid:
            return True
        if self.minimum is not None and (value <= self.minimum if self.is_minimum_excluded else value < self.minimum):
            return False
        return self.maximum is None or value <= self.maximum

    def json_schema(self) -> dict[str, Any]:
        """Type (null allowed), range, default, description and example."""
        json_type = {Kind.BOOLEAN: "boolean", Kind.FLOAT: "number"}.get(self.kind, "integer")
        limits: dict[str, Any] = {}
        if self.minimum is not None:
            limits["exclusiveMinimum" if self.is_minimum_excluded else "minimum"] = self.minimum
        if self.maximum is not None:
            limits["maximum"] = self.maximum
        schema: dict[str, Any] = {"type": [json_type, "null"], **limits}
        if self.also_valid is not None:
            schema = {"anyOf": [{"type": json_type, **limits}, {"const": self.also_valid}, {"type": "null"}]}
        return schema | documentation(description=self.description, default=self.default, example=self.example)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStrings:
    """`stop`: one string or a list of them; lengths in Unicode characters."""

    name: str = "stop"
    description: str
    max_chars: int
    """Of one string, alone or in a list."""
    max_total_chars: int = 32768
    max_items: int | None = None

    LENGTH_TEXT = "Input validation error: length of `stop` must be in [1, {limit}], but got {length}"
    LIST_TEXT = (
        "Input validation error: `stop` must be list[string] if list, "
        "and item length in [1, {limit}] with total <= {total}"
    )
    TYPE_TEXT = "Input validation error: param stop must be string or list[string]"

    def read(self, document: Document) -> tuple[str, ...]:
        """The strings; none for absent, null or an empty list."""
        value = document.get(self.name)
        if value is None:
            return ()
        if isinstance(value, str):
            if not 1 <= len(value) <= self.max_chars:
                raise failure(self.LENGTH_TEXT, param=self.name, limit=self.max_chars, length=len(value))
            return (value,)
        if not is_array(value):
            raise failure(self.TYPE_TEXT, param=self.name)
        return self._read_list(value)

    def _read_list(self, items: list[Any]) -> tuple[str, ...]:
        is_valid = self.max_items is None or len(items) <= self.max_items
        total = 0
        for item in items:
            is_valid = is_valid and isinstance(item, str) and 1 <= len(item) <= self.max_chars
            if not is_valid:
                break
            total += len(item)
        if not is_valid or total > self.max_total_chars:
            raise failure(self.LIST_TEXT, param=self.name, limit=self.max_chars, total=self.max_total_chars)
        return tuple(items)

    def json_schema(self) -> dict[str, Any]:
        """A string, a list of strings, or null."""
        one: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": self.max_chars}
        many: dict[str, Any] = {"type": "array", "items": one}
        if self.max_items is not None:
            many["maxItems"] = self.max_items
        return {"anyOf": [one, many, {"type": "null"}]} | documentation(
            description=self.description, default=None, example=["\n\n"]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """`stop_token_ids`: elements that are no token id are ignored, null is refused."""

    name: str
    description: str

    NOT_ARRAY_TEXT = "Parameter {name} not array"
    NULL_TEXT = "Parameter {name} not list[int]"

    def read(self, document: Document) -> tuple[int, ...]:
        """The ids in [0, 2^31-1], each once, in the order sent."""
        value = document.get(self.name)
        if value is None:
            return ()
        if not is_array(value):
            raise failure(self.NOT_ARRAY_TEXT, param=self.name, name=self.name)
        ids: dict[int, None] = {}
        for item in value:
            if item is None:
                raise failure(self.NULL_TEXT, param=self.name, name=self.name)
            if type(item) is int and 0 <= item <= INT32_MAX:
                ids[item] = None
        return tuple(ids)

    def json_schema(self) -> dict[str, Any]:
        """A list of integers, or null."""
        schema = {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX}}
        return schema | documentation(description=self.description, default=None, example=[2])


def documentation(*, description: str, default: object, example: object) -> dict[str, Any]:
    """The keys of a JSON schema that explain rather than check."""
    described: dict[str, Any] = {"description": description, "default": default}
    if example is not None:
        described["examples"] = [example]
    return described
