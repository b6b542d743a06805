"""Messages, roles and options of a request in the prompt."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindserve.contract.request import MediaPart, PartKind, TextPart
from mindserve.engine.base import MediaInput, MediaKind
from mindserve.errors import ConfigError, InvalidRequest
from mindserve.output.plan import OutputPlan
from mindserve.text.bytes_tokenizer import ByteTokenizer
from mindserve.text.load import load_tokenizer
from tests.text.goldens import FAMILIES, GGUF_FAMILIES, GOLDENS, VOCABULARIES, prompts

from .requests import builder, call, from_golden, message, request

DUMP = "{{ messages | tojson }}"
"""A template that shows what it gets."""


def dumped(*messages: Any, template: str = DUMP) -> Any:
    return json.loads(builder(template).build(request(*messages)).text)


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_prompts(family: str) -> None:
    prompt_builder = builder(tokenizer=load_tokenizer(GOLDENS / family / "model"))
    for chat in prompts(family, "chat"):
        prompt = prompt_builder.build(from_golden(chat))
        assert prompt.text == chat["rendered"]
        assert list(prompt.token_ids) == chat["ids"]


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_reference_prompts_from_gguf_files(family: str) -> None:
    prompt_builder = builder(tokenizer=load_tokenizer(VOCABULARIES / f"{family}.gguf"))
    for chat in prompts(family, "chat"):
        assert list(prompt_builder.build(from_golden(chat)).token_ids) == chat["ids"]


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_the_first_token_comes_once(family: str) -> None:
    tokenizer = load_tokenizer(GOLDENS / family / "model")
    first = tokenizer.token_id(tokenizer.special_tokens["bos_token"])
    prompt = builder(tokenizer=tokenizer).build(request("Hi"))
    assert prompt.token_ids[0] == first
    assert list(prompt.token_ids).count(first or -1) == 1


def test_text_parts_become_one_string() -> None:
    parts = (TextPart(text="a"), TextPart(text="b\n"), TextPart(text="c"))
    assert dumped(message("user", parts)) == [{"role": "user", "content": "ab\nc"}]


def test_templates_that_lose_plain_text_get_lists_of_parts() -> None:
    parts_only = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    sent = request("a", message("assistant", tool_calls=(call("{}"),)), message("user", (TextPart(text="b"),)))
    assert builder(parts_only).build(sent).text == "ab"


def test_other_keys_reach_the_template_but_cannot_replace_role_and_content() -> None:
    given = message("user", "a", extra={"name": "bob", "role": "system", "content": "x"})
    assert dumped(given) == [{"name": "bob", "role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"city": "Köln"}', {"city": "Köln"}), ("not json", "not json"), ("[1]", "[1]"), ("5", "5"), ("", "")],
)
def test_arguments_of_earlier_calls_are_objects_where_they_are(arguments: str, expected: object) -> None:
    sent = message("assistant", tool_calls=(call(arguments),))
    assert dumped(sent) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": expected}}
            ],
        }
    ]


def test_templates_that_join_arguments_as_strings_get_strings() -> None:
    template = "{% for c in messages[0].tool_calls %}{{ 'args: ' + c.function.arguments }}{% endfor %}"
    sent = request(message("assistant", tool_calls=(call('{"a":  1}'),)))
    assert builder(template).build(sent).text == 'args: {"a":  1}'


def test_tool_results_carry_their_call_s_id() -> None:
    result = message("tool", "sunny", tool_call_id="call_1")
    assert dumped(result) == [{"role": "tool", "content": "sunny", "tool_call_id": "call_1"}]


def test_template_arguments() -> None:
    template = (
        "{{ style }}|{{ enable_thinking }}|{{ add_generation_prompt }}|{{ tools }}|{{ documents }}|{{ eos_token }}"
    )
    sent = request(template_kwargs={"style": "brief", "enable_thinking": True}, enable_thinking=True)
    assert builder(template).build(sent).text == "brief|True|True|None|None|<|im_end|>"


def test_special_tokens_and_messages_are_not_the_request_s_to_set() -> None:
    sent = request("Hi", template_kwargs={"messages": "x", "eos_token": "x", "add_generation_prompt": False})
    text = builder("{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}").build(sent).text
    assert text == "Hi<|im_end|>True"


def test_missing_template() -> None:
    with pytest.raises(InvalidRequest) as caught:
        builder(None).build(request())
    assert caught.value.message == (
        "The model does not appear to be a chat model because it is not configured with a `chat_template`."
    )


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ messages[9].role + 'x' }}"])
def test_broken_template(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^\[Tokenizer\] encode failed\. "):
        builder(template).build(request())


def test_named_templates() -> None:
    tokenizer = ByteTokenizer()
    tokenizer_with_names = type(
        "Named", (ByteTokenizer,), {"chat_template": {"default": "d", "tool_use": "t{{ tools }}"}}
    )
    assert builder(tokenizer=tokenizer_with_names()).build(request()).text == "d"
    assert builder(tokenizer=tokenizer).build(request()).text.startswith("<|im_start|>user\nHi")


def test_configured_template_replaces_the_weights_own(tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("own: {{ messages[0].content }}")
    assert builder(chat_template=tmp_path / "a.jinja").build(request()).text == "own: Hi"


@pytest.mark.parametrize("content", [None, b"{% if %}", b"\xff", b"a" * (1 << 20) + b"a"])
def test_unusable_configured_template(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="chat_template"):
        builder(chat_template=path)


def test_template_of_a_request_only_where_allowed() -> None:
    sent = request(chat_template="{{ messages[0].content }}!")
    with pytest.raises(InvalidRequest, match="chat_template"):
        builder().build(sent)
    allowing = builder(allow_request_chat_template=True)
    assert allowing.build(sent).text == "Hi!"
    assert allowing.build(request()).text != "Hi!"


def test_many_templates_of_requests_do_not_pile_up() -> None:
    allowing = builder(allow_request_chat_template=True)
    texts = [allowing.build(request(chat_template=f"{number}")).text for number in [*range(40), 0, 39]]
    assert texts == [str(number) for number in [*range(40), 0, 39]]


CHAT = "{% for m in messages %}{% if m.role in known %}<{{ m.role }}>{{ m.content | trim }}{% endif %}{% endfor %}"


@pytest.mark.parametrize("content", ["look  ", (TextPart(text="lo"), TextPart(text="ok"))])
def test_custom_roles_that_the_template_knows(content: Any) -> None:
    template = CHAT.replace("known", "('user', 'observer')")
    assert builder(template).build(request(message("observer", content), "Hi")).text == "<observer>look<user>Hi"


def test_custom_roles_that_the_template_leaves_out() -> None:
    template = CHAT.replace("known", "('user',)")
    with pytest.raises(InvalidRequest, match="role observer"):
        builder(template).build(request(message("observer", "look"), "Hi"))


def test_standard_roles_may_be_left_out() -> None:
    template = CHAT.replace("known", "('user',)")
    assert builder(template).build(request(message("system", "look"), "Hi")).text == "<user>Hi"


class Reader:
    """Expands each `#` to as many tokens as the part's source has characters."""

    def read(self, parts: Any, token_ids: list[int]) -> tuple[list[int], tuple[MediaInput, ...]]:
        self.parts = list(parts)
        expanded = b"".join(b"#" * len(self.parts[0].source) if i == 35 else bytes([i]) for i in token_ids)
        media = MediaInput(kind=MediaKind.IMAGE, offset=1, length=3, features={}, digest=b"")
        return list(expanded), (media,)


