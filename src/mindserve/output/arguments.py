"""From what a match collected to the name and the arguments of a call."""

import ast
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mindserve.output.formats.base import Arguments, JsonArguments, JsonCall, ToolFormat
from mindserve.output.matcher import Fields, Parameter, load_json
from mindserve.output.plan import ToolPlan
from mindserve.output.schemas import properties_of, type_of


class ParsedCall(NamedTuple):
    """A complete call."""

    name: str
    arguments: str
    """JSON text."""


def read_call(format_: ToolFormat, fields: Fields, tools: ToolPlan) -> ParsedCall | None:
    """The call, or None if the pieces do not make a valid one."""
    try:
        name, arguments = _read(format_, fields, tools)
    except (ValueError, TypeError, RecursionError):
        return None
    return ParsedCall(name, arguments) if name else None


def _read(format_: ToolFormat, fields: Fields, tools: ToolPlan) -> tuple[str, str]:
    match format_.arguments:
        case JsonCall() as keys:
            return _from_json_call(fields.json_value, keys)
        case JsonArguments(is_verbatim=True):
            return fields.name or "", fields.json_text
        case JsonArguments():
            return fields.name or "", _dump(fields.json_value)
        case Arguments.PYTHON_CALL:
            return fields.name or "", _dump(fields.keywords)
        case Arguments.PARAMETERS:
            properties = properties_of(tools.parameters.get(fields.name or "") or {})
            return fields.name or "", _dump(
                {item.key: _cast(item, type_of(properties.get(item.key))) for item in fields.parameters}
            )


def _from_json_call(call: Mapping[str, Any], keys: JsonCall) -> tuple[str, str]:
    if keys.name_key not in call or keys.arguments_key not in call:
        raise ValueError("a key is missing")
    name, arguments = call[keys.name_key], call[keys.arguments_key]
    if not isinstance(name, str):
        raise TypeError("the name is no string")
    if isinstance(arguments, str):
        load_json(arguments)
        return name, arguments
    return name, _dump(arguments)


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as an escape by the model
        return json.dumps(value, allow_nan=False)
    return text


def _cast(parameter: Parameter, type_: str | None) -> Any:
    """The value in the schema's type; as text where it does not fit it."""
    text = parameter.value
    if parameter.is_string is not True and text.lower() == "null":
        return None
    if type_ is None and parameter.is_string is False:
        type_ = "object"
    try:
        return _CASTS[type_](text) if type_ in _CASTS else text
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text


def _cast_number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and "e" not in text.lower() and "." not in text else number


def _cast_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _cast_json(text: str) -> Any:
    try:
        return load_json(text)
    except ValueError:
        return ast.literal_eval(text.strip())


_CASTS = {
    "integer": int,
    "number": _cast_number,
    "boolean": _cast_boolean,
    "object": _cast_json,
    "array": _cast_json,
}
