"""The contract's own full answers, in the shape of its newest examples, compared byte for byte."""

import json
from typing import Any

import pytest

from mindserve.contract.request import ChatRequest
from mindserve.output.events import ChoiceUsage, LogprobCandidate, LogprobEntry, OutputEvent, ToolCallDelta
from mindserve.render.completion import Completion, ranks_choices
from mindserve.render.wire import Envelope
from mindserve.settings.values import ApiMode


def _usage(tokens: int, *, prompt: int = 9, **fields: Any) -> ChoiceUsage:
    values: dict[str, Any] = {
        "prompt_tokens": prompt,
        "cached_tokens": 0,
        "completion_tokens": tokens,
        "reasoning_tokens": None,
        "batch_sizes": (1,) * tokens,
        "queue_waits_us": tuple(range(tokens)),
        "prefill_ms": 200,
        "decode_ms": (28,) * (tokens - 1),
    }
    return ChoiceUsage(**(values | fields))


def _compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _render(*events: OutputEvent, mode: ApiMode = ApiMode.VLLM, best_first: bool = False) -> dict[str, Any]:
    envelope = Envelope(request_id="endpoint_common_0", created=1768210927, model="m", mode=mode)
    completion = Completion(envelope, best_first=best_first)
    for event in events:
        completion.feed([event])
    body = completion.render()
    document: dict[str, Any] = json.loads(body)
    assert _compact(document) == body
    return document


def test_first_turn_of_the_contracts_dialogue() -> None:
    usage = _usage(3, prompt=45, queue_waits_us=(5556, 928, 1070), prefill_ms=615, decode_ms=(61, 26))
    completion = Completion(Envelope(request_id="endpoint_common_0", created=1768210927, model="Qwen3-30B-A3B"))
    completion.feed([OutputEvent(index=0, content="Shang")])
    completion.feed([OutputEvent(index=0, content="hai")])
    completion.feed([OutputEvent(index=0, finish_reason="stop", usage=usage)])
    assert completion.render() == _compact(
        {
            "id": "endpoint_common_0",
            "object": "chat.completion",
            "created": 1768210927,
            "model": "Qwen3-30B-A3B",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Shanghai", "tool_calls": []},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 45,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens": 3,
                "total_tokens": 48,
                "batch_size": [1, 1, 1],
                "queue_wait_time": [5556, 928, 1070],
            },
            "prefill_time": 615,
            "decode_time_arr": [61, 26],
        }
    )


def test_two_sequences_count_the_prompt_once_and_share_the_arrays() -> None:
    """The contract's example with n and best_of 2 (24 + 2 x 5 tokens), arrays as its tables say: of the longest."""
    words = ["You", " are", " a", " helpful", " assistant"]
    usage = _usage(5, prompt=24, queue_waits_us=(5318, 117, 82, 72, 196), prefill_ms=38, decode_ms=(30, 27, 27, 27))
    events = [OutputEvent(index=index, content=word) for word in words[:-1] for index in (0, 1)]
    events += [OutputEvent(index=index, content=words[-1], finish_reason="length", usage=usage) for index in (0, 1)]
    answer = _render(*events)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"You are a helpful assistant"}
    assert answer["usage"] == {
        "prompt_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens": 10,
        "total_tokens": 34,
        "batch_size": [1, 1, 1, 1, 1],
        "queue_wait_time": [5318, 117, 82, 72, 196],
    }
    assert (answer["prefill_time"], answer["decode_time_arr"]) == (38, [30, 27, 27, 27])


def test_the_longest_sequence_gives_the_arrays_whichever_ends_first() -> None:
    answer = _render(
        OutputEvent(index=1, content="a", finish_reason="stop", usage=_usage(1)),
        OutputEvent(index=0, content="a"),
        OutputEvent(index=0, content="b", finish_reason="stop", usage=_usage(2)),
    )
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["batch_size"] == [1, 1]
    assert answer["decode_time_arr"] == [28]