MEDIA_TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type in ('image', 'audio') %}#{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def test_media_parts_mark_their_place_and_the_reader_fills_it() -> None:
    reader = Reader()
    image = MediaPart(kind=PartKind.IMAGE_URL, source="xyz")
    sent = request(message("user", (TextPart(text="a"), image, TextPart(text="b"))), "c")
    prompt = builder(MEDIA_TEMPLATE, media=reader).build(sent)
    assert prompt.text == "a#bc"
    assert bytes(prompt.token_ids) == b"a###bc"
    assert [media.offset for media in prompt.media] == [1]
    assert reader.parts == [image]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PartKind.IMAGE_URL, "image"),
        (PartKind.VIDEO_URL, "video"),
        (PartKind.AUDIO_URL, "audio"),
        (PartKind.INPUT_AUDIO, "audio"),
    ],
)
def test_templates_never_see_media_sources(kind: PartKind, name: str) -> None:
    part = MediaPart(kind=kind, source="data:secret", format=None)
    text = builder(DUMP, media=Reader()).build(request(message("user", (part,)))).text
    assert json.loads(text)[0]["content"] == [{"type": name, name: ""}]


def test_media_for_a_text_model() -> None:
    sent = request(message("user", (MediaPart(kind=PartKind.IMAGE_URL, source="x"),)))
    with pytest.raises(InvalidRequest, match="text only"):
        builder(MEDIA_TEMPLATE).build(sent)


def test_output_options_reach_the_plan() -> None:
    sent = request(stop=("a", "b"), stop_token_ids=(7, 8), include_stop=True, skip_special_tokens=False, logprobs=0)
    assert builder().build(sent).plan == OutputPlan(
        stop=("a", "b"),
        stop_token_ids=frozenset({7, 8}),
        include_stop=True,
        skip_special_tokens=False,
    )
    assert builder().build(request()).plan == OutputPlan()


def test_special_tokens_in_content_are_special_tokens() -> None:
    """The convention of all servers; see the docstring of `text.fast`."""
    tokenizer = load_tokenizer(GOLDENS / "qwen2" / "model")
    end = tokenizer.token_id("<|im_end|>")
    plain = builder(tokenizer=tokenizer).build(request("a")).token_ids
    injected = builder(tokenizer=tokenizer).build(request("a<|im_end|>")).token_ids
    assert list(injected).count(end or -1) == list(plain).count(end or -1) + 1
