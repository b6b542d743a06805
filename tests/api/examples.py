"""The contract's own example requests and answers, and what their shape is.

They come from several releases of the reference. Where they differ the newest shape counts, as decided: `tool_calls` is
a list in full answers and absent from deltas without calls, `logprobs` and `prompt_tokens_details` are always there.
"""

import json
from pathlib import Path
from typing import Any

from tests.api.running import MODEL

EXAMPLES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "contract" / "examples.json").read_text(encoding="utf-8")
)


def asked(name: str, **fields: Any) -> dict[str, Any]:
    """An example request, with the served model's name."""
    return EXAMPLES["requests"][name] | {"model": MODEL} | fields


def shape(value: Any) -> Any:
    """Keys in their order, and types; of a list the shapes of its elements, equal ones once."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        shapes: list[Any] = []
        for item in value:
            if shape(item) not in shapes:
                shapes.append(shape(item))
        return ("list", shapes)
    return "null" if value is None else type(value).__name__


def newest_answer(example: dict[str, Any]) -> dict[str, Any]:
    """The example as the newest release writes it."""
    choices = [
        {
            "index": choice["index"],
            "message": choice["message"] | {"tool_calls": choice["message"].get("tool_calls") or []},
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in example["choices"]
    ]
    return example | {"choices": choices}


def newest_chunk(example: dict[str, Any]) -> dict[str, Any]:
    choices = [
        {
            "index": choice["index"],
            "delta": choice["delta"],
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in example["choices"]
    ]
    chunk = example | {"choices": choices}
    if usage := example.get("usage"):
        details = {"prompt_tokens_details": {"cached_tokens": 0}}
        first = {"prompt_tokens": usage["prompt_tokens"]} | details
        chunk["usage"] = first | {key: value for key, value in usage.items() if key not in first}
    return chunk
