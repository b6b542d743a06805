"""The official OpenAI client against native mode."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from mindserve.engine.scripted import Answer
from mindserve.settings.values import ApiMode

from .bodies import WEATHER
from .conftest import CALLS
from .servers import Server, scripted

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
MODEL = "tiny"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    answers = (
        Answer(match="weather", text=CALLS),
        Answer(match="break", text="abc", fail_after=2, failure="the engine broke"),
        Answer(sequences=("Hello there.", "Oh, hi!")),
    )
    with scripted(*answers, api_mode=ApiMode.NATIVE) as up:
        yield up


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    base_url = f"{server.client.base_url}/v1"
    with openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as it:
        yield it


def test_a_full_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, temperature=0.5, logprobs=True, top_logprobs=1, max_completion_tokens=9
    )
    assert answer.id.startswith("chatcmpl-")
    assert [choice.message.content for choice in answer.choices] == ["Hello the", "Oh, hi!"]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "stop"]
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (17, answer.usage.prompt_tokens + 17)
    assert not {"batch_size", "queue_wait_time"} & set(answer.usage.model_extra or {})
    assert not {"prefill_time", "decode_time_arr"} & set(answer.model_extra or {})
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == "Oh, hi!"
    assert bytes(byte for entry in logprobs.content for byte in entry.bytes or []) == b"Oh, hi!"


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    *said, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == "Hello there."
    assert [chunk.choices[0].delta.role for chunk in said] == ["assistant"] + [None] * (len(said) - 1)
    assert [chunk.usage for chunk in said] == [None] * len(said)
    assert [chunk.choices[0].finish_reason for chunk in said] == [None] * (len(said) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 13
    silent = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in silent)


def test_the_clients_own_fold_of_tool_calls(client: openai.OpenAI) -> None:
    weather: list[ChatCompletionMessageParam] = [{"role": "user", "content": "weather in Paris?"}]
    full = client.chat.completions.create(model=MODEL, messages=weather, tools=[WEATHER])  # type: ignore[list-item]
    with client.chat.completions.stream(model=MODEL, messages=weather, tools=[WEATHER]) as stream:  # type: ignore[list-item]
        streamed = stream.get_final_completion()
    for answer in (full, streamed):
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        calls = choice.message.tool_calls
        assert calls is not None
        assert [(call.function.name, call.function.arguments) for call in calls if call.type == "function"] == [
            ("get_weather", '{"city": "Paris"}'),
            ("get_time", "{}"),
        ]
        assert all(call.id.startswith("call_") for call in calls)


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=2.5)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.InternalServerError, match="the engine broke"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "break"}])
    with pytest.raises(openai.APIError, match="the engine broke"):
        list(client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "break"}], stream=True))
