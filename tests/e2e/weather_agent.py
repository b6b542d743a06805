"""A check by hand with a larger model that knows tools, too large for every run of the tests.

usage: python -m tests.e2e.weather_agent MODEL

MODEL: a GGUF file or Hugging Face directory of the Qwen2.5 family (Qwen2.5-Coder-0.5B-Instruct suffices). The model
calls a weather tool because it must (required, named), streamed and not, and answers from the tool's result.
"""

import json
import sys
from pathlib import Path
from typing import Any

from .bodies import TIME, Json
from .demo_models import serving
from .servers import Server

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}
QUESTION: Json = {"role": "user", "content": "What is the weather in Paris, in celsius?"}
FOLLOW_UP: Json = {"role": "user", "content": "So what is it like there? Say it in one plain English sentence."}
RESULT = '{"city": "Paris", "sky": "heavy snow", "degrees": -11}'
CHOICES: list[Any] = ["required", {"type": "function", "function": {"name": "get_weather"}}]


def check(server: Server, tool_choice: Any) -> str:
    """The answer that the model gives in the end. Raises AssertionError."""
    body: Json = {"messages": [QUESTION], "tools": [WEATHER, TIME], "tool_choice": tool_choice, "temperature": 0}
    full, streamed = (way({**body, "max_tokens": 400})["choices"][0] for way in (server.full, server.streamed))
    for choice in (full, streamed):
        assert choice["finish_reason"] == "tool_calls", choice
        function = choice["message"]["tool_calls"][0]["function"]
        arguments = json.loads(function["arguments"])
        assert function["name"] == "get_weather", function
        assert (arguments["city"], arguments["unit"]) == ("Paris", "celsius"), arguments
    call = full["message"]["tool_calls"][0]
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    history = [QUESTION, said, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}, FOLLOW_UP]
    body |= {"messages": history, "tool_choice": "none", "max_tokens": 100}
    answer = server.full(body)["choices"][0]
    text: str = answer["message"]["content"]
    assert answer["finish_reason"] == "stop", answer
    assert "snow" in text.lower() or "-11" in text, text
    assert "get_weather" not in text, text
    return text


def main() -> None:
    with serving(Path(sys.argv[1])) as server:
        for tool_choice in CHOICES:
            print(json.dumps(tool_choice), "->", check(server, tool_choice))


if __name__ == "__main__":
    main()
