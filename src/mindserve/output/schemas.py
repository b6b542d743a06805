"""JSON schemas of tool parameters, made ready to constrain a model."""

from collections.abc import Mapping
from typing import Any, cast

Schema = Mapping[str, Any]

_NESTED_MAPS = ("properties", "$defs", "definitions")
_NESTED_LISTS = ("anyOf", "oneOf", "prefixItems")
_NESTED = ("items", "additionalProperties")
_OTHER_RULES = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties")
"""Keywords beside which an absent additionalProperties cannot simply be made false."""

ANY_OBJECT: Schema = {"type": "object"}


def closed(parameters: Schema | None) -> dict[str, Any]:
    """The schema of a function's arguments: an object, and where it does not say so, without other properties.

    Contract: `additionalProperties` of tool parameters is false by default. No parameters at all means `{}`.
    """
    schema = _close(parameters or {})
    if not any(keyword in schema for keyword in _OTHER_RULES):
        schema["additionalProperties"] = False
    if not any(keyword in schema for keyword in ("type", "$ref", "allOf", "anyOf", "oneOf")):
        schema["type"] = "object"
    return schema


def _close(schema: Schema) -> dict[str, Any]:
    result = dict(schema)
    for keyword in _NESTED_MAPS:
        if isinstance(nested := result.get(keyword), Mapping):
            result[keyword] = {key: _close_any(value) for key, value in cast("Schema", nested).items()}
    for keyword in _NESTED_LISTS:
        if isinstance(nested := result.get(keyword), list):
            result[keyword] = [_close_any(value) for value in cast("list[Any]", nested)]
    for keyword in _NESTED:
        if keyword in result:
            result[keyword] = _close_any(result[keyword])
    if "properties" in result and not any(keyword in result for keyword in _OTHER_RULES):
        result["additionalProperties"] = False
    return result


def _close_any(schema: Any) -> Any:
    return _close(cast("Schema", schema)) if isinstance(schema, Mapping) else schema


def moved(schema: Any, prefix: str) -> Any:
    """The schema as part of a larger one, at the JSON pointer `prefix`: its own references still lead home."""
    if isinstance(schema, Mapping):
        items = cast("Schema", schema).items()
        return {key: _moved_ref(key, value, prefix) or moved(value, prefix) for key, value in items}
    if isinstance(schema, list):
        return [moved(item, prefix) for item in cast("list[Any]", schema)]
    return schema


def _moved_ref(key: str, value: Any, prefix: str) -> str | None:
    is_local = key == "$ref" and isinstance(value, str) and value.startswith("#")
    return prefix + value[1:] if is_local else None


def type_of(schema: Any) -> str | None:
    """The schema's one type, or of several the first that is not null."""
    named: Any = cast("Schema", schema).get("type") if isinstance(schema, Mapping) else None
    several = cast("list[Any]", named) if isinstance(named, list) else [named]
    return next((item for item in several if isinstance(item, str) and item != "null"), None)


def properties_of(schema: Schema) -> dict[str, Any]:
    """The schema's properties by name."""
    properties = schema.get("properties")
    return dict(cast("Schema", properties)) if isinstance(properties, Mapping) else {}


def required_of(schema: Schema) -> frozenset[str]:
    """Names of the properties that must be there."""
    required = schema.get("required")
    return frozenset(map(str, cast("list[Any]", required))) if isinstance(required, list) else frozenset()


def choices_of(schema: Any) -> list[Any]:
    """The values of `enum` or `const`; empty where the schema has neither."""
    if not isinstance(schema, Mapping):
        return []
    given = cast("Schema", schema)
    if "const" in given:
        return [given["const"]]
    enum = given.get("enum")
    return list(cast("list[Any]", enum)) if isinstance(enum, list) else []
