"""An agent on the official client: two tools, three turns, every answer streamed."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from mindserve.engine.scripted import Answer
from mindserve.settings.values import ApiMode

from .servers import Server, scripted

MODEL = "tiny"
FIRST = 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'
SECOND = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "convert", "arguments": {"celsius": 7}}\n</tool_call>'
)
LAST = "Z\u00fcrich has 44.6 \u00b0F, Rome is warmer."

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Degrees Celsius in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "convert",
            "description": "Celsius to Fahrenheit",
            "parameters": {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]},
        },
    },
]
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get_weather": lambda city: {"city": city, "celsius": {"Z\u00fcrich": 7, "Rome": 21}[city]},
    "convert": lambda celsius: round(celsius * 9 / 5 + 32, 1),
}


@pytest.fixture(scope="module", params=[ApiMode.NATIVE, ApiMode.VLLM], ids=lambda mode: mode.value)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each answer hangs on what the prompt shows of the results so far, the latest first."""
    answers = (
        Answer(match="44.6", text=LAST, tokens_per_step=2),
        Answer(match='"celsius": 7}', text=SECOND, tokens_per_step=3),
        Answer(text=FIRST),
    )
    with scripted(*answers, api_mode=request.param) as up:
        yield up


def _turn(client: openai.OpenAI, messages: list[Any]) -> Any:
    """One streamed answer, put together by the client."""
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:  # type: ignore[arg-type]
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        (choice,) = stream.get_final_completion().choices
    assert "".join(pieces) == (choice.message.content or "")
    return choice


def _results(calls: list[Any]) -> Iterator[dict[str, Any]]:
    for call in calls:
        result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
        yield {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}


def test_an_agent_gets_to_its_answer(server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "How warm is Z\u00fcrich in Fahrenheit, and is Rome warmer?"}]
    turns: list[Any] = []
    with openai.OpenAI(api_key="none", base_url=f"{server.client.base_url}/v1", max_retries=0) as client:
        while not turns or turns[-1].finish_reason == "tool_calls":
            turns.append(_turn(client, messages))
            said = turns[-1].message
            calls = said.tool_calls or []
            # In vLLM mode every delta names the role, and the client strings them together.
            messages.append({**said.to_dict(), "role": "assistant"})
            messages.extend(_results(calls))
            assert len(turns) <= 3
    assert [turn.finish_reason for turn in turns] == ["tool_calls", "tool_calls", "stop"]
    names = [[call.function.name for call in turn.message.tool_calls or []] for turn in turns]
    assert names == [["get_weather"], ["get_weather", "convert"], []]
    assert turns[0].message.content == "Let me look."
    assert turns[2].message.content == LAST
    ids = [call.id for turn in turns for call in turn.message.tool_calls or []]
    assert len(set(ids)) == 3
