"""Calls beyond the contract's cases: odd arguments, broken blocks, cut-off calls, and which format a model writes."""

import json

import pytest

from mindserve.engine.base import FinishReason
from mindserve.output.formats.registry import deduce_format, deduce_reasoning, find_format
from mindserve.output.plan import OutputPlan, ToolPlan
from mindserve.text.bytes_tokenizer import ByteTokenizer
from tests.output.play import Answer, fold, play

TOKENIZER = ByteTokenizer(special=("<|end|>",))
END = 256


def answer(name: str, text: str, finish: FinishReason = FinishReason.STOP, **parameters) -> Answer:
    plan = OutputPlan(tools=ToolPlan(format=find_format(name), parameters=parameters))
    end = END if finish is FinishReason.STOP else None
    return fold(play(plan, TOKENIZER, TOKENIZER.encode(text), finish=finish, end_token=end)[0])


def hermes(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"x": "\\ud83d"}', '{"x": "\\ud83d"}'),
        ('{"x": "\\u0000 \\/"}', '{"x": "\\u0000 /"}'),
        ('"{\\"x\\": 1}"', '{"x": 1}'),
        ("null", "null"),
        ('{"x": [[], {}]}', '{"x": [[], {}]}'),
    ],
)
def test_arguments_are_json_text(written, arguments):
    got = answer("hermes", hermes(f'{{"name": "f", "arguments": {written}}}'))
    assert got.calls == [("f", arguments)]
    got.calls[0][1].encode()


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "arguments": {"x": 1e999}}',
        '{"name": "f", "arguments": "not json"}',
        '{"name": "f", "arguments": {"x": "a\nb"}}',
        '{"name": "f", "arguments": {"x": 1]}',
        '{"name": "", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '["f", {}]',
        '{"name": "f", "arguments": {"x": "\\q"}}',
        '{"name": "f", "arguments": ' + '{"x":' * 3000 + "1" + "}" * 3000 + "}",
        '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}",
    ],
    ids=range(11),
)
def test_what_is_no_valid_call_is_content(call):
    got = answer("hermes", hermes(call))
    assert (got.content, got.calls, got.finish_reason) == (hermes(call), [], "stop")


def test_a_broken_block_does_not_hide_the_next():
    good = hermes('{"name": "f", "arguments": {}}')
    for broken in ("<tool_call>", "<tool_call>\n{", '<tool_call>{"name": "<tool_call>', "<tool_call><tool_ca"):
        got = answer("hermes", f"{broken}\n{good} and more")
        assert (got.content, got.calls) == (broken, [("f", "{}")])


def test_prose_around_a_marker_flows_on():
    plan = OutputPlan(tools=ToolPlan(format=find_format("hermes")))
    events, _ = play(plan, TOKENIZER, TOKENIZER.encode("a <tool_call> b c"))
    shown = [event.content for event in events]
    assert shown[: len("a <tool_call> b")] == ["a", *[""] * 12, "", " <tool_call> b"]


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("", "tool_calls"),
        ("\n and text", "tool_calls"),
        ("\n<tool_", "tool_calls"),
        ("\n<tool_call>", "length"),
        ('\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_c', "length"),
    ],
)
def test_the_length_counts_only_inside_a_call(rest, reason):
    text = hermes('{"name": "f", "arguments": {}}') + rest
    got = answer("hermes", text, FinishReason.LENGTH)
    assert (got.content, got.calls, got.finish_reason) == ("", [("f", "{}")], reason)
    assert answer("hermes", text).finish_reason == "tool_calls"
    assert answer("hermes", text, FinishReason.CANCELLED).finish_reason == "stop"


def test_calls_are_announced_as_soon_as_they_are_complete():
    plan = OutputPlan(tools=ToolPlan(format=find_format("deepseek_v31")))
    call = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    events, assembler = play(plan, TOKENIZER, TOKENIZER.encode("<｜tool▁calls▁begin｜>" + call))
    assert events[-2].tool_calls and not events[-1].tool_calls
    first, second = events[-2].tool_calls
    assert (first.index, first.name, first.arguments, second.arguments) == (0, "f", "", "{}")
    assert first.id.startswith("call_") and len(first.id) == 13 and first.id[5:].isalnum()
    assert assembler.is_finished


def test_content_is_stripped_only_with_tools_in_play():
    assert answer("hermes", "\n a \n b \n").content == "a \n b"
    unknown = OutputPlan(tools=ToolPlan(format=None))
    assert fold(play(unknown, TOKENIZER, TOKENIZER.encode(" <tool_call> "))[0]).content == "<tool_call>"
    assert fold(play(OutputPlan(), TOKENIZER, TOKENIZER.encode(" a "))[0]).content == " a "


