"""A thinking model: the thought apart from the content, streamed or not, with and without a budget."""

from collections.abc import Iterator

import pytest

from .bodies import Json
from .conftest import GOLDENS, native
from .fold import assert_same
from .servers import Server

TEMPLATE = """\
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("thinking")
    template = folder / "chat.jinja"
    template.write_text(TEMPLATE)
    with native(folder, path=GOLDENS / "qwen3" / "model", enable_reasoning=True, chat_template=template) as up:
        yield up


def _said(**fields: object) -> Json:
    return {"messages": [{"role": "user", "content": "think!"}], "seed": 4, "max_tokens": 40, **fields}


def _answer(server: Server, body: Json) -> Json:
    """The full answer, which the stream equals."""
    full, streamed = server.full(body), server.streamed(body)
    assert_same(streamed["choices"], full["choices"])
    assert streamed["usage"].get("completion_tokens_details") == full["usage"].get("completion_tokens_details")
    return full


def test_a_thought_that_does_not_end_is_all_there_is(server: Server) -> None:
    answer = _answer(server, _said(ignore_eos=True))
    (choice,) = answer["choices"]
    assert list(choice["message"]) == ["role", "content", "reasoning_content", "tool_calls"]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] != ""
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 40}


def test_a_budget_ends_the_thought(server: Server) -> None:
    kwargs = {"enable_thinking": True, "thinking_budget": 6}
    body = _said(ignore_eos=True, n=2, chat_template_kwargs=kwargs)
    answer = _answer(server, body)
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"] != ""
        assert choice["message"]["content"] != ""
    reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 2 * 6 <= reasoning < 2 * 20


def test_thinking_can_be_switched_off(server: Server) -> None:
    answer = _answer(server, _said(chat_template_kwargs={"enable_thinking": False}))
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["message"]["content"] != ""
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_stop_string_inside_the_thought_ends_it_and_stays(server: Server) -> None:
    thought = _answer(server, _said(ignore_eos=True))["choices"][0]["message"]["reasoning_content"]
    stop = thought[10:13]
    (choice,) = _answer(server, _said(ignore_eos=True, stop=[stop]))["choices"]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == thought[: thought.index(stop)] + stop
    assert choice["finish_reason"] == "stop"


def test_a_schema_binds_the_content_behind_the_thought(server: Server) -> None:
    """The grammar starts after the thought, which the budget ends."""
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    body = _said(
        max_tokens=300,
        chat_template_kwargs={"enable_thinking": True, "thinking_budget": 4},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    (choice,) = _answer(server, body)["choices"]
    assert choice["message"]["reasoning_content"] != ""
    assert choice["message"]["content"].split() != []
    assert choice["message"]["content"].lstrip().startswith("{")
