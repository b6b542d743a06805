"""The request body as JSON schema, for the documentation: from the same objects and tables that check it.

A schema cannot say everything (what excludes what, sizes of decoded media); the texts of errors do.
"""

from typing import Any

from mindserve.contract import function_name
from mindserve.contract.json_schema import TYPE_NAMES, UNSUPPORTED_KEYWORDS
from mindserve.contract.parameters import MODE_RULES
from mindserve.contract.parts import MAX_MEDIA_PARTS, MEDIA_RULES
from mindserve.contract.request import PartKind, ResponseFormatKind
from mindserve.contract.response_format import MAX_NAME_CHARS
from mindserve.contract.template_options import RESERVED_KEYS, THINKING_BUDGET
from mindserve.contract.tools import MAX_TOOLS
from mindserve.settings.values import ApiMode

_Schema = dict[str, Any]


def request_schema(mode: ApiMode) -> _Schema:
    """JSON schema of the body of `POST /v1/chat/completions`."""
    rules = MODE_RULES[mode]
    properties: _Schema = {
        "model": {"type": "string", "minLength": 1, "description": "The served model, or one of its adapters."},
        "messages": _messages(),
        **{field.name: field.json_schema() for field in rules.fields},
        "tools": _tools(),
        "tool_choice": _tool_choice(),
        "response_format": _response_format(),
        "chat_template_kwargs": _template_kwargs(),
        "chat_template": {
            "type": ["string", "null"],
            "description": "A Jinja template instead of the model's own; refused unless the server allows it.",
        },
    }
    if rules.reads_stream_options:
        properties["stream_options"] = {
            "type": ["object", "null"],
            "properties": {"include_usage": {"type": ["boolean", "null"], "default": False}},
            "description": "Whether a stream ends with a chunk that has the usage.",
        }
    example = {"model": "my-model", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    return {
        "type": "object",
        "required": ["model", "messages"],
        "properties": properties,
        "description": "Keys that are not listed are ignored.",
        "examples": [example],
    }


def _messages() -> _Schema:
    message: _Schema = {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {
                "type": "string",
                "minLength": 1,
                "description": "Another role where the template knows it.",
                "examples": ["system", "user", "assistant", "tool"],
            },
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "minItems": 1, "items": {"anyOf": [_text_part(), *map(_media_part, PartKind)]}},
                    {"type": "null"},
                ],
                "description": "Empty only beside tool_calls. Text alone for assistants and beside tools.",
            },
            "tool_calls": {
                "type": ["array", "null"],
                "items": _tool_call(),
                "description": "What the assistant called before.",
            },
            "tool_call_id": {
                "type": ["string", "null"],
                "description": "Which call this message answers; mandatory for the role tool.",
            },
        },
    }
    description = (
        f"The conversation: at most 4 MB of JSON characters (base64 media not counted) "
        f"and {MAX_MEDIA_PARTS} media parts."
    )
    return {"type": "array", "minItems": 1, "items": message, "description": description}


def _text_part() -> _Schema:
    return {
        "type": "object",
        "required": ["text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string", "minLength": 1}},
    }


def _media_part(kind: PartKind) -> _Schema:
    rule = MEDIA_RULES[kind]
    formats = sorted(rule.formats)
    if kind is PartKind.INPUT_AUDIO:
        value: _Schema = {
            "type": "object",
            "required": ["data", "format"],
            "properties": {"data": {"type": "string", "contentEncoding": "base64"}, "format": {"enum": formats}},
        }
    else:
        address = {"type": "string", "minLength": 1}
        value = {"anyOf": [address, {"type": "object", "required": ["url"], "properties": {"url": address}}]}
    value["description"] = f"At most {rule.max_megabytes} MB; {', '.join(formats)} in base64."
    return {
        "type": "object",
        "required": [kind.value],
        "properties": {"type": {"const": kind.value}, kind.value: value},
    }


def _name() -> _Schema:
    return {"type": "string", "pattern": function_name.PATTERN}


def _tool_call() -> _Schema:
    function = {
        "type": "object",
        "required": ["name", "arguments"],
        "properties": {"name": _name(), "arguments": {"type": "string", "description": "JSON in a string."}},
    }
    return {
        "type": "object",
        "required": ["id", "type", "function"],
        "properties": {"id": {"type": "string"}, "type": {"const": "function"}, "function": function},
    }


def _tools() -> _Schema:
    parameters: _Schema = {
        "type": ["object", "null"],
        "properties": {
            "type": {"type": "string"},
            "properties": {"type": "object", "additionalProperties": {"type": "object"}},
            "required": {"type": "array", "items": {"type": "string"}},
            "additionalProperties": {"type": ["boolean", "object"]},
        },
        "description": "JSON schema of the arguments.",
    }
    function = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": _name(),
            "description": {"type": ["string", "null"]},
            "parameters": parameters,
            "strict": {
                "type": ["boolean", "null"],
                "default": False,
                "description": "Whether arguments must follow the schema to the letter.",
            },
        },
    }
    return {
        "type": ["array", "null"],
        "maxItems": MAX_TOOLS,
        "items": _function_object(function),
        "default": None,
        "description": "Functions that the model may call. Not together with stop words, several answers, "
        "beam search, logprobs or `response_format`.",
    }


def _tool_choice() -> _Schema:
    function = {"type": "object", "required": ["name"], "properties": {"name": _name()}}
    return {
        "anyOf": [{"enum": ["none", "auto", "required"]}, _function_object(function), {"type": "null"}],
        "default": "auto",
        "description": "Whether the model may, must or must not call, or which function it must.",
    }


def _function_object(function: _Schema) -> _Schema:
    return {
        "type": "object",
        "required": ["type", "function"],
        "properties": {"type": {"const": "function"}, "function": function},
    }


def _response_format() -> _Schema:
    unsupported = ", ".join(sorted(UNSUPPORTED_KEYWORDS))
    json_schema = {
        "type": "object",
        "required": ["name", "schema"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
            "schema": {
                "type": "object",
                "description": f"Types: {', '.join(sorted(TYPE_NAMES))}. Not supported: {unsupported}.",
            },
            "strict": {"type": ["boolean", "null"]},
        },
    }
    return {
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {"type": {"enum": [kind.value for kind in ResponseFormatKind]}, "json_schema": json_schema},
        "default": None,
        "description": "What the content must be: free text, a JSON object, or JSON of a schema.",
    }


def _template_kwargs() -> _Schema:
    return {
        "type": "object",
        "properties": {
            "enable_thinking": {"type": "boolean", "description": "Whether the model thinks before it answers."},
            "thinking_budget": THINKING_BUDGET.json_schema(),
        },
        "not": {"anyOf": [{"required": [key]} for key in sorted(RESERVED_KEYS)]},
        "description": "Handed to the chat template, every key.",
    }