def test_a_visible_end_token_is_no_part_of_a_call():
    plan = OutputPlan(skip_special_tokens=False, tools=ToolPlan(format=find_format("llama3")))
    tokens = TOKENIZER.encode('{"name": "f", "parameters": {}}')
    assert fold(play(plan, TOKENIZER, tokens, end_token=END)[0]).calls == [("f", "{}")]
    text = fold(play(plan, TOKENIZER, TOKENIZER.encode("Hi "), end_token=END)[0]).content
    assert text == "Hi <|end|>"


TYPES = {
    "f": {
        "type": "object",
        "properties": {
            "i": {"type": "integer"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "a": {"type": ["array", "null"]},
            "s": {"type": "string"},
            "u": {"description": "untyped"},
        },
    }
}


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("i", "-3", -3),
        ("i", "three", "three"),
        ("n", "2.50", 2.5),
        ("n", "2", 2),
        ("b", "FALSE", False),
        ("b", "yes", "yes"),
        ("o", '{"k": [1]}', {"k": [1]}),
        ("o", "{'k': True}", {"k": True}),
        ("a", "[1, 2]", [1, 2]),
        ("a", "null", None),
        ("s", "12", "12"),
        ("s", "a\n<b>\n", "a\n<b>\n"),
        ("u", "[1]", "[1]"),
        ("new", "1", "1"),
    ],
)
def test_bare_values_are_cast_by_the_schema(key, written, value):
    text = f"<tool_call>\n<function=f>\n<parameter={key}>\n{written}\n</parameter>\n</function>\n</tool_call>"
    ((_, arguments),) = answer("qwen3_coder", text, **TYPES).calls
    assert json.loads(arguments) == {key: value}


@pytest.mark.parametrize("prefix", ["｜DSML｜", ""])
def test_a_format_may_say_itself_what_is_a_string(prefix):
    def parameter(key: str, flag: str, value: str) -> str:
        return f'<{prefix}parameter name="{key}" string="{flag}">{value}</{prefix}parameter>\n'

    values = parameter("u", "false", "[1]") + parameter("new", "true", "[1]") + parameter("i", "true", "3")
    invoke = f'<{prefix}invoke name="f">\n{values}</{prefix}invoke>'
    text = f"<{prefix}function_calls>\n{invoke}\n</{prefix}function_calls>"
    ((_, arguments),) = answer("deepseek_v32", text, **TYPES).calls
    assert json.loads(arguments) == {"u": [1], "new": "[1]", "i": 3}


def test_chatglm_text_before_a_call_is_content_and_a_broken_call_ends_the_search():
    call = "f\n ```python\ntool_call(x=1)\n```"
    got = answer("chatglm3", f"Let me look.\nI will.<|assistant|>{call}")
    assert (got.content, got.calls) == ("Let me look.\nI will.", [("f", '{"x": 1}')])
    broken = "f\n ```python\ntool_call(x=oops)\n```"
    got = answer("chatglm3", f"{broken}<|assistant|>{call}")
    assert (got.content, got.calls) == (f"{broken}<|assistant|>{call}", [])


def test_whole_output_formats_need_the_whole_output():
    call = '{"name": "f", "parameters": {"x": 1}}'
    assert answer("llama3", f" {call}\n").calls == [("f", '{"x": 1}')]
    assert answer("llama3", f"<|python_tag|>{call}").calls == [("f", '{"x": 1}')]
    assert answer("llama3", f"{call} is a call").content == f"{call} is a call"
    assert answer("glm4", '\nf\n{"x": 1}\n').calls == [("f", '{"x": 1}')]
    assert answer("glm4", 'f\n{"x": 1}\nis a call').calls == []


@pytest.mark.parametrize(
    ("template", "model_type", "name"),
    [
        ("{{ '<tool_call>' }}", "llama", "hermes"),
        ("<tool_call>\n<function=example>", "qwen3_moe", "qwen3_coder"),
        ("<｜tool▁calls▁begin｜> ```json", "deepseek_v3", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3", "deepseek_v31"),
        ("<｜DSML｜function_calls>", "deepseek_v32", "deepseek_v32"),
        ('<|start_header_id|> {"name": function name, "parameters": ...}', "llama", "llama3"),
        ("[gMASK]<sop>", "chatglm", "glm4"),
        ("[gMASK]sop", "chatglm", "chatglm3"),
        (None, "chatglm", "chatglm3"),
        (None, "glm4", "glm4"),
        ("plain", "qwen2", "qwen2_5"),
        (None, "deepseek_v3", "deepseek-r1"),
    ],
)
def test_the_format_is_deduced(template, model_type, name):
    assert deduce_format(template, model_type) is find_format(name)
    assert find_format(name) is not None


def test_unknown_formats():
    assert find_format("nobody's") is None
    assert deduce_format("plain", "gpt2") is None
    assert deduce_format("<tool_call> <arg_key>", "glm4_moe") is None
    assert deduce_reasoning("plain", "llama") is None
    assert deduce_reasoning("... </think> ...", "llama") is deduce_reasoning(None, "qwen3_moe") is not None
