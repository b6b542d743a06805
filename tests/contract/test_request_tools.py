"""Tools, the choice among them, response formats and the schemas in both."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher
from tests.contract.asking import HELLO, TOOL, accepted, refused

from mindserve.contract.json_schema import UNSUPPORTED_KEYWORDS
from mindserve.contract.request import ResponseFormat, ResponseFormatKind, Tool, ToolChoice, ToolChoiceMode

NAME_TEXT = (
    "The name of function must be a-z, A-Z, 0-9, common chinese characters, underscores and dashe "
    "within max length of 64, unexpected function name: "
)


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        ("", "Tools not array"),
        (1, "Tools not array"),
        ({"a": 1}, "Tools not array"),
        ([1], "Tool param invalid, tool type not exist"),
        ([{"type": None}], "Tool param invalid tool type"),
        ([{"type": 1}], "Tool param invalid tool string type"),
        ([{"type": "code"}], "Tool param not function type"),
        ([{"type": "function"}], "Tool param invalid, tool function not exist"),
        ([{"type": "function", "function": None}], "Tool param invalid function object"),
        ([{"type": "function", "function": {}}], "Function object invalid, function name not exist"),
        ([tool(name=None)], "Function object invalid name type"),
        ([tool(name="")], NAME_TEXT),
        ([tool(name="a b")], NAME_TEXT + "a b"),
        ([tool(name="f\n")], NAME_TEXT + "f\n"),
        ([tool(description=5)], "Function object invalid description type"),
        ([tool(strict="yes")], "Function object invalid strict type"),
        ([tool(parameters=[])], "Function object invalid parameters type"),
        ([tool(parameters={"type": 5})], "Function object invalid parameters.type type"),
        ([tool(parameters={"properties": []})], "Function object invalid parameters.properties type"),
        ([tool(parameters={"properties": {"a": 1}})], "Function object invalid parameters.properties.a type"),
        ([tool(parameters={"required": "a"})], "Function object invalid parameters.required type"),
        ([tool(parameters={"required": [1]})], "Function object invalid parameters.required type"),
        (
            [tool(parameters={"additionalProperties": 1})],
            "Function object invalid parameters.additionalProperties type",
        ),
        ([TOOL] * 4097, "Tools must not be more than 4096"),
    ],
)
def test_tools_refused(tools: object, text: str) -> None:
    assert refused(tools=tools).message == text


def test_the_error_says_which_tool() -> None:
    assert refused(tools=[TOOL, {"type": "code"}]).param == "tools[1]"


@pytest.mark.parametrize("tools", [None, [], {}])
def test_no_tools(tools: object) -> None:
    request = accepted(tools=tools, tool_choice="auto")
    assert (request.tools, request.tool_choice) == ((), ToolChoice())


def test_tools_as_read() -> None:
    parameters = {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}
    tools = [
        tool(name="查询-1", parameters=parameters, strict=True, description="d"),
        tool(parameters=None, strict=None),
    ]
    request = accepted(tools=tools)
    assert request.tool_choice == ToolChoice(mode=ToolChoiceMode.AUTO)
    assert request.tools == (
        Tool(name="查询-1", parameters=parameters, strict=True, raw=tools[0]),
        Tool(name="f", parameters=None, strict=False, raw=tools[1]),
    )


def test_null_in_a_function_is_absent() -> None:
    nulls = dict.fromkeys(("type", "properties", "required", "additionalProperties"))
    assert accepted(tools=[tool(parameters=nulls, description=None, strict=None)]).tools[0].parameters == nulls


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("always", "Parameter tool_choice string not in [none, auto, required]"),
        ("", "Parameter tool_choice string not in [none, auto, required]"),
        ("named", "Parameter tool_choice string not in [none, auto, required]"),
        (1, "Parameter tool_choice not string or object"),
        ([], "Parameter tool_choice not string or object"),
        ({}, "Tool param invalid, tool type not exist"),
        ({"type": "function", "function": {"name": 1}}, "Function object invalid name type"),
        (tool(name="g"), "Parameter tool_choice names a function that is not in tools: g"),
    ],
)
def test_choice_refused(choice: object, text: str) -> None:
    error = refused(tools=[TOOL], tool_choice=choice)
    assert (error.message, error.param) == (text, "tool_choice")


def test_choice() -> None:
    modes = {None: ToolChoiceMode.AUTO, "auto": ToolChoiceMode.AUTO, "none": ToolChoiceMode.NONE}
    for choice, mode in {**modes, "required": ToolChoiceMode.REQUIRED}.items():
        assert accepted(tools=[TOOL], tool_choice=choice).tool_choice == ToolChoice(mode=mode)
    named = accepted(tools=[TOOL], tool_choice=tool()).tool_choice
    assert named == ToolChoice(mode=ToolChoiceMode.NAMED, name="f")


@pytest.mark.parametrize("choice", ["required", tool()])
def test_demands_need_tools(choice: object) -> None:
    text = "Parameter tool_choice cannot demand a function call without tools"
    assert refused(tool_choice=choice).message == text
    assert refused(tool_choice=choice, tools=[]).message == text


def test_order_of_errors() -> None:
    assert "Model not found" in refused(model="x", tool_choice=1, tools=1, messages=[], temperature=-1).message
    assert "tool_choice" in refused(tool_choice=1, tools=1, messages=[], temperature=-1).message
    assert "Tools" in refused(tools=1, messages=[], temperature=-1).message
    assert "messages" in refused(messages=[], temperature=-1, n=0).message
    assert "temperature" in refused(messages=HELLO, temperature=-1, n=0, max_tokens=0).message
    assert "[n]" in refused(n=0, max_tokens=0, stream=1).message
    assert "max_tokens" in refused(max_tokens=0, stream=1, response_format=1).message
    assert "stream" in refused(stream=1, response_format=1).message
    assert "response_format" in refused(response_format=1, best_of=1, n=2).message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("json_object", "Parameter response_format must be an object"),
        ({}, "Parameter response_format must contain 'type' field"),
        ({"type": 1}, "Parameter response_format.type must be a string"),
        (
            {"type": "xml"},
            "Parameter response_format.type must be 'json_object', 'json_schema' or 'text', got 'xml'",
        ),
        (
            {"type": "json_schema"},
            "Parameter response_format.json_schema is required when type is 'json_schema'",
        ),
        ({"type": "json_schema", "json_schema": 1}, "Parameter response_format.json_schema must be an object"),
        ({"type": "json_schema", "json_schema": {}}, "Parameter response_format.json_schema.name is required"),
        (
            {"type": "json_schema", "json_schema": {"name": 1}},
            "Parameter response_format.json_schema.name must be a string",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": ""}},
            "Parameter response_format.json_schema.name must be 1-64 characters",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "s"}},
            "Parameter response_format.json_schema.schema is required when type is 'json_schema'",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "s", "schema": 1}},
            "Parameter response_format.json_schema.schema must be an object",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "s", "schema": {}, "strict": 1}},
            "Parameter response_format.json_schema.strict must be a boolean",
        ),
    ],
)
def test_response_format_refused(value: object, text: str) -> None:
    error = refused(response_format=value)
    assert (error.message, error.param) == (text, "response_format")


def schema_format(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **fields}}


def test_response_format() -> None:
    assert accepted(response_format={"type": "text"}).response_format == ResponseFormat()
    assert accepted(response_format={"type": "json_object"}).response_format.kind is ResponseFormatKind.JSON_OBJECT
    schema = {"type": ["object", "null"], "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": [1]}}}
    assert accepted(response_format=schema_format(schema, strict=True)).response_format == ResponseFormat(
        kind=ResponseFormatKind.JSON_SCHEMA, schema=schema, strict=True
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "date"}, "unsupported type 'date' at 'schema'"),
        ({"type": ["string", "x"]}, "unsupported type 'x' at 'schema'"),
        ({"type": 5}, "'type' at 'schema' must be a string or an array of strings"),
        ({"type": []}, "'type' at 'schema' must be a string or an array of strings"),
        ({"properties": {"type": {"type": "x"}}}, "unsupported type 'x' at 'schema.properties.type'"),
        ({"properties": {"a": True}}, "'schema.properties.a' must be an object"),
        ({"properties": 1}, "'properties' at 'schema' must be an object"),
        ({"items": []}, "'items' at 'schema' must be an object"),
        ({"items": {"items": {"type": "x"}}}, "unsupported type 'x' at 'schema.items.items'"),
        ({"anyOf": {}}, "'anyOf' at 'schema' must be an array"),
        ({"allOf": [{}, {"not": {}}]}, "unsupported keyword 'not' at 'schema.allOf.1'"),
        ({"$defs": {"a": {"uniqueItems": True}}}, "unsupported keyword 'uniqueItems' at 'schema.$defs.a'"),
        ({"additionalProperties": {"if": {}}}, "unsupported keyword 'if' at 'schema.additionalProperties'"),
        ({"additionalProperties": 1}, "'additionalProperties' at 'schema' must be an object"),
        ({"required": "a"}, "'required' at 'schema' must be an array"),
        ({"required": [1]}, "elements of 'required' at 'schema' must be strings"),
    ],
)
def test_schema_refused(schema: dict[str, Any], text: str) -> None:
    assert refused(response_format=schema_format(schema)).message == f"Invalid json_schema: {text}"


def test_names_of_properties_are_no_keywords() -> None:
    schema = {"properties": {"not": {"type": "string"}, "if": {}}, "additionalProperties": False, "required": ["not"]}
    assert accepted(response_format=schema_format(schema)).response_format.schema == schema


def test_strict_tools_have_their_schema_checked() -> None:
    bad = {"properties": {"a": {"uniqueItems": True}}}
    text = "Invalid json_schema: unsupported keyword 'uniqueItems' at 'parameters.properties.a'"
    strict, other = tool(parameters=bad, strict=True), tool(name="other")
    assert refused(tools=[other, strict]).message == text
    assert refused(tools=[strict], tool_choice="required").message == text
    assert refused(tools=[strict, other], tool_choice=tool()).message == text


def test_schemas_out_of_play_are_not_checked() -> None:
    bad = {"properties": {"a": {"uniqueItems": True}}}
    strict, loose, other = tool(parameters=bad, strict=True), tool(parameters=bad), tool(name="other")
    assert accepted(tools=[loose]).tools[0].parameters == bad
    assert accepted(tools=[loose], tool_choice="required").tools[0].parameters == bad
    assert accepted(tools=[strict], tool_choice="none").tools[0].strict
    assert accepted(tools=[strict, other], tool_choice=other).tool_choice.name == "other"


@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED_KEYWORDS))
def test_unsupported_keywords_are_those_of_the_grammar_engine(keyword: str) -> None:
    assert "Unimplemented" in grammar_error({keyword: {}})


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("patternProperties", {"^a": {"type": "string"}}),
        ("prefixItems", [{"type": "string"}]),
        ("minItems", 1),
        ("pattern", "^a"),
        ("multipleOf", 2),
        ("const", 1),
        ("oneOf", [{"type": "string"}]),
        ("minProperties", 1),
        ("format", "date"),
    ],
)
def test_what_the_grammar_engine_can_is_accepted(keyword: str, value: object) -> None:
    assert grammar_error({keyword: value}) == ""
    assert accepted(response_format=schema_format({keyword: value})).response_format.schema == {keyword: value}


def grammar_error(schema: dict[str, Any]) -> str:
    return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)), None) or ""
