"""Requests that are answered the same way, streamed or not."""

from typing import Any

Json = dict[str, Any]


def _said(text: str, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], "seed": 11, "max_tokens": 24, **fields}


WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
TIME: Json = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
PERSON: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Ann", "Bo"]}, "grown": {"type": "boolean"}},
    "required": ["name", "grown"],
    "additionalProperties": False,
}
PERSON_FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}

SAMPLING: dict[str, Json] = {
    "everything-default": _said("Tell me a story."),
    "no-seed-but-greedy": _said("Tell me a story.", seed=None, temperature=0),
    "greedy-by-top-k": _said("Tell me a story.", top_k=1),
    "cold": _said("Tell me a story.", temperature=0.2),
    "hot": _said("Tell me a story.", temperature=1.7),
    "barely-above-zero": _said("Tell me a story.", temperature=1e-7),
    "top-k": _said("Tell me a story.", top_k=5),
    "top-k-off": _said("Tell me a story.", top_k=-1),
    "top-k-beyond-the-vocabulary": _said("Tell me a story.", top_k=2147483647),
    "top-p": _said("Tell me a story.", top_p=0.4),
    "tiny-top-p": _said("Tell me a story.", top_p=0.00001),
    "repetition-penalty": _said("Tell me a story.", repetition_penalty=1.5),
    "presence-penalty": _said("Tell me a story.", presence_penalty=2.0),
    "frequency-penalty": _said("Tell me a story.", frequency_penalty=-0.5),
    "all-penalties": _said(
        "Tell me a story.", repetition_penalty=0.9, presence_penalty=-1.0, frequency_penalty=1.0, temperature=0.6
    ),
    "largest-seed": _said("Tell me a story.", seed=18446744073709551615),
    "seed-zero": _said("Tell me a story.", seed=0, temperature=1.2),
}
LENGTHS: dict[str, Json] = {
    "one-token": _said("hi", max_tokens=1),
    "two-tokens": _said("hi", max_tokens=2),
    "longer": _said("hi", max_tokens=90),
    "past-the-end": _said("hi", ignore_eos=True, max_tokens=60),
    "past-the-end-and-visible": _said("hi", ignore_eos=True, skip_special_tokens=False, max_tokens=60),
    "special-tokens-visible": _said("hi", skip_special_tokens=False),
}
STOPS: dict[str, Json] = {
    "stop": _said("stop test", stop="e", temperature=0),
    "stop-list": _said("stop test", stop=["zzzz", "o", "a"]),
    "stop-that-never-comes": _said("stop test", stop=["\u2603\u2603\u2603"]),
    "stop-kept": _said("stop test", stop=["a", "e", "o"], include_stop_str_in_output=True),
    "long-stop-held-back": _said("stop test", stop=["a long stop string that holds text back"], max_tokens=60),
    "stop-with-n": _said("stop test", stop=["e"], n=3, temperature=0.9),
    "stop-with-logprobs": _said("stop test", stop=["e"], logprobs=True, top_logprobs=2),
    "stop-tokens": _said("stop test", stop_token_ids=list(range(97, 107))),
    "stop-tokens-kept": _said("stop test", stop_token_ids=list(range(97, 107)), include_stop_str_in_output=True),
    "stop-tokens-past-the-end": _said("stop test", stop_token_ids=[101], ignore_eos=True, max_tokens=60),
}
SEQUENCES: dict[str, Json] = {
    "two": _said("several", n=2),
    "five": _said("several", n=5, temperature=1.3),
    "n-and-best-of": _said("several", n=3, best_of=3),
    "two-of-one-token": _said("several", n=2, max_tokens=1),
    "two-with-logprobs": _said("several", n=2, logprobs=True, top_logprobs=1),
    "beam": _said("several", use_beam_search=True),
    "three-beams": _said("several", use_beam_search=True, n=3, temperature=0),
    "beams-with-logprobs": _said("several", use_beam_search=True, n=2, logprobs=True),
}
LOGPROBS: dict[str, Json] = {
    "chosen-only": _said("why?", logprobs=True),
    "one-rival": _said("why?", top_logprobs=1),
    "twenty-rivals": _said("why?", logprobs=True, top_logprobs=20, max_tokens=5),
    "greedy": _said("why?", logprobs=True, top_logprobs=3, temperature=0),
    "after-top-k": _said("why?", logprobs=True, top_logprobs=5, top_k=2),
    "special-tokens-visible-in-them": _said("why?", logprobs=True, skip_special_tokens=False, ignore_eos=True),
}
CONVERSATIONS: dict[str, Json] = {
    "system": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "seed": 3,
        "max_tokens": 12,
    },
    "turns": {
        "messages": [
            {"role": "user", "content": "best city?"},
            {"role": "assistant", "content": "Shanghai"},
            {"role": "user", "content": "best thing there?"},
        ],
        "seed": 3,
        "max_tokens": 12,
    },
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "seed": 3,
        "max_tokens": 12,
    },
    "unicode": _said("\u4f60\u597d \U0001f600 \u00e9 \u0410\u0411\u0412"),
    "long": _said("word " * 150),
    "nulls": _said("hi", n=None, best_of=None, stop=None, top_logprobs=None, tools=None, temperature=None),
    "unknown-fields": _said("hi", user="me", logit_bias={"1": 2}, metadata={}),
}
CONSTRAINED: dict[str, Json] = {
    "text-format": _said("json please", response_format={"type": "text"}),
    "object": _said("json please", response_format={"type": "json_object"}, max_tokens=60),
    "object-cut": _said("json please", response_format={"type": "json_object"}, max_tokens=6),
    "schema": _said("json please", response_format=PERSON_FORMAT, max_tokens=80),
    "schema-twice": _said("json please", response_format=PERSON_FORMAT, n=2, max_tokens=80),
    "schema-with-logprobs": _said("json please", response_format=PERSON_FORMAT, logprobs=True, max_tokens=80),
    "schema-greedy": _said("json please", response_format=PERSON_FORMAT, temperature=0, max_tokens=80),
}
TOOLS: dict[str, Json] = {
    "offered": _said("weather in Paris?", tools=[WEATHER, TIME], max_tokens=200),
    "not-offered": _said("weather in Paris?", tools=[WEATHER], tool_choice="none"),
    "required": _said("weather in Paris?", tools=[WEATHER, TIME], tool_choice="required", max_tokens=200),
    "named": _said(
        "weather in Paris?",
        tools=[WEATHER, TIME],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
    ),
    "cut-inside-a-call": _said("weather in Paris?", tools=[WEATHER], tool_choice="required", max_tokens=30),
    "history": {
        "messages": [
            {"role": "user", "content": "weather in Paris?"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ],
        "tools": [WEATHER],
        "seed": 5,
        "max_tokens": 24,
    },
}

ALL: dict[str, Json] = SAMPLING | LENGTHS | STOPS | SEQUENCES | LOGPROBS | CONVERSATIONS | CONSTRAINED | TOOLS
