"""Tools in the prompt and in the plan."""

import json
from typing import Any

import pytest

from mindserve.contract.request import ToolChoice, ToolChoiceMode
from mindserve.errors import InvalidRequest
from mindserve.output.formats.deepseek import DEEPSEEK_V31
from mindserve.output.formats.hermes import HERMES
from mindserve.text.load import load_tokenizer
from tests.text.goldens import GOLDENS

from .requests import AUTO, CLOCK, WEATHER, builder, message, request

DUMP = "{{ tools | tojson }}"


def named(name: str) -> ToolChoice:
    return ToolChoice(mode=ToolChoiceMode.NAMED, name=name)


def shown(choice: ToolChoice) -> Any:
    return json.loads(builder(DUMP).build(request(tools=(WEATHER, CLOCK), tool_choice=choice)).text)


def test_auto_and_required_show_all_tools_as_sent() -> None:
    for mode in (ToolChoiceMode.AUTO, ToolChoiceMode.REQUIRED):
        assert shown(ToolChoice(mode=mode)) == [WEATHER.raw, CLOCK.raw]


def test_a_named_choice_shows_only_that_tool() -> None:
    assert shown(named("clock")) == [CLOCK.raw]


def test_a_named_choice_of_no_tool() -> None:
    with pytest.raises(InvalidRequest, match="other"):
        shown(named("other"))


def test_none_shows_and_parses_nothing() -> None:
    prompt = builder(DUMP).build(request(tools=(WEATHER,), tool_choice=ToolChoice(mode=ToolChoiceMode.NONE)))
    assert prompt.text == "null"
    assert prompt.plan.tools is None


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content }}",
        "{% if tools and false %}{{ tools }}{% endif %}{{ messages[0].content }}",
    ],
)
def test_tools_for_a_model_that_cannot(template: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        builder(template).build(request(tools=(WEATHER,), tool_choice=AUTO))
    assert caught.value.message == "The model m does not support function call."
    assert caught.value.param == "tools"
    prompt = builder(template).build(request(tools=(WEATHER,), tool_choice=ToolChoice()))
    assert prompt.text == "Hi"


def test_a_template_that_works_with_tools_only() -> None:
    template = "{% if not tools %}{{ raise_exception('tools please') }}{% endif %}{{ tools | length }}"
    assert builder(template).build(request(tools=(WEATHER,), tool_choice=AUTO)).text == "1"


def test_the_plan_knows_the_schemas() -> None:
    prompt = builder().build(request(tools=(WEATHER, CLOCK), tool_choice=AUTO))
    assert prompt.plan.tools is not None
    assert prompt.plan.tools.parameters == {"get_weather": WEATHER.parameters, "clock": None}


def format_of(**options: Any) -> Any:
    prompt = builder(**options).build(request(tools=(WEATHER,), tool_choice=AUTO))
    assert prompt.plan.tools is not None
    return prompt.plan.tools.format


def test_the_template_tells_the_format() -> None:
    assert format_of(tokenizer=load_tokenizer(GOLDENS / "qwen3" / "model"), model_type="any") is HERMES


def test_the_configured_parser_comes_first() -> None:
    assert format_of(tool_call_parser="deepseek_v31") is DEEPSEEK_V31


def test_an_unknown_parser_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert format_of(tool_call_parser="nonesuch") is HERMES
    assert "nonesuch" in caplog.text


def test_the_family_tells_where_the_template_does_not() -> None:
    assert format_of(template=DUMP, model_type="qwen2") is HERMES
    assert format_of(template=DUMP, model_type="unheard-of") is None


def test_custom_roles_with_tools() -> None:
    template = "{{ tools | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    sent = request(message("critic", "hm"), "Hi", tools=(WEATHER,), tool_choice=AUTO)
    assert builder(template).build(sent).text == "1<critic>hm<user>Hi"
