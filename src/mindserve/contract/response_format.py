"""`response_format`: free text, any JSON object, or JSON of a given schema."""

from typing import Any

from mindserve.contract.failure import failure
from mindserve.contract.json_schema import check_json_schema
from mindserve.contract.json_values import Document, is_object
from mindserve.contract.request import ResponseFormat, ResponseFormatKind
from mindserve.errors import InvalidRequest

PARAM = "response_format"
MAX_NAME_CHARS = 64

NOT_OBJECT = "Parameter response_format must be an object"
TYPE_MISSING = "Parameter response_format must contain 'type' field"
TYPE_NOT_STRING = "Parameter response_format.type must be a string"
TYPE_UNKNOWN = "Parameter response_format.type must be 'json_object', 'json_schema' or 'text', got '{type}'"
SCHEMA_FIELD_MISSING = "Parameter response_format.json_schema is required when type is 'json_schema'"
SCHEMA_FIELD_NOT_OBJECT = "Parameter response_format.json_schema must be an object"
NAME_MISSING = "Parameter response_format.json_schema.name is required"
NAME_NOT_STRING = "Parameter response_format.json_schema.name must be a string"
NAME_TOO_LONG = "Parameter response_format.json_schema.name must be 1-64 characters"
SCHEMA_MISSING = "Parameter response_format.json_schema.schema is required when type is 'json_schema'"
SCHEMA_NOT_OBJECT = "Parameter response_format.json_schema.schema must be an object"
STRICT_NOT_BOOLEAN = "Parameter response_format.json_schema.strict must be a boolean"

_TEXT = ResponseFormat()
_JSON_OBJECT = ResponseFormat(kind=ResponseFormatKind.JSON_OBJECT)


def read_response_format(document: Document) -> ResponseFormat:
    """TEXT where absent or null."""
    value: Any = document.get(PARAM)
    if value is None:
        return _TEXT
    if not is_object(value):
        raise _failure(NOT_OBJECT)
    match value.get("type"):
        case None:
            raise _failure(TYPE_MISSING)
        case "text":
            return _TEXT
        case "json_object":
            return _JSON_OBJECT
        case "json_schema":
            return _read_json_schema(value.get("json_schema"))
        case str() as unknown:
            raise _failure(TYPE_UNKNOWN, type=unknown)
        case _:
            raise _failure(TYPE_NOT_STRING)


def _read_json_schema(value: Any) -> ResponseFormat:
    if value is None:
        raise _failure(SCHEMA_FIELD_MISSING)
    if not is_object(value):
        raise _failure(SCHEMA_FIELD_NOT_OBJECT)
    _check_name(value.get("name"))
    schema = value.get("schema")
    if schema is None:
        raise _failure(SCHEMA_MISSING)
    if not is_object(schema):
        raise _failure(SCHEMA_NOT_OBJECT)
    check_json_schema(schema, root="schema", param=PARAM)
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise _failure(STRICT_NOT_BOOLEAN)
    return ResponseFormat(kind=ResponseFormatKind.JSON_SCHEMA, schema=schema, strict=bool(strict))


def _check_name(name: object) -> None:
    if name is None:
        raise _failure(NAME_MISSING)
    if not isinstance(name, str):
        raise _failure(NAME_NOT_STRING)
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise _failure(NAME_TOO_LONG)


def _failure(text: str, **echoes: object) -> InvalidRequest:
    return failure(text, param=PARAM, **echoes)
