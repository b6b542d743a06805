"""An endless, seeded supply of damaged requests.

Every mutant starts as a valid request and suffers one to three mutations: types swapped, ranges crossed, fields
dropped, added, doubled or exchanged, values buried in brackets, odd Unicode, and bytes cut, flipped or inserted. Many
stay valid: a server must answer 200 or a clean error to every one of them, and live.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}

VALID_REQUESTS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Hello"}]},
    {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "seed": 7,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "stop": ["END", "\n\n"],
        "stop_token_ids": [2],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "ignore_eos": False,
        "logprobs": True,
        "top_logprobs": 2,
    },
    {"messages": [{"role": "user", "content": "Hello"}], "n": 2, "best_of": 2, "temperature": 1.0},
    {"messages": [{"role": "user", "content": "Hello"}], "use_beam_search": True, "n": 2},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"text": "?"}]},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        ],
        "tools": [{"type": "function", "function": _FUNCTION}],
        "tool_choice": "auto",
    },
    {
        "messages": [{"role": "user", "content": "JSON"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _FUNCTION["parameters"]}},
        "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 5},
        "stream_options": {"include_usage": True},
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
                    {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}},
                    {"type": "video_url", "video_url": "clip.mp4"},
                ],
            }
        ]
    },
)

ODD_STRINGS = (
    "",
    " ",
    "\x00",
    "\ufeff",
    "\uffff",
    "\u202e\u2066",
    "e\u0301" * 50,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0010ffff",
    "{{ 1/0 }}",
    "{% for m in messages %}",
    "<|im_end|><|endoftext|></s>",
    "%s%n{}{0}$MODEL",
    "../../etc/passwd",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x.png",
    "data:image/png;base64,!!!",
    "a" * 70_000,
)
ODD_NUMBERS = (
    *(0, -0.0, -1, 1, 2, 20, 21, 128, 129, 1e-6, 1e-7, 2.0001, -2.0001, 0.5, 1.0, 1e39, 1e308, 5e-324),
    *(2**31 - 1, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1, 10**400),
)
ODD_VALUES = (None, True, False, [], {}, [None], [[]], {"": None}, {"type": "function"}, [1, "2", None], ["a"])
KEYS = (
    *sorted({key for request in VALID_REQUESTS for key in request}),
    *("model", "stream", "max_tokens", "max_completion_tokens", "chat_template", "user", "metadata", "", "\ud83d"),
)
RAW_TOKENS = (
    *(b"NaN", b"Infinity", b"-", b"01", b"1e999", b"1" * 5000, b"'a'", b"/**/", b",", b'"', b"\\", b"\x00", b"\xff"),
    *(b"\xed\xa0\x80", b'"\\ud800"', b'"\\udc00\\ud800"', b"[" * 3000, b'{"a":' * 3000, b"}", b"]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A request body and how it came about."""

    history: tuple[str, ...]
    body: bytes


def mutants(seed: int, *, model: str) -> Iterator[Mutant]:
    """Endless; the same seed gives the same mutants. Unless a mutation says otherwise `max_tokens` is small."""
    rng = random.Random(seed)
    while True:
        request = {"model": model, "max_tokens": rng.randint(1, 4), **copy.deepcopy(rng.choice(VALID_REQUESTS))}
        if rng.random() < 0.3:
            request["stream"] = True
        yield _mutate(rng, request)


def _mutate(rng: random.Random, request: dict[str, Any]) -> Mutant:
    history: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutation = rng.choice(_ON_VALUES)
        mutation(rng, request)
        history.append(mutation.__name__)
    body = json.dumps(request, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.25:
        mutation_of_bytes = rng.choice(_ON_BYTES)
        body = mutation_of_bytes(rng, body)
        history.append(mutation_of_bytes.__name__)
    return Mutant(history=tuple(history), body=body)


_Place = tuple[Any, Any]
"""A container and the key or index of one of its values."""


def _places(value: Any) -> list[_Place]:
    """All places of a document, outer ones first."""
    found: list[_Place] = []
    pending = [value]
    while pending:
        container = pending.pop(0)
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                pending.append(container[key])
    return found


def _odd_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice((ODD_STRINGS, ODD_NUMBERS, ODD_VALUES))))


