"""What the model is held to, token by token."""

from collections.abc import Sequence
from typing import Any

import pytest

from mindserve.contract.request import ChatRequest, ResponseFormat, ResponseFormatKind, Tool, ToolChoice, ToolChoiceMode
from mindserve.engine.base import TokenMask
from mindserve.errors import InvalidRequest
from mindserve.text.bytes_tokenizer import CHATML_TEMPLATE, THINKING_TOKENS, ByteTokenizer

from .requests import AUTO, CLOCK, WEATHER, builder, request

TOKENIZER = ByteTokenizer(markers=THINKING_TOKENS)
END = TOKENIZER.token_id("<|im_end|>") or -1
THINKS = CHATML_TEMPLATE + "{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking }}"
JSON_OBJECT = ResponseFormat(kind=ResponseFormatKind.JSON_OBJECT)
REQUIRED = ToolChoice(mode=ToolChoiceMode.REQUIRED)
STRICT = Tool(name="get_weather", parameters=WEATHER.parameters, strict=True, raw=WEATHER.raw)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def mask_of(sent: ChatRequest, *, template: str = CHATML_TEMPLATE, **options: Any) -> TokenMask | None:
    return builder(tokenizer=ByteTokenizer(markers=THINKING_TOKENS, chat_template=template), **options).build(sent).mask


