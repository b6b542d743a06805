"""Values that a constrained model writes outside JSON proper: Python literals, and JSON inside tags.

The constraint library compiles whole JSON schemas; here only types, choices, items and properties can be held to.
"""

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, cast

from mindserve.errors import InvalidRequest
from mindserve.output.schemas import Schema, choices_of, properties_of, required_of, type_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A function that the model may call, with what its arguments must be."""

    name: str
    schema: Schema
    """Of the arguments, as enforced: see `schemas.closed`."""
    is_strict: bool = False
    """Whether keywords that cannot be enforced are refused; otherwise they are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How values are spelled."""

    true: str
    false: str
    null: str
    string: str
    """A regular expression."""
    spell: Callable[[Any], str]


def _spell_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


PYTHON: Final = Dialect(
    true="True", false="False", null="None", string=r"""/'([^'\\\x00-\x1f]|\\['"\\nt])*'/""", spell=repr
)
BARE_JSON: Final = Dialect(
    true="true",
    false="false",
    null="null",
    string=r"""/"([^"\\\x00-\x1f<]|\\["\\nrt]|\\u00[0-9a-f]{2})*"/""",
    spell=_spell_json,
)
"""Without `<` in strings, which might spell the tag that ends the value."""

_ENFORCED: Final = {"type", "enum", "const", "title", "description", "default", "examples"}


class Literals:
    """Expressions of one grammar for values of one dialect."""

    def __init__(self, dialect: Dialect, *, add_rule: Callable[[str], str]) -> None:
        """`add_rule` takes a rule's body and gives its name."""
        self._dialect = dialect
        self._add_rule = add_rule

    @property
    def rules(self) -> str:
        """The rules that the expressions refer to."""
        d = self._dialect
        return rf"""
any_value: STRING | NUMBER | "{d.true}" | "{d.false}" | "{d.null}" | any_list | any_dict
any_list: "[" (any_value (", " any_value)*)? "]"
any_dict: "{{" (STRING ": " any_value (", " STRING ": " any_value)*)? "}}"
STRING: {d.string}
NUMBER: /-?(0|[1-9][0-9]{{0,17}})(\.[0-9]{{1,17}})?/
INTEGER: /-?(0|[1-9][0-9]{{0,17}})/
"""

    def value(self, schema: Any, tool: CallableTool) -> str:
        """A value of `schema`; containers as far as it says what is in them."""
        if choices := choices_of(schema):
            return f"({' | '.join(json.dumps(self._dialect.spell(choice)) for choice in choices)})"
        type_ = type_of(schema)
        if type_ == "array" and "items" in schema:
            check_enforceable(schema, tool, besides={"items"})
            item = self._add_rule(self.value(schema["items"], tool))
            return f'("[" ({item} (", " {item})*)? "]")'
        if type_ == "object" and "properties" in schema:
            return f'("{{" {self.entries(schema, tool, spell=self._key)} "}}")'
        check_enforceable(schema, tool)
        return self._simple(type_)

    def entries(self, schema: Schema, tool: CallableTool, *, spell: Callable[[str], str]) -> str:
        """An object's properties in the schema's order, separated by commas."""
        check_enforceable(schema, tool, besides={"properties", "required", "additionalProperties"})
        required = required_of(schema)
        entries = [
            (self._add_rule(f"{json.dumps(spell(key))} {self.value(value, tool)}"), key in required)
            for key, value in properties_of(schema).items()
        ]
        return _joined(entries)

    def _key(self, key: str) -> str:
        return f"{self._dialect.spell(key)}: "

    def _simple(self, type_: str | None) -> str:
        d = self._dialect
        known = {
            "string": "STRING",
            "integer": "INTEGER",
            "number": "NUMBER",
            "boolean": f'("{d.true}" | "{d.false}")',
            "null": f'"{d.null}"',
            "array": "any_list",
            "object": "any_dict",
        }
        return known.get(type_ or "", "any_value")


def check_enforceable(schema: Any, tool: CallableTool, *, besides: AbstractSet[str] = frozenset()) -> None:
    """Raises InvalidRequest for a strict function whose schema says more than these grammars can hold it to."""
    keywords = set(cast("Schema", schema)) if isinstance(schema, Mapping) else set[str]()
    if tool.is_strict and (refused := sorted(keywords - _ENFORCED - besides)):
        words = ", ".join(refused)[:100]
        raise InvalidRequest(f"The schema of function {tool.name} cannot be enforced: {words}.", param="tools")


def _joined(words: list[tuple[str, bool]]) -> str:
    """`words` in order, each required or not, with a comma between those that are there."""
    alternatives: list[str] = []
    for at, (word, is_required) in enumerate(words):
        later = [f'(", " {other})' + ("" if needed else "?") for other, needed in words[at + 1 :]]
        alternatives.append(" ".join([word, *later]))
        if is_required:
            return f"({' | '.join(alternatives)})"
    return f"({' | '.join(alternatives)})?" if alternatives else ""
