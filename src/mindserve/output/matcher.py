"""Runs a format's parts over text that is still arriving.

Each part is matched by a generator that yields when it needs more text and returns whether the part matched, so a
match goes on where it stopped and looks at every character once.
"""

import ast
import json
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from mindserve.output.formats.base import (
    Commit,
    End,
    Json,
    Key,
    Literal,
    Many,
    Maybe,
    Name,
    Part,
    PythonCall,
    Space,
    TypeFlag,
    Value,
)

Match = Generator[None, None, bool]

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.-]*")
_MAX_NAME_LENGTH = 64
_JSON_OUTSIDE_STRINGS = re.compile(r"[\s\d+\-.,:eEtrufalsn]*")
_JSON_INSIDE_STRING = re.compile(r'[^"\\\x00-\x1f]*')


@dataclass(slots=True)
class Parameter:
    """One parameter as written."""

    key: str
    value: str = ""
    is_string: bool | None = None
    """What the format itself says about the type, if it does."""


@dataclass(slots=True)
class Fields:
    """What a match collected."""

    name: str | None = None
    json_text: str = ""
    json_value: Any = None
    keywords: dict[str, Any] = field(default_factory=dict[str, Any])
    parameters: list[Parameter] = field(default_factory=list[Parameter])


class CallMatch:
    """One attempt to read a call from text that begins with its marker."""

    def __init__(self, parts: tuple[Part, ...], *, marker_length: int) -> None:
        self.text = ""
        self.position = marker_length
        """How much of `text` is matched."""
        self.is_final = False
        """Whether no more text will come."""
        self.is_committed = False
        self.fields = Fields()
        self._run = _match_all(parts, self)

    def advance(self, text: str, *, is_final: bool) -> bool | None:
        """Go on with all of the text since the marker's beginning: whether it is a call, None if that is open."""
        self.text, self.is_final = text, is_final
        try:
            next(self._run)
        except StopIteration as end:
            return bool(end.value)
        return None

    @property
    def needs_text(self) -> bool:
        """Whether all text is used up."""
        return self.position >= len(self.text)


def _match_all(parts: tuple[Part, ...], match: CallMatch) -> Match:
    for part in parts:
        if not (yield from _match_part(part, match)):
            return False
    return True


def _match_part(part: Part, match: CallMatch) -> Match:  # noqa: PLR0912 - one line per kind of part
    found = True
    match part:
        case Literal():
            found = yield from _literal(part, match)
        case Space():
            yield from _skip(_SPACE, match)
        case Name():
            found = yield from _name(match)
        case Json():
            found = yield from _json(match)
        case Key():
            found = yield from _key(part, match)
        case Value():
            found = yield from _value(part, match)
        case TypeFlag():
            found = yield from _type_flag(match)
        case PythonCall():
            found = yield from _python_call(match)
        case Maybe():
            if (yield from _is_next(part.parts, match)):
                found = yield from _match_all(part.parts, match)
        case Many():
            while found and (yield from _is_next(part.parts, match)):
                found = yield from _match_all(part.parts, match)
        case Commit():
            match.is_committed = True
        case End():
            found = yield from _end(match)
    return found


def _literal(part: Literal, match: CallMatch) -> Match:
    found = yield from _is_next((part,), match)
    if found:
        match.position += len(part.text)
    return found


def _is_next(parts: tuple[Part, ...], match: CallMatch) -> Match:
    """Whether the literal that `parts` begin with comes next."""
    literal = parts[0]
    assert isinstance(literal, Literal), "only a literal can decide"
    while not match.text.startswith(literal.text, match.position):
        if match.is_final or not literal.text.startswith(match.text[match.position :]):
            return False
        yield
    return True


def _skip(pattern: re.Pattern[str], match: CallMatch) -> Generator[None, None, str]:
    """The longest text of `pattern` from here, known to be over."""
    start = match.position
    while True:
        found = pattern.match(match.text, match.position)
        match.position = found.end() if found else match.position
        if match.is_final or not match.needs_text:
            return match.text[start : match.position]
        yield


def _name(match: CallMatch) -> Match:
    start = match.position
    while True:
        found = _NAME.match(match.text, match.position)
        match.position = found.end() if found else match.position
        if match.position - start > _MAX_NAME_LENGTH:
            return False
        if match.is_final or not match.needs_text:
            match.fields.name = match.text[start : match.position]
            return match.position > start
        yield


def _find(text: str, match: CallMatch, *, forbidden: str) -> Generator[None, None, str | None]:
    """The text up to `text`, which is passed over; None if `forbidden` comes first or nothing comes at all."""
    start = searched = match.position
    while True:
        end = match.text.find(text, searched)
        if match.text.find(forbidden, searched, end if end >= 0 else len(match.text)) >= 0:
            return None
        if end >= 0:
            match.position = end + len(text)
            return match.text[start:end]
        if match.is_final:
            return None
        searched = max(start, len(match.text) - max(len(text), len(forbidden)) + 1)
        yield


def _key(part: Key, match: CallMatch) -> Match:
    key = yield from _find(part.end, match, forbidden="\n")
    if key is None:
        return False
    match.position -= len(part.end)
    match.fields.parameters.append(Parameter(key=key))
    return bool(key)


def _value(part: Value, match: CallMatch) -> Match:
    value = yield from _find(part.end, match, forbidden=part.forbidden)
    if value is None:
        return False
    match.fields.parameters[-1].value = value.removeprefix(part.margin).removesuffix(part.margin)
    return True


def _type_flag(match: CallMatch) -> Match:
    for literal, flag in ((Literal("true"), True), (Literal("false"), False)):
        if (yield from _literal(literal, match)):
            match.fields.parameters[-1].is_string = flag
            return True
    return False


def _end(match: CallMatch) -> Match:
    while not match.is_final:
        if not match.needs_text:
            return False
        yield
    return match.needs_text


def _json(match: CallMatch) -> Match:
    start, open_brackets = match.position, ""
    while True:
        yield from _skip(_JSON_OUTSIDE_STRINGS, match) if open_brackets else _wait(match)
        if match.needs_text:
            return False
        char = match.text[match.position]
        match.position += 1
        if char == '"' and open_brackets:
            if not (yield from _json_string(match)):
                return False
        elif char == "{" or (char == "[" and open_brackets):
            open_brackets += char
        elif open_brackets[-1:] + char in ("{}", "[]"):
            open_brackets = open_brackets[:-1]
            if not open_brackets:
                return _keep_json(match.text[start : match.position], match.fields)
        else:
            return False


def _wait(match: CallMatch) -> Generator[None, None, None]:
    while match.needs_text and not match.is_final:
        yield


def _json_string(match: CallMatch) -> Match:
    while True:
        yield from _skip(_JSON_INSIDE_STRING, match)
        if match.needs_text:
            return False
        char = match.text[match.position]
        match.position += 1
        if char == '"':
            return True
        if char != "\\":
            return False
        yield from _wait(match)
        match.position += 1


def _keep_json(text: str, fields: Fields) -> bool:
    try:
        fields.json_text, fields.json_value = text, load_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def load_json(text: str) -> Any:
    """Strict JSON: no NaN, no infinity. Raises ValueError, or RecursionError when it is nested too deep."""
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _python_call(match: CallMatch) -> Match:
    line = yield from _find("\n", match, forbidden="\r")
    if line is None:
        return False
    match.position -= 1
    try:
        match.fields.keywords = _read_keywords(line)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _read_keywords(line: str) -> dict[str, Any]:
    call = ast.parse(line.strip(), mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("not a call")
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
