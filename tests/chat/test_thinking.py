"""Whether, and from where, an answer is a thought (contract: response.md section 4)."""

from typing import Any

import pytest

from mindserve.output.plan import ThoughtPlan, ThoughtStart
from mindserve.text.bytes_tokenizer import THINKING_TOKENS, ByteTokenizer

from .requests import builder, request

QWEN3 = (
    "{{ messages[0].content }}\nA:"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
OPENING = "{{ messages[0].content }}\nA:<think>\n"
DEEPSEEK = "{{ messages[0].content }}A:{% if thinking %}<think>{% else %}</think>{% endif %}"
HISTORY_ONLY = "{{ messages[0].content.split('</think>')[-1] }}\nA:"
PLAIN = "{{ messages[0].content }}\nA:"


def plan(template: str, *, reasoning: bool = False, thinking: bool | None = None, **options: Any) -> ThoughtPlan | None:
    kwargs = {} if thinking is None else {"enable_thinking": thinking}
    sent = request(enable_thinking=thinking, template_kwargs=kwargs)
    return builder(template, enable_reasoning=reasoning, **options).build(sent).plan.thought


@pytest.mark.parametrize(
    ("template", "thinking", "start"),
    [
        (QWEN3, None, ThoughtStart.ASSUMED),
        (QWEN3, True, ThoughtStart.ASSUMED),
        (QWEN3, False, ThoughtStart.NONE),
        (OPENING, None, ThoughtStart.ASSUMED),
        (OPENING, False, ThoughtStart.NONE),
        (DEEPSEEK, None, ThoughtStart.NONE),
        (DEEPSEEK, True, ThoughtStart.ASSUMED),
        (DEEPSEEK, False, ThoughtStart.NONE),
        (HISTORY_ONLY, None, ThoughtStart.IF_OPENED),
    ],
)
def test_where_the_thought_begins(template: str, thinking: bool | None, start: ThoughtStart) -> None:
    found = plan(template, thinking=thinking, model_type="any")
    assert found is not None
    assert found.start is start
    assert not found.is_split


def test_the_server_s_switch_splits_thoughts_off() -> None:
    assert plan(QWEN3, reasoning=True) == ThoughtPlan(format=plan_format(), start=ThoughtStart.ASSUMED, is_split=True)


def plan_format() -> Any:
    found = plan(QWEN3)
    assert found is not None
    return found.format


def test_the_request_s_switch_overrides_the_server_s() -> None:
    off = plan(QWEN3, reasoning=True, thinking=False)
    assert off is not None
    assert (off.start, off.is_split) == (ThoughtStart.NONE, False)
    on = plan(QWEN3, reasoning=False, thinking=True)
    assert on is not None
    assert (on.start, on.is_split) == (ThoughtStart.ASSUMED, False)


def test_a_silent_request_to_a_template_that_does_not_think_by_default() -> None:
    found = plan(DEEPSEEK, reasoning=True)
    assert found is not None
    assert (found.start, found.is_split) == (ThoughtStart.NONE, False)


def test_a_parsed_model_thinks_first_even_if_its_template_only_shows_history() -> None:
    found = plan(HISTORY_ONLY, reasoning=True)
    assert found is not None
    assert (found.start, found.is_split) == (ThoughtStart.ASSUMED, True)


def test_models_that_cannot_think() -> None:
    assert plan(PLAIN) is None
    assert plan(PLAIN, thinking=True) is None


def test_a_vocabulary_with_both_tags_can_think() -> None:
    found = plan(PLAIN, tokenizer=ByteTokenizer(markers=THINKING_TOKENS, chat_template=PLAIN))
    assert found is not None
    assert found.start is ThoughtStart.IF_OPENED


def test_an_operator_may_have_any_model_parsed() -> None:
    found = plan(PLAIN, reasoning=True)
    assert found is not None
    assert (found.start, found.is_split) == (ThoughtStart.IF_OPENED, True)


class DefaultsOff(ByteTokenizer):
    """Weights whose configuration switches thinking off."""

    @property
    def template_defaults(self) -> dict[str, bool]:
        return {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize("template", [QWEN3, DEEPSEEK])
def test_weights_set_the_default_and_requests_override_it(template: str) -> None:
    tokenizer = DefaultsOff(chat_template=template)
    silent, asked = plan(template, tokenizer=tokenizer), plan(template, tokenizer=tokenizer, thinking=True)
    assert silent is not None and asked is not None
    assert (silent.start, asked.start) == (ThoughtStart.NONE, ThoughtStart.ASSUMED)


def test_users_cannot_open_or_close_the_thought() -> None:
    sent = request("</think>")
    found = builder(QWEN3).build(sent).plan.thought
    assert found is not None
    assert found.start is ThoughtStart.ASSUMED
