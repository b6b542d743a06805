"""Real weights behind a whole server: JSON by schema from a small model, its thoughts and calls with an adapter.

These models know little, so the tests look at the form of what they say.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .bodies import Json
from .demo_models import SMOLLM2, serving, think_tools
from .fold import assert_same
from .servers import Server

PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"type": "string", "enum": ["happy", "sad", "calm"]},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["name", "age", "mood", "hobbies"],
    "additionalProperties": False,
}


def _is_person(value: Any) -> bool:
    """Whether PERSON describes it: written out, so that nothing of the server checks itself."""
    return (
        sorted(value) == ["age", "hobbies", "mood", "name"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 20
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and value["mood"] in ("happy", "sad", "calm")
        and len(value["hobbies"]) <= 2
        and all(isinstance(hobby, str) and len(hobby) <= 12 for hobby in value["hobbies"])
    )


def _said(text: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 100, **fields}


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    """The demo model as it is."""
    with serving(SMOLLM2) as up:
        yield up


@pytest.fixture(scope="module")
def thinker() -> Iterator[Server]:
    """The demo model with the adapter, its thoughts split off."""
    with serving(think_tools(), enable_reasoning=True, early_stopping_text="\nThat is enough.\n") as up:
        yield up


@pytest.fixture(scope="module")
def caller() -> Iterator[Server]:
    """The same model, its thoughts left where they are: it calls tools without thinking first."""
    with serving(think_tools()) as up:
        yield up


@pytest.mark.parametrize("seed", range(4))
def test_a_small_model_always_meets_a_bounded_schema(plain: Server, seed: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    body = _said("Describe a person.", temperature=1.0, seed=seed, n=10, response_format=wanted, max_tokens=250)
    for choice in plain.full(body)["choices"]:
        assert choice["finish_reason"] == "stop", choice
        assert _is_person(json.loads(choice["message"]["content"])), choice


def _answer(server: Server, body: Json) -> Json:
    """The full answer's choice, which the stream equals."""
    full, streamed = server.full(body), server.streamed(body)
    for answer in (full, streamed):
        for call in answer["choices"][0]["message"]["tool_calls"]:
            assert call.pop("id").startswith("call_")
    assert_same(streamed["choices"], full["choices"])
    assert streamed["usage"]["completion_tokens_details"] == full["usage"]["completion_tokens_details"]
    return {**full["choices"][0], "thought": full["usage"]["completion_tokens_details"]["reasoning_tokens"]}


@pytest.mark.parametrize("question", ["What is 2+3?", "What is the capital of France?", "Is a whale a fish?"])
def test_a_thought_is_split_from_the_answer(thinker: Server, question: str) -> None:
    choice = _answer(thinker, _said(question, seed=1))
    message = choice["message"]
    assert choice["finish_reason"] == "stop"
    assert message["reasoning_content"].strip() != ""
    assert message["content"].strip() != ""
    assert "think>" not in message["content"] + message["reasoning_content"]
    assert choice["thought"] > 3


def test_a_budget_ends_a_thought_with_the_configured_text(thinker: Server) -> None:
    kwargs = {"enable_thinking": True, "thinking_budget": 5}
    choice = _answer(thinker, _said("What is the capital of France?", temperature=0, chat_template_kwargs=kwargs))
    assert choice["message"]["reasoning_content"].endswith("\nThat is enough.\n")
    assert choice["message"]["content"].strip() != ""
    assert 5 < choice["thought"] < 20


def test_a_model_that_is_not_to_think_answers_at_once(thinker: Server) -> None:
    kwargs = {"enable_thinking": False}
    choice = _answer(thinker, _said("What is the capital of France?", temperature=0, chat_template_kwargs=kwargs))
    assert "reasoning_content" not in choice["message"]
    assert choice["message"]["content"].strip() != ""
    assert choice["thought"] == 0


def _tool(name: str, description: str, **parameters: str) -> Json:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("get_weather", "Get the current weather of a city.", city="string"),
    _tool("convert_currency", "Convert an amount of money.", amount="number", source="string", target="string"),
]


QUESTIONS = ["What is the weather in Paris?", "How is the weather in Oslo today?", "Convert 20 dollars to euros."]


@pytest.mark.parametrize("question", QUESTIONS)
def test_tools_are_called_by_the_models_own_choice(caller: Server, question: str) -> None:
    choice = _answer(caller, _said(question, temperature=0, tools=TOOLS, tool_choice="auto"))
    assert choice["finish_reason"] == "tool_calls"
    assert "tool_call" not in choice["message"]["content"]
    (call, *_) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("get_weather", "convert_currency")
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize("seed", range(3))
def test_strict_tools_get_valid_arguments(caller: Server, seed: int) -> None:
    """A call that the model starts by itself follows the schema, for any draw."""
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    body = _said("What is the weather in Paris?", seed=seed, temperature=1.0, tools=strict, max_tokens=200)
    choice = _answer(caller, body)
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert calls != []
    keys = {"get_weather": ["city"], "convert_currency": ["amount", "source", "target"]}
    for call in calls:
        assert list(json.loads(call["arguments"])) == keys[call["name"]]


def test_a_thought_and_a_named_call(thinker: Server) -> None:
    """The thought comes first and is free, the budget ends it, and then there is nothing but the call."""
    kwargs = {"enable_thinking": True, "thinking_budget": 5}
    named = {"type": "function", "function": {"name": "get_weather"}}
    body = _said("How is Oslo?", temperature=0, tools=TOOLS, tool_choice=named, chat_template_kwargs=kwargs)
    choice = _answer(thinker, body)
    assert choice["message"]["reasoning_content"].strip() != ""
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_a_tools_result_is_answered(caller: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 21, "sky": "sunny"}'},
    ]
    body = {"messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 60}
    choice = _answer(caller, body)
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("stop", [])
    assert choice["message"]["content"] != ""
