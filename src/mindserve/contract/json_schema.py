"""A JSON schema that generation shall follow: well-formed where it counts, and only keywords that can be enforced."""

from collections.abc import Callable, Mapping
from typing import Any

from mindserve.contract.failure import failure
from mindserve.contract.json_values import is_array, is_object
from mindserve.errors import InvalidRequest

TYPE_NAMES = frozenset(["string", "integer", "number", "boolean", "array", "object", "null"])

UNSUPPORTED_KEYWORDS = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
    ]
)
"""What no grammar of ours can hold a model to. Refused rather than ignored: the client counts on them."""

UNSUPPORTED_TYPE = "Invalid json_schema: unsupported type '{type}' at '{path}'"
UNSUPPORTED_KEYWORD = "Invalid json_schema: unsupported keyword '{keyword}' at '{path}'"
TYPE_NOT_STRING = "Invalid json_schema: 'type' at '{path}' must be a string or an array of strings"
NOT_OBJECT = "Invalid json_schema: '{keyword}' at '{path}' must be an object"
NOT_ARRAY = "Invalid json_schema: '{keyword}' at '{path}' must be an array"
NOT_STRINGS = "Invalid json_schema: elements of 'required' at '{path}' must be strings"
NOT_SCHEMA = "Invalid json_schema: '{path}' must be an object"

_Schema = Mapping[str, Any]
_Path = tuple[str, ...]
"""Joined only for a message: keys may be long and many."""


def check_json_schema(schema: _Schema, *, root: str, param: str) -> None:
    """Raise InvalidRequest naming what is wrong and where; `root` is what the text calls the schema itself.

    The body's nesting limit bounds the recursion.
    """
    _Checker(param).check(schema, (root,))


class _Checker:
    """Walks one schema; `path` is where it stands (`schema`, `properties`, `a`)."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._by_keyword: dict[str, Callable[[Any, str, _Path], None]] = {
            "type": self._check_type,
            "required": self._check_required,
            "items": self._check_object,
            **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), self._check_named),
            **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), self._check_listed),
            **dict.fromkeys(("additionalProperties", "additionalItems"), self._check_object_or_boolean),
            **dict.fromkeys(UNSUPPORTED_KEYWORDS, self._refuse),
        }

    def check(self, schema: _Schema, path: _Path) -> None:
        for keyword, value in schema.items():
            check_keyword = self._by_keyword.get(keyword)
            if check_keyword is not None:
                check_keyword(value, keyword, path)

    def _check_type(self, value: Any, _keyword: str, path: _Path) -> None:
        names: list[Any] = value if is_array(value) and value else [value]
        for name in names:
            if not isinstance(name, str):
                raise self._failure(TYPE_NOT_STRING, path)
            if name not in TYPE_NAMES:
                raise self._failure(UNSUPPORTED_TYPE, path, type=name)

    def _check_required(self, value: Any, keyword: str, path: _Path) -> None:
        if not is_array(value):
            raise self._failure(NOT_ARRAY, path, keyword=keyword)
        if not all(isinstance(name, str) for name in value):
            raise self._failure(NOT_STRINGS, path)

    def _check_named(self, value: Any, keyword: str, path: _Path) -> None:
        """An object of schemas."""
        if not is_object(value):
            raise self._failure(NOT_OBJECT, path, keyword=keyword)
        for name, schema in value.items():
            self._check_schema(schema, (*path, keyword, name))

    def _check_listed(self, value: Any, keyword: str, path: _Path) -> None:
        """An array of schemas."""
        if not is_array(value):
            raise self._failure(NOT_ARRAY, path, keyword=keyword)
        for index, schema in enumerate(value):
            self._check_schema(schema, (*path, keyword, str(index)))

    def _check_object(self, value: Any, keyword: str, path: _Path) -> None:
        if not is_object(value):
            raise self._failure(NOT_OBJECT, path, keyword=keyword)
        self.check(value, (*path, keyword))

    def _check_object_or_boolean(self, value: Any, keyword: str, path: _Path) -> None:
        if not isinstance(value, bool):
            self._check_object(value, keyword, path)

    def _check_schema(self, schema: Any, path: _Path) -> None:
        if not is_object(schema):
            raise self._failure(NOT_SCHEMA, path)
        self.check(schema, path)

    def _failure(self, text: str, path: _Path, **echoes: object) -> InvalidRequest:
        return failure(text, param=self._param, path=".".join(path), **echoes)

    def _refuse(self, _value: Any, keyword: str, path: _Path) -> None:
        raise self._failure(UNSUPPORTED_KEYWORD, path, keyword=keyword)
