"""Grammars in the Lark dialect of the constraint library, made from the same parts that the matcher reads.

Only text is made here; `output.grammar` compiles it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindserve.errors import InvalidRequest
from mindserve.output.formats.base import (
    Arguments,
    CallStart,
    Json,
    JsonCall,
    Key,
    Literal,
    Many,
    Maybe,
    Name,
    Part,
    PythonCall,
    Space,
    ToolFormat,
    TypeFlag,
    Value,
)
from mindserve.output.literals import BARE_JSON, PYTHON, CallableTool, Literals, check_enforceable
from mindserve.output.schemas import Schema, choices_of, moved, properties_of, required_of, type_of

_WHITESPACE = r" |\n[ \t]{0,16}"
"""Between the tokens of JSON: a space, or a new line with its indentation. Small models that may write more of it do,
until their tokens are spent."""

_MAX_FURTHER_CALLS = 7
"""Besides the first, where calls are forced. A model that knows no end would go on as long as it has tokens."""


def json_grammar(schema: Schema | bool, *, is_strict: bool, follows_thought: bool) -> str:
    """One JSON value."""
    return f"start: {_leading(follows_thought)} value\nvalue: {_json(schema, is_strict=is_strict)}\n"


def calls_grammar(
    format_: ToolFormat,
    tools: Sequence[CallableTool],
    *,
    is_single: bool,
    follows_thought: bool,
    marker_ids: Mapping[str, int],
) -> str:
    """One call or several, from the first character to the last. Raises InvalidRequest.

    `marker_ids` are the vocabulary's tokens for whole tags.
    """
    rules = _Rules(format_, marker_ids)
    first = rules.call(format_.starts[0], tools)
    further = None if is_single or format_.max_calls == 1 else format_.further_start
    again = ""
    if further is not None:
        again = f"({_text(format_.separator)} {rules.call(format_.starts[further], tools)}){{0,{_MAX_FURTHER_CALLS}}}"
    return rules.with_start(f"{_leading(follows_thought)} {first} {again} {rules.fixed(format_.closing)}")


def one_call_grammar(
    format_: ToolFormat, start: CallStart, tools: Sequence[CallableTool], *, marker_ids: Mapping[str, int]
) -> str:
    """One call that begins with `start`, its marker included. Raises InvalidRequest."""
    rules = _Rules(format_, marker_ids)
    return rules.with_start(rules.call(start, tools))


def written_prefix(start: CallStart, tool: CallableTool) -> str:
    """The text by which a call of `tool` without a marker is known; "" where that is its JSON only."""
    prefix = ""
    for part in start.parts:
        match part:
            case Literal(text) | Space(text):
                prefix += text
            case Name():
                prefix += tool.name
            case _:
                break
    return prefix.lstrip()


class _Rules:
    """Collects numbered rules."""

    def __init__(self, format_: ToolFormat, marker_ids: Mapping[str, int]) -> None:
        self._format = format_
        self._marker_ids = marker_ids
        self._lines: list[str] = []
        is_python = format_.arguments is Arguments.PYTHON_CALL
        self._literals = Literals(PYTHON if is_python else BARE_JSON, add_rule=self._add)

    def with_start(self, body: str) -> str:
        """The whole grammar."""
        return f"start: {body}\n" + "\n".join(self._lines) + self._literals.rules

    def fixed(self, text: str) -> str:
        """A text that is a token where the vocabulary has one for it."""
        return f"<[{self._marker_ids[text]}]>" if text in self._marker_ids else _text(text)

    def call(self, start: CallStart, tools: Sequence[CallableTool]) -> str:
        """A rule for a call of any of `tools`."""
        bodies = [f"{self.fixed(start.marker)} {self._sequence(start.parts, tool)}" for tool in tools]
        return self._add(" | ".join(self._add(body) for body in bodies))

    def _add(self, body: str, *, attributes: str = "") -> str:
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}{attributes}: {body}")
        return name

    def _sequence(self, parts: tuple[Part, ...], tool: CallableTool) -> str:
        return " ".join(filter(None, (self._part(part, tool) for part in parts)))

    def _part(self, part: Part, tool: CallableTool) -> str:
        match part:
            case Literal(text) | Space(text):
                return self.fixed(text)
            case Name():
                return _text(tool.name)
            case Json():
                return self._add(_json(self._json_schema(tool), is_strict=tool.is_strict))
            case PythonCall():
                return self._python_call(tool)
            case Maybe(parts, True):
                return self._sequence(parts, tool)
            case Many(parts):
                return " ".join(self._parameters(parts, tool))
            case _:
                return ""

    def _json_schema(self, tool: CallableTool) -> Schema:
        keys = self._format.arguments
        if not isinstance(keys, JsonCall):
            return tool.schema
        properties = {
            keys.name_key: {"const": tool.name},
            keys.arguments_key: moved(tool.schema, f"#/properties/{keys.arguments_key}"),
        }
        return {
            "type": "object",
            "properties": properties,
            "required": [keys.name_key, keys.arguments_key],
            "additionalProperties": False,
        }

    def _parameters(self, parts: tuple[Part, ...], tool: CallableTool) -> list[str]:
        """Each property in the schema's order, written as `parts` say; the optional ones may be left out."""
        required = required_of(tool.schema)
        return [
            self._add(" ".join(self._parameter_part(part, key, schema, tool) for part in parts))
            + ("" if key in required else "?")
            for key, schema in properties_of(tool.schema).items()
        ]

    def _parameter_part(self, part: Part, key: str, schema: Any, tool: CallableTool) -> str:
        match part:
            case Key():
                return _text(key)
            case TypeFlag():
                return _text("true" if _is_text(schema) else "false")
            case Value():
                return self._value(part, schema, tool)
            case _:
                return self._part(part, tool)

    def _value(self, part: Value, schema: Any, tool: CallableTool) -> str:
        margin = _text(part.margin)
        if choices := choices_of(schema):
            words = [_text(choice if isinstance(choice, str) else json.dumps(choice)) for choice in choices]
            return f"{margin} ({' | '.join(words)}) {margin} {_text(part.end)}"
        if _is_text(schema):
            check_enforceable(schema, tool)
            self._lines.append(f"T{len(self._lines)}: {_text_without(part.forbidden)}")
            return f"{margin} {self._add(f'T{len(self._lines) - 1}', attributes=f'[suffix={_text(part.end)}]')}"
        return f"{margin} {self._literals.value(schema, tool)} {margin} {_text(part.end)}"

    def _python_call(self, tool: CallableTool) -> str:
        """Keywords in the schema's order."""
        for key in properties_of(tool.schema):
            if not key.isidentifier():
                reason = f"The parameter {key[:64]} cannot be a keyword of this model's calls."
                raise InvalidRequest(reason, param="tools")
        return f'"tool_call(" {self._literals.entries(tool.schema, tool, spell=lambda key: f"{key}=")} ")"'


def _leading(follows_thought: bool) -> str:
    """The blank lines that models leave after a thought."""
    return r"/[ \n]{0,4}/" if follows_thought else ""


def _text(text: str) -> str:
    """Exactly `text`. Its leading space is an item of its own: items that begin alike would hide one another."""
    rest = text.lstrip()
    pieces = (text[: len(text) - len(rest)], rest)
    return " ".join(json.dumps(piece, ensure_ascii=False) for piece in pieces if piece)


def _json(schema: Schema | bool, *, is_strict: bool) -> str:
    given = dict(schema) if isinstance(schema, Mapping) else {"anyOf": [schema]}
    options = {"whitespace_pattern": _WHITESPACE, "lenient": not is_strict}
    return f"%json {json.dumps({**given, 'x-guidance': options})}"


def _is_text(schema: Any) -> bool:
    return type_of(schema) in (None, "string")


def _text_without(forbidden: str) -> str:
    escaped = re.escape(forbidden).replace("/", r"\/")
    return rf"/(?s:.*)/ & ~/(?s:.*){escaped}(?s:.*)/"
