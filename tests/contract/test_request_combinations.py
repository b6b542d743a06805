"""What does not go together, one row per pair, and the neighbours that do."""

from typing import Any

import pytest
from tests.contract.asking import TOOL, VLLM, accepted, refused

from mindserve.contract.context import ValidationContext

PLUGINS = [
    ValidationContext(models={"m": None}, plugin_types=frozenset([name])) for name in ("mtp", "la", "memory_decoding")
]
DEEPSEEK = ValidationContext(models={"m": None}, model_type="deepseek_v3")
JSON_OBJECT = {"type": "json_object"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"n": 3, "best_of": 2}, "best_of must be greater than or equal to n, but best_of is 2, n is 3."),
        (
            {"stream": True, "n": 2, "best_of": 3},
            "best_of must be equal to n in stream mode, but best_of is 3, n is 2.",
        ),
        ({"stream": True, "best_of": 1}, "best_of must be equal to n in stream mode, but best_of is 1, n is None."),
        (
            {"n": 2, "temperature": 0},
            "best_of/n can not greater than 1 without using beam search when temperature is 0 or not set, "
            "but best_of is None, n is 2.",
        ),
        ({"use_beam_search": True, "stop": "x"}, "use_beam_search cannot be used together with stop"),
        (
            {"use_beam_search": True, "stop_token_ids": [1]},
            "use_beam_search cannot be used together with stop_token_ids",
        ),
        (
            {"use_beam_search": True, "response_format": JSON_OBJECT},
            "use_beam_search cannot be used together with response_format",
        ),
        ({"tools": [TOOL], "stop": "x"}, "tools cannot be used together with stop"),
        ({"tools": [TOOL], "stop_token_ids": [1]}, "tools cannot be used together with stop_token_ids"),
        ({"tools": [TOOL], "use_beam_search": True}, "tools cannot be used together with use_beam_search"),
        ({"tools": [TOOL], "best_of": 2}, "tools cannot be used together with best_of"),
        ({"tools": [TOOL], "n": 2}, "tools cannot be used together with n"),
        ({"tools": [TOOL], "logprobs": True}, "tools cannot be used together with logprobs and top_logprobs"),
        ({"tools": [TOOL], "top_logprobs": 0}, "tools cannot be used together with logprobs and top_logprobs"),
        ({"tools": [TOOL], "response_format": JSON_OBJECT}, "tools cannot be used together with response_format"),
    ],
)
def test_refused(fields: dict[str, Any], text: str) -> None:
    error = refused(**fields)
    assert error.message == text
    assert error.param in {*fields, "logprobs"}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"n": 2, "temperature": 1e-9},
        {"n": 2, "temperature": None, "top_k": 1},
        {"n": 2, "best_of": 3},
        {"best_of": 1},
        {"stream": True, "n": 2},
        {"stream": True, "n": 2, "best_of": 2},
        {"n": 1, "best_of": 1, "temperature": 0},
        {"use_beam_search": True, "n": 4, "temperature": 0},
        {"use_beam_search": True, "n": 3, "best_of": 2, "stream": True},
        {"use_beam_search": True, "best_of": 1000},
        {"use_beam_search": True, "stop": [], "stop_token_ids": []},
        {"use_beam_search": True, "stop_token_ids": ["ignored"]},
        {"use_beam_search": True, "response_format": {"type": "text"}},
        {"use_beam_search": True, "max_tokens": 4096},
        {"tools": [TOOL], "n": 1, "best_of": 1, "logprobs": False, "stop": [], "stop_token_ids": None},
        {"tools": [TOOL], "include_stop_str_in_output": True},
        {"tools": [TOOL], "tool_choice": "none", "stop": "x", "n": 2, "logprobs": True, "response_format": JSON_OBJECT},
        {"tools": [], "stop": "x", "n": 2},
        {"chat_template_kwargs": {"enable_thinking": True}, "stop": "x", "include_stop_str_in_output": True},
    ],
)
def test_accepted(fields: dict[str, Any]) -> None:
    request = accepted(**fields)
    assert request.n == fields.get("n")
    assert request.best_of == fields.get("best_of")


@pytest.mark.parametrize("context", PLUGINS)
def test_plugins(context: ValidationContext) -> None:
    assert refused(context, use_beam_search=True).message == "beam search cannot be used with plugins"
    assert refused(context, logprobs=True).message == "logprobs cannot be used with plugins"
    assert refused(context, n=2).message == "best_of/n > 1 cannot be used with plugins"
    assert refused(context, best_of=2).message == "best_of/n > 1 cannot be used with plugins"
    assert accepted(context, n=1, best_of=1, logprobs=False).n == 1


def test_structured_output_and_mtp() -> None:
    mtp, la, _ = PLUGINS
    text = "structured output (response_format) cannot be used with mtp"
    assert refused(mtp, response_format=JSON_OBJECT).message == text
    assert accepted(la, response_format=JSON_OBJECT).response_format.kind == "json_object"
    assert accepted(mtp, response_format={"type": "text"})


def test_cache_and_chunked_prefill_exclude_nothing() -> None:
    context = ValidationContext(models={"m": None}, plugin_types=frozenset(["prefix_cache", "splitfuse"]))
    assert accepted(context, logprobs=True, n=2).logprobs == 0
    assert accepted(context, use_beam_search=True).use_beam_search


def test_deepseek() -> None:
    assert refused(DEEPSEEK, use_beam_search=True).message == "beam search cannot be used with deepseek"
    assert refused(DEEPSEEK, n=2).message == "best_of/n > 1 cannot be used with deepseek"
    assert refused(DEEPSEEK, best_of=2).message == "best_of/n > 1 cannot be used with deepseek"
    assert accepted(DEEPSEEK, n=1, logprobs=True).logprobs == 0
    distilled = ValidationContext(models={"m": None}, model_type="qwen2")
    assert accepted(distilled, n=2).n == 2


def test_configured_maximum_of_n() -> None:
    context = ValidationContext(models={"m": None}, max_n=4)
    assert refused(context, n=5).message == "The n parameter (5) exceeds 'maxN' (4)"
    assert accepted(context, n=4).n == 4
    assert accepted(VLLM, n=128).n == 128


def test_number_of_sequences() -> None:
    assert accepted(n=2).sequences == 2
    assert accepted(n=2, best_of=3).sequences == 3
    assert accepted(best_of=3).sequences == 3
    assert accepted(use_beam_search=True, best_of=3).sequences == 1
    assert accepted(use_beam_search=True, n=2, best_of=1).sequences == 2
