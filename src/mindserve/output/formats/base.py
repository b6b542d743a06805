"""The words in which a format is written down.

A tool-call format says how a call begins (`CallStart`), what follows piece by piece (`Part`s), and how the pieces that
carry a field become a name and arguments (`Arguments`). `output.matcher` runs the parts over generated text and
`output.grammar` turns the same parts into the grammar that makes a model write them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How a model marks its thought. Where the vocabulary has a token for a tag only that token counts."""

    name: str
    opening: str = "<think>"
    closing: str = "</think>"


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Space:
    """Any whitespace, or none. A constrained model writes `written`."""

    written: str = ""


@dataclass(frozen=True, slots=True)
class Name:
    """The function's name: letters, digits and `_-.` only, so that prose is told from a name early."""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON object: the arguments, or the whole call with `JsonCall`."""


@dataclass(frozen=True, slots=True)
class Key:
    """The name of one parameter, up to `end`, which is not part of it."""

    end: str


@dataclass(frozen=True, slots=True)
class Value:
    """The text of one parameter, up to and including `end`. The call is broken if `forbidden` comes first."""

    end: str
    forbidden: str
    margin: str = ""
    """Written around the text; taken off where it is there."""


@dataclass(frozen=True, slots=True)
class TypeFlag:
    """`true` or `false`: whether the value that follows is a string (read where the schema does not say)."""


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One line of Python that calls some function with keywords."""


@dataclass(frozen=True, slots=True)
class Maybe:
    """These parts or nothing; their first literal decides. A constrained model writes them if `is_written`."""

    parts: "tuple[Part, ...]"
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Many:
    """These parts any number of times; their first literal decides whether once more."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Commit:
    """From here on a mismatch means a broken call rather than none (see `ToolFormat.ends_at_broken_call`)."""


@dataclass(frozen=True, slots=True)
class End:
    """Nothing follows: the text ends here."""


Part = Literal | Space | Name | Json | Key | Value | TypeFlag | PythonCall | Maybe | Many | Commit | End


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """A text that may begin a call, and what follows it when it does."""

    marker: str = ""
    """"": the very beginning of the answer."""
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCall:
    """One JSON object holds both the name and the arguments."""

    name_key: str = "name"
    arguments_key: str = "arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArguments:
    """A `Name`, and a JSON object that is the arguments."""

    is_verbatim: bool = False
    """Whether the model's own spelling of the JSON is kept."""


class Arguments(Enum):
    """Ways to spell arguments that need no further words."""

    PYTHON_CALL = "python_call"
    """The keywords of a `PythonCall`."""
    PARAMETERS = "parameters"
    """`Key` and `Value` pairs, cast by the function's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family of models writes tool calls."""

    name: str
    starts: tuple[CallStart, ...]
    """The first is the one that a constrained model writes."""
    arguments: JsonCall | JsonArguments | Arguments
    further_start: int | None = 0
    """Index of the start that a constrained model writes for calls after the first; None: it writes one call only."""
    separator: str = ""
    """What it writes between two calls."""
    closing: str = ""
    """What it writes after the last one."""
    max_calls: int | None = None
    """Further calls are dropped."""
    ends_at_broken_call: bool = False
    """Whether nothing after a broken call is a call."""


def markers_of(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> frozenset[str]:
    """Every fixed text of the formats: special tokens among them are read by the parsers, whatever is skipped."""
    ends = {end for start in (tools.starts if tools else ()) for end in _value_ends(start.parts)}
    return _fixed(reasoning, tools) | ends


def tags_of(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> frozenset[str]:
    """The whole tags among them, apart from those that end bare text."""
    return frozenset(text for text in _fixed(reasoning, tools) if _TAG.fullmatch(text))


_TAG = re.compile(r"<[^<>]{3,}>")


def _fixed(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> frozenset[str]:
    found: set[str] = {reasoning.opening, reasoning.closing} if reasoning else set()
    for start in tools.starts if tools else ():
        found |= {start.marker, *_literals(start.parts)}
    if tools:
        found.add(tools.closing)
    return frozenset(text.strip() for text in found) - {""}


def _literals(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Literal):
            yield part.text
        elif isinstance(part, Maybe | Many):
            yield from _literals(part.parts)


def _value_ends(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Value):
            yield part.end
        elif isinstance(part, Maybe | Many):
            yield from _value_ends(part.parts)
