"""ChatGLM3's prompt without a template, as its own code builds it."""

import json
from pathlib import Path

import pytest

from mindserve.errors import InvalidRequest
from mindserve.output.formats.chatglm3 import CHATGLM3
from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer
from tests.text.sentencepiece_files import base_pieces, write_model

from .requests import AUTO, WEATHER, builder, call, message, request


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_model(tmp_path / "tokenizer.model", base_pieces())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ChatGLMTokenizer"}')
    return load_tokenizer(tmp_path)


def test_turns(tokenizer: Tokenizer) -> None:
    sent = request(message("system", "be"), "is", message("assistant", "so"), "do")
    prompt = builder(tokenizer=tokenizer, model_type="chatglm").build(sent)
    assert prompt.text == "[gMASK]sop<|system|>\n be<|user|>\n is<|assistant|>\n so<|user|>\n do<|assistant|>"


def test_tokens_are_those_of_separately_encoded_pieces(tokenizer: Tokenizer) -> None:
    """Its own code encodes the line with the metadata and the content each for itself."""
    prompt = builder(tokenizer=tokenizer, model_type="chatglm").build(request("hello sop"))
    special = {name: tokenizer.token_id(name) for name in ("[gMASK]", "sop", "<|user|>", "<|assistant|>")}
    content = [*tokenizer.encode("\n"), *tokenizer.encode("hello sop")]
    expected = [special["[gMASK]"], special["sop"], special["<|user|>"], *content, special["<|assistant|>"]]
    assert list(prompt.token_ids) == expected


def test_tools_go_into_the_system_turn(tokenizer: Tokenizer) -> None:
    prompt_builder = builder(tokenizer=tokenizer, model_type="chatglm")
    prompt = prompt_builder.build(request(message("system", "be"), "is", tools=(WEATHER,), tool_choice=AUTO))
    head, _, rest = prompt.text.partition(
        "[gMASK]sop<|system|>\n be\nAnswer the following questions as best as you can."
    )
    tools, _, end = rest.partition("<|user|>")
    assert (head, end) == ("", "\n is<|assistant|>")
    assert json.loads(tools.split("\n", 1)[1]) == [WEATHER.raw["function"]]
    assert prompt.plan.tools is not None
    assert prompt.plan.tools.format is CHATGLM3


def test_calls_and_their_results(tokenizer: Tokenizer) -> None:
    sent = request(
        "is",
        message("assistant", "well", tool_calls=(call('{"city": "Bad"}'),)),
        message("tool", "sun", tool_call_id="call_1"),
    )
    prompt = builder(tokenizer=tokenizer, model_type="chatglm").build(sent)
    assert prompt.text.endswith(
        '<|assistant|>\n well<|assistant|>get_weather\n {"city": "Bad"}<|observation|>\n sun<|assistant|>'
    )


def test_roles_that_it_does_not_know(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="unknown role"):
        builder(tokenizer=tokenizer, model_type="chatglm").build(request(message("critic", "be")))
    observation = request(message("observation", "be"))
    assert "<|observation|>\n be" in builder(tokenizer=tokenizer, model_type="chatglm").build(observation).text


def test_other_families_without_a_template_are_no_chat_models(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="does not appear to be a chat model"):
        builder(tokenizer=tokenizer, model_type="llama").build(request())