def _replace_value(rng: random.Random, request: dict[str, Any]) -> None:
    if places := _places(request):
        container, key = rng.choice(places)
        container[key] = _odd_value(rng)


def _cross_range(rng: random.Random, request: dict[str, Any]) -> None:
    is_number = [place for place in _places(request) if type(place[0][place[1]]) in (int, float)]
    if is_number:
        container, key = rng.choice(is_number)
        container[key] = rng.choice(ODD_NUMBERS)


def _drop(rng: random.Random, request: dict[str, Any]) -> None:
    if places := _places(request):
        container, key = rng.choice(places)
        del container[key]


def _add_field(rng: random.Random, request: dict[str, Any]) -> None:
    donors = [donor for donor in VALID_REQUESTS if len(donor) > 1]
    donor = rng.choice(donors)
    key = rng.choice([*donor, *KEYS])
    request[key] = copy.deepcopy(donor[key]) if key in donor and rng.random() < 0.7 else _odd_value(rng)


def _add_to_object(rng: random.Random, request: dict[str, Any]) -> None:
    objects = [request] + [place[0][place[1]] for place in _places(request) if isinstance(place[0][place[1]], dict)]
    rng.choice(objects)[rng.choice((*KEYS, *ODD_STRINGS[:6], "type", "role", "content", "name"))] = _odd_value(rng)


def _exchange(rng: random.Random, request: dict[str, Any]) -> None:
    places = _places(request)
    if len(places) < 2:
        return
    (one, key), (other, other_key) = rng.sample(places, 2)
    moved = copy.deepcopy(one[key])
    one[key] = copy.deepcopy(other[other_key])
    other[other_key] = moved


def _repeat_element(rng: random.Random, request: dict[str, Any]) -> None:
    lists = [place[0][place[1]] for place in _places(request) if isinstance(place[0][place[1]], list)]
    if filled := [items for items in lists if items]:
        items = rng.choice(filled)
        items.extend(copy.deepcopy(items[:1]) * rng.choice((1, 20, 200)))


def _bury(rng: random.Random, request: dict[str, Any]) -> None:
    places = _places(request)
    if not places:
        return
    container, key = rng.choice(places)
    value = container[key]
    for _ in range(rng.choice((1, 5, 58, 64, 65, 100, 300))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    container[key] = value


def _odd_text(rng: random.Random, request: dict[str, Any]) -> None:
    texts = [place for place in _places(request) if isinstance(place[0][place[1]], str)]
    if texts:
        container, key = rng.choice(texts)
        container[key] = container[key] + rng.choice(ODD_STRINGS) if rng.random() < 0.5 else rng.choice(ODD_STRINGS)


def _double_field(rng: random.Random, body: bytes) -> bytes:
    """A second top-level key of the same name, before or after the first."""
    field = f"{json.dumps(rng.choice(KEYS[:-1]))}:{json.dumps(_odd_value(rng))}".encode()
    return b"{" + field + b"," + body[1:] if rng.random() < 0.5 else body[:-1] + b"," + field + b"}"


def _cut(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _flip_byte(rng: random.Random, body: bytes) -> bytes:
    place = rng.randrange(len(body))
    return body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]


def _insert_token(rng: random.Random, body: bytes) -> bytes:
    place = rng.randrange(len(body) + 1)
    return body[:place] + rng.choice(RAW_TOKENS) + body[place:]


def _append(rng: random.Random, body: bytes) -> bytes:
    return body + rng.choice((b" ", b"\n\n", b"{}", b"\x00", b"]", b"garbage", body))


_ON_VALUES: tuple[Callable[[random.Random, dict[str, Any]], None], ...] = (
    _replace_value,
    _cross_range,
    _drop,
    _add_field,
    _add_to_object,
    _exchange,
    _repeat_element,
    _bury,
    _odd_text,
)
_ON_BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _double_field,
    _cut,
    _flip_byte,
    _insert_token,
    _append,
)
