"""`tools` and `tool_choice`."""

from collections.abc import Iterable
from typing import Any

from mindserve.contract.failure import failure, read_each
from mindserve.contract.function_name import check_function_name
from mindserve.contract.json_schema import check_json_schema
from mindserve.contract.json_values import Document, is_array, is_object
from mindserve.contract.request import Tool, ToolChoice, ToolChoiceMode

MAX_TOOLS = 4096
"""Ours: the contract names no bound, and no prompt holds as many."""

NOT_ARRAY = "Tools not array"
TOO_MANY = "Tools must not be more than {limit}"
TYPE_MISSING = "Tool param invalid, tool type not exist"
TYPE_NULL = "Tool param invalid tool type"
TYPE_NOT_STRING = "Tool param invalid tool string type"
TYPE_NOT_FUNCTION = "Tool param not function type"
FUNCTION_MISSING = "Tool param invalid, tool function not exist"
FUNCTION_NOT_OBJECT = "Tool param invalid function object"
NAME_MISSING = "Function object invalid, function name not exist"
NAME_NOT_STRING = "Function object invalid name type"
WRONG_TYPE = "Function object invalid {key} type"
CHOICE_UNKNOWN = "Parameter tool_choice string not in [none, auto, required]"
CHOICE_WRONG_TYPE = "Parameter tool_choice not string or object"
CHOICE_WITHOUT_TOOLS = "Parameter tool_choice cannot demand a function call without tools"
CHOICE_NOT_IN_TOOLS = "Parameter tool_choice names a function that is not in tools: {name}"

_FUNCTION_TYPES = {"strict": bool, "description": str, "parameters": dict}
_PARAMETERS_TYPES = {"type": str, "properties": dict, "required": list, "additionalProperties": (bool, dict)}


def read_tool_choice(document: Document) -> ToolChoice:
    """The choice as if there were tools; `settle_tool_choice` sees to those."""
    choice = document.get("tool_choice")
    if choice is None:
        return ToolChoice(mode=ToolChoiceMode.AUTO)
    if is_object(choice):
        return ToolChoice(mode=ToolChoiceMode.NAMED, name=_read_function(choice, param="tool_choice")["name"])
    if not isinstance(choice, str):
        raise failure(CHOICE_WRONG_TYPE, param="tool_choice")
    if choice not in ("none", "auto", "required"):
        raise failure(CHOICE_UNKNOWN, param="tool_choice")
    return ToolChoice(mode=ToolChoiceMode(choice))


def read_tools(document: Document) -> tuple[Tool, ...]:
    """The functions on offer; none for absent, null, `[]` and `{}`."""
    tools: Any = document.get("tools")
    if tools is None or tools == {}:
        return ()
    if not is_array(tools):
        raise failure(NOT_ARRAY, param="tools")
    if len(tools) > MAX_TOOLS:
        raise failure(TOO_MANY, param="tools", limit=MAX_TOOLS)
    return read_each(tools, _read_tool, param="tools")


def settle_tool_choice(choice: ToolChoice, tools: tuple[Tool, ...]) -> ToolChoice:
    """Hold the choice against the tools that came: a demand needs them, and a name must be among them."""
    demands = choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
    if not tools:
        if demands:
            raise failure(CHOICE_WITHOUT_TOOLS, param="tool_choice")
        return ToolChoice()
    if choice.name is not None and all(tool.name != choice.name for tool in tools):
        raise failure(CHOICE_NOT_IN_TOOLS, param="tool_choice", name=choice.name)
    if choice.mode is not ToolChoiceMode.NONE:
        in_play = [tool for tool in tools if choice.name in (None, tool.name)]
        _check_strict_schemas(in_play)
    return choice


def _check_strict_schemas(tools: Iterable[Tool]) -> None:
    """What is not strict is followed as far as a grammar can."""
    for tool in tools:
        if tool.strict and tool.parameters is not None:
            check_json_schema(tool.parameters, root="parameters", param="tools")


def _read_tool(tool: Any) -> Tool:
    function = _read_function(tool, param="tools")
    for key, expected in _FUNCTION_TYPES.items():
        if function.get(key) is not None and not isinstance(function[key], expected):
            raise failure(WRONG_TYPE, param="tools", key=key)
    parameters = function.get("parameters")
    if parameters is not None:
        _check_parameters(parameters)
    return Tool(name=function["name"], parameters=parameters, strict=bool(function.get("strict")), raw=tool)


def _read_function(tool: Any, *, param: str) -> dict[str, Any]:
    """The `function` of a tool, or of a `tool_choice` of the same shape."""
    if not is_object(tool) or "type" not in tool:
        raise failure(TYPE_MISSING, param=param)
    if tool["type"] is None:
        raise failure(TYPE_NULL, param=param)
    if not isinstance(tool["type"], str):
        raise failure(TYPE_NOT_STRING, param=param)
    if tool["type"] != "function":
        raise failure(TYPE_NOT_FUNCTION, param=param)
    if "function" not in tool:
        raise failure(FUNCTION_MISSING, param=param)
    function = tool["function"]
    if not is_object(function):
        raise failure(FUNCTION_NOT_OBJECT, param=param)
    if "name" not in function:
        raise failure(NAME_MISSING, param=param)
    if not isinstance(function["name"], str):
        raise failure(NAME_NOT_STRING, param=param)
    check_function_name(function["name"], param=param)
    return function


def _check_parameters(parameters: dict[str, Any]) -> None:
    """The types that the contract gives; what is below is the model's to read."""
    for key, expected in _PARAMETERS_TYPES.items():
        if parameters.get(key) is not None and not isinstance(parameters[key], expected):
            raise failure(WRONG_TYPE, param="tools", key=f"parameters.{key}")
    required: list[Any] = parameters.get("required") or []
    if not all(isinstance(name, str) for name in required):
        raise failure(WRONG_TYPE, param="tools", key="parameters.required")
    properties: dict[str, Any] = parameters.get("properties") or {}
    for name, schema in properties.items():
        if not is_object(schema):
            raise failure(WRONG_TYPE, param="tools", key=f"parameters.properties.{name}")
