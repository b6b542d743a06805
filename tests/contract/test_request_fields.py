"""Parameters that stand alone: exact texts, borders of ranges, defaults, the dialects' differences."""

import logging
from typing import Any

import pytest
from tests.contract.asking import NATIVE, VLLM, accepted, refused

from mindserve.contract.context import ValidationContext
from mindserve.contract.parameters import MODE_RULES
from mindserve.contract.request import ChatRequest
from mindserve.errors import ModelNotFound
from mindserve.settings.values import ApiMode


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("presence_penalty", 3, "Parameter presence_penalty not in [-2.0, 2.0], but got 3."),
        ("frequency_penalty", -2.5, "Parameter frequency_penalty should be in [-2.0, 2.0], got -2.5."),
        ("repetition_penalty", 0, "Parameter 'repetition_penalty' must be in (0.0, 2], got 0."),
        ("repetition_penalty", 2.1, "Parameter 'repetition_penalty' must be in (0.0, 2], got 2.1."),
        ("temperature", -1, "Parameter temperature must be in (0.0,3.40282e+38], got -1."),
        ("temperature", 1e39, "Parameter temperature must be in (0.0,3.40282e+38], got 1e+39."),
        ("top_p", 1e-6, "Parameter top_p must be in (0.0,1.0], got 1e-06."),
        ("top_p", 1.5, "Parameter top_p must be in (0.0,1.0], got 1.5."),
        ("top_k", -2, "Parameter top_k must be in -1 || (0,2147483647], got -2"),
        ("top_k", 2**64 - 1, "Parameter top_k must be in -1 || (0,2147483647], got 18446744073709551615"),
        ("max_tokens", 0, "Parameter max_tokens must be (0,2147483647], got 0"),
        ("max_tokens", 2**31, "Parameter max_tokens must be (0,2147483647], got 2147483648"),
        ("n", 129, "Parameter [n] should be in [1, 128], got 129."),
        ("n", 2**32 + 1, "Parameter [n] should be in [1, 128], got 4294967297."),
        ("best_of", 0, "Parameter [best_of] should be in [1, 128], got 0."),
        ("top_logprobs", 21, "Parameter top logprobs must be in [0, 20], got 21."),
        ("stop", "", "Input validation error: length of `stop` must be in [1, 32768], but got 0"),
        ("stop", 5, "Input validation error: param stop must be string or list[string]"),
        ("stop", {}, "Input validation error: param stop must be string or list[string]"),
        ("stop_token_ids", "2", "Parameter stop_token_ids not array"),
        ("stop_token_ids", [1, None], "Parameter stop_token_ids not list[int]"),
        ("max_tokens", 5.0, "Parameter max_tokens not number_integer"),
        ("max_tokens", 2**64, "Parameter max_tokens not number_integer"),
    ],
)
def test_range_texts(name: str, value: object, text: str) -> None:
    error = refused(**{name: value})
    assert error.message == text
    assert error.param == name


LIST_TEXT = (
    "Input validation error: `stop` must be list[string] if list, and item length in [1, 32768] with total <= 32768"
)


@pytest.mark.parametrize("stop", [["a", ""], [None], [1], [["a"]], ["a" * 32768, "b"], ["a" * 32769]])
def test_stop_list(stop: list[Any]) -> None:
    assert refused(stop=stop).message == LIST_TEXT


