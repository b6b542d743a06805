"""What the request demands of the answer's form holds for any model, streamed or not."""

import json
from typing import Any

import pytest

from .bodies import ALL, TIME, WEATHER, Json
from .servers import Server

SEEDS = range(3)


def _both(server: Server, body: Json) -> list[Json]:
    """The choices of the full answer and of the stream."""
    return [*server.full(body)["choices"], *server.streamed(body)["choices"]]


def _calls(choice: Json) -> list[tuple[str, Any]]:
    calls = choice["message"]["tool_calls"]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("name", ["schema", "schema-twice", "schema-with-logprobs"])
def test_a_schema_is_met(server: Server, name: str) -> None:
    choices = [choice for seed in SEEDS for choice in _both(server, {**ALL[name], "seed": seed, "max_tokens": 300})]
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * len(choices)
    for person in (json.loads(choice["message"]["content"]) for choice in choices):
        assert sorted(person) == ["grown", "name"]
        assert person["name"] in ("Ann", "Bo")
        assert isinstance(person["grown"], bool)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_object_is_an_object_unless_it_is_cut(server: Server, seed: int) -> None:
    for choice in _both(server, {**ALL["object"], "seed": seed}):
        text = choice["message"]["content"].lstrip()
        assert text.startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_required_call_is_made(server: Server, seed: int) -> None:
    for choice in _both(server, {**ALL["required"], "seed": seed}):
        assert choice["finish_reason"] == "tool_calls"
        calls = _calls(choice)
        assert calls
        for name, arguments in calls:
            if name == "get_weather":
                assert arguments in ({"city": "Paris"}, {"city": "Rome"})
            else:
                assert (name, arguments) == ("get_time", {})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_named_call_is_made(server: Server, seed: int) -> None:
    body = {**ALL["named"], "seed": seed}
    for choice in _both(server, body):
        assert choice["finish_reason"] == "tool_calls"
        assert {name for name, _ in _calls(choice)} == {"get_weather"}
    other = {"type": "function", "function": {"name": "get_time"}}
    for choice in _both(server, {**body, "tool_choice": other}):
        assert [call for call in _calls(choice) if call != ("get_time", {})] == []


def test_tools_that_are_not_to_be_used_are_not(server: Server) -> None:
    for choice in _both(server, {**ALL["required"], "tools": [WEATHER, TIME], "tool_choice": "none"}):
        assert choice["message"]["tool_calls"] == []
        assert choice["finish_reason"] != "tool_calls"