def test_tool_calls_and_thought_grow_from_their_deltas() -> None:
    answer = _render(
        OutputEvent(index=0, reasoning="Let me "),
        OutputEvent(index=0, reasoning="look."),
        OutputEvent(index=0, content="I will ask."),
        OutputEvent(index=0, tool_calls=(ToolCallDelta(index=0, id="call_abcdefgh", name="weather"),)),
        OutputEvent(index=0, tool_calls=(ToolCallDelta(index=0, arguments='{"city":'),)),
        OutputEvent(
            index=0,
            tool_calls=(
                ToolCallDelta(index=0, arguments=' "Äa"}'),
                ToolCallDelta(index=1, id="call_12345678", name="time"),
                ToolCallDelta(index=1, arguments="{}"),
            ),
        ),
        OutputEvent(index=0, finish_reason="tool_calls", usage=_usage(7, reasoning_tokens=2)),
    )
    (choice,) = answer["choices"]
    assert list(choice["message"]) == ["role", "content", "reasoning_content", "tool_calls"]
    assert choice["message"]["reasoning_content"] == "Let me look."
    assert choice["message"]["content"] == "I will ask."
    assert json.dumps(choice["message"]["tool_calls"], ensure_ascii=False) == (
        '[{"function": {"arguments": "{\\"city\\": \\"Äa\\"}", "name": "weather"}, "id": "call_abcdefgh", '
        '"type": "function"}, {"function": {"arguments": "{}", "name": "time"}, "id": "call_12345678", '
        '"type": "function"}]'
    )
    assert choice["finish_reason"] == "tool_calls"
    assert list(answer["usage"]) == [
        "prompt_tokens",
        "prompt_tokens_details",
        "completion_tokens",
        "completion_tokens_details",
        "total_tokens",
        "batch_size",
        "queue_wait_time",
    ]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_an_empty_thought_still_has_its_key() -> None:
    answer = _render(OutputEvent(index=0, reasoning="", content="x", finish_reason="stop", usage=_usage(1)))
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "",
        "tool_calls": [],
    }


def test_logprobs_of_all_events_in_order() -> None:
    rival = LogprobCandidate(token="é", logprob=-1.5, bytes=(195, 169))
    answer = _render(
        OutputEvent(index=0, logprobs=(LogprobEntry(token="a", logprob=-0.5, bytes=(97,), top=(rival,)),)),
        OutputEvent(
            index=0,
            logprobs=(LogprobEntry(token="", logprob=-9999.0, bytes=()),),
            finish_reason="stop",
            usage=_usage(2),
        ),
    )
    assert json.dumps(answer["choices"][0]["logprobs"], ensure_ascii=False) == (
        '{"content": [{"token": "a", "logprob": -0.5, "bytes": [97], '
        '"top_logprobs": [{"token": "é", "logprob": -1.5, "bytes": [195, 169]}]}, '
        '{"token": "", "logprob": -9999.0, "bytes": [], "top_logprobs": []}]}'
    )


def _ending(index: int, text: str, logprob: float) -> OutputEvent:
    usage = _usage(1, cumulative_logprob=logprob)
    return OutputEvent(index=index, content=text, finish_reason="stop", usage=usage)


def test_more_sequences_than_asked_for_come_best_first() -> None:
    events = [_ending(0, "worst", -9.0), _ending(1, "best", -1.0), _ending(2, "middle", -3.0)]
    ranked = _render(*events, best_first=True)["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in ranked] == [
        (0, "best"),
        (1, "middle"),
        (2, "worst"),
    ]
    created = _render(*events)["choices"]
    assert [choice["message"]["content"] for choice in created] == ["worst", "best", "middle"]


@pytest.mark.parametrize(
    ("n", "best_of", "beam", "expected"),
    [
        (None, None, False, False),
        (3, None, False, False),
        (3, 3, False, False),
        (2, 3, False, True),
        (None, 3, False, True),
        (None, 1, False, False),
        (2, 3, True, False),
    ],
)
def test_when_choices_are_ranked(n: int | None, best_of: int | None, beam: bool, expected: bool) -> None:
    request = ChatRequest(model="m", messages=(), n=n, best_of=best_of, use_beam_search=beam)
    assert ranks_choices(request) is expected


def test_native_mode_speaks_openai() -> None:
    answer = _render(
        OutputEvent(index=0, tool_calls=(ToolCallDelta(index=0, id="call_1", name="f"),)),
        OutputEvent(index=0, finish_reason="tool_calls", usage=_usage(4, reasoning_tokens=1)),
        mode=ApiMode.NATIVE,
    )
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert answer["choices"][0]["message"]["content"] is None
    assert answer["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    plain = _render(OutputEvent(index=0, content="hi", finish_reason="stop", usage=_usage(1)), mode=ApiMode.NATIVE)
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
    assert "completion_tokens_details" not in plain["usage"]