@pytest.mark.parametrize(
    ("names", "values", "word"),
    [
        (
            ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
            ("1", True, [], {}),
            "float",
        ),
        (("n", "best_of", "seed", "top_logprobs"), ("1", 1.0, True, -1, [], {}, 2**64), "unsigned"),
        (("top_k",), ("1", 1.0, True, [], {}, 2**64, -(2**63) - 1), "integer"),
        (
            ("stream", "ignore_eos", "skip_special_tokens", "use_beam_search", "logprobs"),
            (0, 1, "true", 1.0, [], {}),
            "boolean",
        ),
    ],
)
def test_types(names: tuple[str, ...], values: tuple[Any, ...], word: str) -> None:
    for name in names:
        for value in values:
            error = refused(**{name: value})
            assert error.message == f"{name} must be {word} type.", (name, value)
            assert error.param == name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("presence_penalty", (-2, 2, 0.5)),
        ("frequency_penalty", (-2.0, 2.0)),
        ("repetition_penalty", (5e-324, 2)),
        ("temperature", (0, 1e-9, 100, 3.4028234663852886e38)),
        ("top_p", (1.0000001e-6, 1)),
        ("top_k", (-1, 1, 2**31 - 1)),
        ("seed", (0, 2**64 - 1)),
        ("max_tokens", (1, 2**31 - 1)),
        ("n", (1, 128)),
        ("best_of", (1, 128)),
    ],
)
def test_borders_are_valid(name: str, values: tuple[float, ...]) -> None:
    for value in values:
        got = getattr(accepted(**{name: value}), name)
        assert got == value
        is_float = name in ("temperature", "top_p") or name.endswith("penalty")
        assert type(got) is (float if is_float else int)


def test_null_is_absent() -> None:
    every = {field.name: None for field in MODE_RULES[ApiMode.NATIVE].fields}
    nulls = accepted(NATIVE, **every, tools=None, tool_choice=None, response_format=None, chat_template=None)
    assert nulls == accepted(NATIVE)
    assert len(every) > 15


def test_defaults() -> None:
    request = accepted()
    assert request == ChatRequest(model="m", messages=request.messages)


def test_stop_forms() -> None:
    assert accepted(stop="END").stop == ("END",)
    assert accepted(stop=["a", "b"]).stop == ("a", "b")
    assert accepted(stop=[]).stop == ()
    assert accepted(stop="\U0001f600" * 32768).stop == ("\U0001f600" * 32768,)


def test_stop_token_ids_keeps_token_ids() -> None:
    ids = [2, "3", 4.0, True, -1, 2**31, 2**70, 2, [], {}, 13]
    assert accepted(stop_token_ids=ids).stop_token_ids == (2, 13)


def test_include_stop_needs_a_stop() -> None:
    assert not accepted(include_stop_str_in_output="nonsense").include_stop
    assert accepted(include_stop_str_in_output=True, stop="x").include_stop
    assert accepted(include_stop_str_in_output=True, stop_token_ids=[1]).include_stop
    assert refused(include_stop_str_in_output=1, stop=None).param == "include_stop_str_in_output"


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": None, "top_logprobs": None}, None),
        ({"logprobs": True}, 0),
        ({"top_logprobs": 0}, 0),
        ({"top_logprobs": 3}, 3),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert accepted(**fields).logprobs == logprobs


def test_logprobs_contradiction() -> None:
    text = "Value error, when using top_logprobs, logprobs must be true or null in chat completions"
    assert refused(logprobs=False, top_logprobs=0).message == text


def test_seed_near_the_maximum_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        accepted(seed=2**63)
        assert not caplog.records
        accepted(seed=2**64 - 1)
    assert "close to the maximum" in caplog.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"temperature": 2.5}, "Parameter temperature must be in (0.0,2], got 2.5."),
        ({"top_k": -1}, "Parameter top_k must be in -1 || (0,2147483647], got -1"),
        ({"stop": "a" * 1025}, "Input validation error: length of `stop` must be in [1, 1024], but got 1025"),
        ({"max_completion_tokens": 0}, "Parameter max_completion_tokens must be (0,2147483647], got 0"),
        ({"max_completion_tokens": "1"}, "Parameter max_completion_tokens not number_integer"),
        ({"stream_options": 1}, "stream_options must be object type."),
        ({"stream_options": {"include_usage": 1}}, "include_usage must be boolean type."),
        ({"model": "other"}, "Got model other, but not found in server"),
    ],
)
def test_native_texts(fields: dict[str, Any], text: str) -> None:
    assert refused(NATIVE, **fields).message == text


def test_native_list_of_stops() -> None:
    text = (
        "Input validation error: `stop` must be list[string] if list, and item length in [1, 1024] with total <= 32768"
    )
    assert refused(NATIVE, stop=["ab"] * 1025).message == text
    assert refused(NATIVE, stop=["a" * 1025]).message == text
    assert len(accepted(NATIVE, stop=["ab"] * 1024).stop) == 1024