def is_allowed(mask: TokenMask, token_id: int) -> bool:
    bits = mask.allowed()
    return bits is None or bool(bits[token_id // 32] >> (token_id % 32) & 1)


def first_refused(mask: TokenMask | None, tokens: str | Sequence[int]) -> int | None:
    """Position of the first token that the mask refuses; None: it takes them all."""
    assert mask is not None
    copy = mask.fork()
    for position, token_id in enumerate(TOKENIZER.encode(tokens) if isinstance(tokens, str) else tokens):
        if not is_allowed(copy, token_id):
            return position
        copy.advance(token_id)
    return None


def takes(mask: TokenMask | None, text: str, *, ends: bool = True) -> bool:
    """Whether the mask takes the text, and that it may end there."""
    return first_refused(mask, [*TOKENIZER.encode(text), *([END] if ends else [])]) is None


def test_free_answers_have_no_mask() -> None:
    assert mask_of(request()) is None
    assert mask_of(request(tools=(WEATHER,), tool_choice=AUTO)) is None
    assert mask_of(request(tools=(STRICT,), tool_choice=ToolChoice())) is None


def test_json_objects() -> None:
    mask = mask_of(request(response_format=JSON_OBJECT))
    assert takes(mask, '{"a": [1, "x"]}')
    assert first_refused(mask, "Hello") == 0
    assert first_refused(mask, "[1]") == 0
    assert not takes(mask, '{"a": 1')


def test_json_of_a_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    mask = mask_of(request(response_format=ResponseFormat(kind=ResponseFormatKind.JSON_SCHEMA, schema=schema)))
    assert takes(mask, '{"n": 12}')
    assert first_refused(mask, '{"m": 12}') == 2
    assert first_refused(mask, '{"n": "x"}') is not None


def test_schemas_that_cannot_be_enforced() -> None:
    wanted = ResponseFormat(kind=ResponseFormatKind.JSON_SCHEMA, schema={"type": "string", "pattern": "(?=a)b"})
    with pytest.raises(InvalidRequest) as caught:
        mask_of(request(response_format=wanted))
    assert caught.value.param == "response_format"


def test_required_calls() -> None:
    mask = mask_of(request(tools=(WEATHER, CLOCK), tool_choice=REQUIRED))
    assert takes(mask, CALL)
    assert takes(mask, CALL + '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    assert first_refused(mask, "Hello") == 0
    assert not takes(mask, CALL.replace("get_weather", "set_weather"))
    assert not takes(mask, CALL.replace("city", "town"))


def test_a_named_call() -> None:
    choice = ToolChoice(mode=ToolChoiceMode.NAMED, name="get_weather")
    mask = mask_of(request(tools=(WEATHER, CLOCK), tool_choice=choice))
    assert takes(mask, CALL)
    assert not takes(mask, CALL + "\n" + CALL)
    assert not takes(mask, CALL.replace("get_weather", "clock"))


def test_strict_functions_leave_text_free_and_calls_valid() -> None:
    mask = mask_of(request(tools=(STRICT,), tool_choice=AUTO))
    assert takes(mask, "Just <text>, {no call}.")
    assert takes(mask, f"Well. {CALL}")
    assert not takes(mask, CALL.replace("city", "town"))


@pytest.mark.parametrize(("tool", "choice", "param"), [(WEATHER, REQUIRED, "tool_choice"), (STRICT, AUTO, "tools")])
def test_models_whose_calls_have_no_known_format(tool: Tool, choice: ToolChoice, param: str) -> None:
    with pytest.raises(InvalidRequest, match="The model m does not support") as caught:
        mask_of(request(tools=(tool,), tool_choice=choice), template="{{ tools }}", model_type="unheard-of")
    assert caught.value.param == param
    free = request(tools=(WEATHER,), tool_choice=AUTO)
    assert mask_of(free, template="{{ tools }}", model_type="unheard-of") is None


def test_the_grammar_starts_after_the_thought() -> None:
    mask = mask_of(request(response_format=JSON_OBJECT), template=THINKS, enable_reasoning=True)
    assert takes(mask, '<think>\nHm, {no JSON}.\n</think>\n\n{"a": 1}')
    assert first_refused(mask, "Hm.</think>x") == 4
    assert not takes(mask, "Hm.")


def test_required_calls_come_after_the_thought() -> None:
    mask = mask_of(request(tools=(WEATHER,), tool_choice=REQUIRED), template=THINKS, enable_reasoning=True)
    assert takes(mask, f"<think>\nI call.\n</think>\n\n{CALL}")
    assert first_refused(mask, "Hm.</think>x") == 4


def test_a_thought_that_stays_in_the_content_is_bound_too() -> None:
    mask = mask_of(request(response_format=JSON_OBJECT), template=THINKS)
    assert takes(mask, '{"a": 1}')
    assert first_refused(mask, "<think>") == 0
    mask = mask_of(request(tools=(WEATHER,), tool_choice=REQUIRED), template=THINKS)
    assert takes(mask, CALL)
    assert first_refused(mask, "Hm.") == 0


def test_a_thought_that_was_asked_for_comes_first_even_if_it_stays_in_the_content() -> None:
    mask = mask_of(request(response_format=JSON_OBJECT, enable_thinking=True), template=THINKS)
    assert takes(mask, '<think>\nHm.\n</think>\n\n{"a": 1}')
    assert first_refused(mask, "Hm.</think>x") == 4


@pytest.mark.parametrize("thinking", [None, True])
def test_strict_calls_in_a_thought_that_stays_in_the_content_are_valid(thinking: bool | None) -> None:
    """They are read as calls there."""
    mask = mask_of(request(tools=(STRICT,), tool_choice=AUTO, enable_thinking=thinking), template=THINKS)
    assert takes(mask, f"<think>\nHm.\n{CALL}")
    assert not takes(mask, CALL.replace("city", "town"))
    split = mask_of(request(tools=(STRICT,), tool_choice=AUTO), template=THINKS, enable_reasoning=True)
    assert takes(split, CALL.replace("city", "town")), "no call is read in a thought, and no answer has to follow it"
    assert not takes(split, "</think>" + CALL.replace("city", "town"))


def test_without_thinking_the_grammar_starts_at_once() -> None:
    sent = request(response_format=JSON_OBJECT, enable_thinking=False, template_kwargs={"enable_thinking": False})
    mask = mask_of(sent, template=THINKS)
    assert takes(mask, '{"a": 1}')
    assert first_refused(mask, "Hm.") == 0


def budgeted(**fields: Any) -> ChatRequest:
    kwargs = {"enable_thinking": True, "thinking_budget": 5}
    return request(enable_thinking=True, thinking_budget=5, template_kwargs=kwargs, **fields)


def forced(mask: TokenMask | None, text: str) -> str:
    """What must follow `text`, as long as there is one choice only."""
    assert mask is not None
    copy, written = mask.fork(), list[int]()
    for token_id in TOKENIZER.encode(text):
        assert is_allowed(copy, token_id)
        copy.advance(token_id)
    while (choices := [i for i in range(TOKENIZER.vocab_size) if is_allowed(copy, i)]) and len(choices) == 1:
        copy.advance(choices[0])
        written += choices
    return TOKENIZER.decode(written)


def test_thoughts_over_budget_end_with_the_configured_text() -> None:
    mask = mask_of(budgeted(), template=THINKS, early_stopping_text="Enough.")
    assert forced(mask, "Hmmm") == ""
    assert forced(mask, "Hmmmm") == "Enough.</think>"


def test_thoughts_within_budget_are_free() -> None:
    mask = mask_of(budgeted(), template=THINKS)
    assert forced(mask, "Hm</think>and a long answer") == ""


def test_a_budget_and_a_grammar() -> None:
    mask = mask_of(budgeted(response_format=JSON_OBJECT), template=THINKS)
    assert forced(mask, "Hmmmm") == "</think>"
    assert takes(mask, 'Hmmmm</think>{"a": 1}')
    assert first_refused(mask, "Hmmmm</think>x") == 6
