"""How a broken rule becomes an error: a text from the contract with what the client sent in it, cut short."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mindserve.contract.json_values import is_array, is_object
from mindserve.errors import InvalidRequest

MAX_ECHO_CHARS = 200
"""A message shows no more of the input than this (decisions: Errors)."""


_Read = TypeVar("_Read")


def failure(text: str, *, param: str | None = None, **echoes: object) -> InvalidRequest:
    """An error whose `text` has the placeholders named in `echoes` filled; all echoes together stay within the limit.

    Strings are shown as they are, other values as JSON.
    """
    room = MAX_ECHO_CHARS // max(1, len(echoes))
    shown = {name: _cut(value if isinstance(value, str) else _as_json(value), room) for name, value in echoes.items()}
    return InvalidRequest(text.format_map(shown) if shown else text, param=param)


def read_each(items: Sequence[Any], read: Callable[[Any], _Read], *, param: str) -> tuple[_Read, ...]:
    """`read` of every item; the `param` of an error says which one it was (`messages[2]`)."""
    done: list[_Read] = []
    for index, item in enumerate(items):
        try:
            done.append(read(item))
        except InvalidRequest as error:
            error.param = f"{param}[{index}]"
            raise
    return tuple(done)


def _as_json(value: object) -> str:
    """Scalars only: numbers, booleans, null. A container's own content is never shown."""
    if is_object(value):
        return "{...}"
    if is_array(value):
        return "[...]"
    return json.dumps(value)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