def test_native_values() -> None:
    assert accepted(NATIVE, top_k=0).top_k == -1
    assert accepted(NATIVE, max_completion_tokens=5).max_tokens == 5
    assert accepted(NATIVE, max_completion_tokens=5, max_tokens=9).max_tokens == 5
    assert accepted(NATIVE, max_tokens=9).max_tokens == 9
    assert accepted(NATIVE, stream=True, stream_options={"include_usage": True}).include_usage
    assert not accepted(NATIVE, stream=True, stream_options={"include_usage": None}).include_usage
    extensions = accepted(NATIVE, repetition_penalty=1.2, ignore_eos=True, top_k=5, use_beam_search=True)
    assert (extensions.repetition_penalty, extensions.ignore_eos, extensions.top_k) == (1.2, True, 5)


def test_vllm_mode_ignores_what_is_native() -> None:
    request = accepted(max_completion_tokens=-5, stream_options={"include_usage": True}, stream=True)
    assert request.max_tokens is None
    assert not request.include_usage


def test_model() -> None:
    assert accepted(model="adapter").model == "adapter"
    assert isinstance(refused(model="nobody"), ModelNotFound)
    assert refused(model="nobody").message == "Model not found"
    assert len(refused(NATIVE, model="x" * 10_000).message) < 250


def test_models_may_come_and_go() -> None:
    models: dict[str, object] = {"m": None}
    context = ValidationContext(models=models)
    assert isinstance(refused(context, model="late"), ModelNotFound)
    models["late"] = None
    assert accepted(context, model="late").model == "late"


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (None, "chat_template_kwargs must be a JSON object"),
        ({"enable_thinking": None}, "enable_thinking must be boolean, got null"),
        ({"enable_thinking": "yes"}, "enable_thinking must be boolean, got string"),
        ({"enable_thinking": 1}, "enable_thinking must be boolean, got number"),
        ({"enable_thinking": 1.5}, "enable_thinking must be boolean, got number"),
        ({"enable_thinking": []}, "enable_thinking must be boolean, got array"),
        ({"enable_thinking": {}}, "enable_thinking must be boolean, got object"),
        ({"tokenize": False}, "chat_template_kwargs must not contain 'tokenize'"),
        ({"eos_token": "x"}, "chat_template_kwargs must not contain 'eos_token'"),
        ({"enable_thinking": True, "thinking_budget": 0}, "Parameter thinking_budget must be in [1,2147483647], got 0"),
        ({"enable_thinking": True, "thinking_budget": 1.5}, "thinking_budget must be integer type."),
    ],
)
def test_template_kwargs_refused(kwargs: object, text: str) -> None:
    assert refused(chat_template_kwargs=kwargs).message == text


def test_template_kwargs() -> None:
    request = accepted(chat_template_kwargs={"enable_thinking": True, "thinking_budget": 9, "other": [1]})
    assert request.template_kwargs == {"enable_thinking": True, "thinking_budget": 9, "other": [1]}
    assert (request.enable_thinking, request.thinking_budget) == (True, 9)
    ignored = accepted(chat_template_kwargs={"enable_thinking": False, "thinking_budget": "x"})
    assert (ignored.enable_thinking, ignored.thinking_budget) == (False, None)
    context = ValidationContext(models={"m": None}, reserved_template_keys=frozenset(["image_token"]))
    assert refused(context, chat_template_kwargs={"image_token": ""}).param == "chat_template_kwargs"


def test_request_template_needs_permission() -> None:
    allowing = ValidationContext(models={"m": None}, allows_chat_template=True)
    assert accepted(allowing, chat_template="{{ x }}").chat_template == "{{ x }}"
    assert "not allowed" in refused(VLLM, chat_template="{{ x }}").message
    assert refused(allowing, chat_template="").message == "Parameter chat_template is not valid"
    assert refused(allowing, chat_template="x" * 32768).message == "Parameter chat_template is not valid"
    assert refused(allowing, chat_template=1).message == "Parameter chat_template not string"
