"""The contract's output cases over HTTP, streamed and not: the scripted engine plays each text, byte by byte."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mindserve.cli import compose as compose_module
from mindserve.cli import engines as engines_module
from mindserve.engine.scripted import Answer
from mindserve.text.bytes_tokenizer import CHATML_TEMPLATE, ByteTokenizer

from ..output.cases import PARSERS, THINKERS, VERBATIM, Case, load_cases, markers
from .bodies import WEATHER, Json
from .servers import Server, scripted

CASES = load_cases()
END = "<|im_end|>"
NO_THOUGHT = (
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
THINKING_TEMPLATE = CHATML_TEMPLATE + NO_THOUGHT

Key = tuple[str, bool]
"""A family, and whether the server splits thoughts off."""


def _key(case: Case) -> Key:
    return case.family, case.request["enable_reasoning"]


def _answers(key: Key) -> list[Answer]:
    """Each case's text for the prompt that names the case, a few tokens at a time as with speculation."""
    cases = [case for case in CASES if _key(case) == key]
    return [
        Answer(match=f"[{case.id}]", text=case.text.removesuffix(END), tokens_per_step=1 + place % 3)
        for place, case in enumerate(cases)
    ]


def _template(folder: Path, family: str) -> Path:
    file = folder / "template.jinja"
    file.write_text(THINKING_TEMPLATE if family in THINKERS else CHATML_TEMPLATE)
    return file


def _tokenizer(key: Key, *, has_markers: bool) -> ByteTokenizer:
    texts = {marker for case in CASES if _key(case) == key for marker in markers(case)}
    return ByteTokenizer(markers=sorted(texts) if has_markers else ())


@pytest.fixture(scope="module", params=[True, False], ids=["tokens-for-markers", "bytes"])
def has_markers(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(scope="module", params=sorted({_key(case) for case in CASES}), ids=lambda key: f"{key[0]}-{key[1]}")
def key(request: pytest.FixtureRequest) -> Key:
    return request.param


@pytest.fixture(scope="module")
def server(key: Key, has_markers: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    family, enable_reasoning = key
    tokenizer = _tokenizer(key, has_markers=has_markers)
    with (
        patch.object(compose_module, "ByteTokenizer", lambda: tokenizer),
        patch.object(engines_module, "ByteTokenizer", lambda: tokenizer),
        scripted(
            Answer(text="no case was named"),
            *_answers(key),
            chat_template=_template(tmp_path_factory.mktemp("template"), family),
            enable_reasoning=enable_reasoning,
            tool_call_parser=PARSERS[family],
        ) as up,
    ):
        yield up


def _body(case: Case, tokenizer: ByteTokenizer) -> Json:
    wanted = case.request
    body: dict[str, Any] = {"messages": [{"role": "user", "content": f"[{case.id}]"}], "max_tokens": 500}
    if wanted["tools"]:
        body |= {"tools": wanted["tools"] if isinstance(wanted["tools"], list) else [WEATHER]}
        body |= {"tool_choice": wanted["tool_choice"]}
    if wanted["enable_thinking"] is not None:
        body["chat_template_kwargs"] = {"enable_thinking": wanted["enable_thinking"]}
    if "skip_special_tokens" in wanted:
        body["skip_special_tokens"] = wanted["skip_special_tokens"]
    if case.finish == "length":
        body["max_tokens"] = len(tokenizer.encode(case.text))
    return body


def _check(case: Case, answer: Json) -> None:
    (choice,) = answer["choices"]
    message = choice["message"]
    assert message["content"] == case.content
    assert message.get("reasoning_content") == case.reasoning
    assert choice["finish_reason"] == case.finish_reason
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert [name for name, _ in calls] == [name for name, _ in case.calls]
    for (_, got), (_, expected) in zip(calls, case.calls, strict=True):
        assert json.loads(got) == json.loads(expected)
        assert case.family not in VERBATIM or got == expected


def test_each_case_both_ways(server: Server, key: Key, has_markers: bool) -> None:
    tokenizer = _tokenizer(key, has_markers=has_markers)
    failures: list[str] = []
    for case in (case for case in CASES if _key(case) == key):
        for way in (server.full, server.streamed):
            try:
                _check(case, way(_body(case, tokenizer)))
            except AssertionError as failure:
                failures.append(f"{case.id}, {way.__name__}: {failure}")
    assert failures == []


def test_every_case_has_a_server() -> None:
    keys = sorted({_key(case) for case in CASES})
    assert sum(len(_answers(key)) for key in keys) == len(CASES) == 93
