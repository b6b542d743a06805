"""Thoughts: where they begin and end, what is counted, and stop strings inside them."""

import pytest

from mindserve.engine.base import FinishReason
from mindserve.output.assembler import ChoiceAssembler
from mindserve.output.formats.reasoning import THINK_TAGS
from mindserve.output.formats.registry import find_format
from mindserve.output.plan import OutputPlan, ThoughtPlan, ThoughtStart, ToolPlan
from tests.output.play import fold, play
from tests.output.vocabulary import PieceTokenizer

END = "<|end|>"
WORDS = ["one", " two", " three", "\n\n"]
WITH_TAGS = PieceTokenizer([*WORDS, "<think>", "</think>"], special=[END])
SPECIAL_TAGS = PieceTokenizer(WORDS, special=[END, "<think>", "</think>"])
PLAIN = PieceTokenizer(WORDS, special=[END])
ALL = pytest.mark.parametrize("tokenizer", [WITH_TAGS, SPECIAL_TAGS, PLAIN], ids=["token", "special", "text"])


def plan(start: ThoughtStart = ThoughtStart.ASSUMED, *, is_split: bool = True, **others) -> OutputPlan:
    return OutputPlan(thought=ThoughtPlan(format=THINK_TAGS, start=start, is_split=is_split), **others)


def answer(plan_: OutputPlan, tokenizer: PieceTokenizer, text: str, finish: FinishReason = FinishReason.STOP):
    end = tokenizer.token_id(END) if finish is FinishReason.STOP else None
    events, assembler = play(plan_, tokenizer, tokenizer.encode(text), finish=finish, end_token=end)
    return fold(events), assembler.reasoning_tokens


@ALL
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("one two</think>\n\n three", "one two", "\n\n three"),
        ("<think>one two</think> three", "one two", " three"),
        ("one two", "one two", ""),
        ("<think>one two", "one two", ""),
        ("one</think>", "one", ""),
        ("</think>one", "", "one"),
        ("<think></think>one", "", "one"),
        ("", "", ""),
        ("one <think>two</think>", "one <think>two", ""),
        ("one </thin two</think>three", "one </thin two", "three"),
    ],
)
def test_an_assumed_thought_ends_at_the_first_closing_tag(tokenizer, text, reasoning, content):
    got, _ = answer(plan(skip_special_tokens=tokenizer is not SPECIAL_TAGS), tokenizer, text)
    assert got.content.removesuffix(END) == content
    assert got.reasoning.removesuffix(END) == reasoning


@ALL
def test_a_thought_only_where_it_is_opened(tokenizer):
    opened, tokens = answer(plan(ThoughtStart.IF_OPENED), tokenizer, "<think>one</think> two")
    assert (opened.reasoning, opened.content) == ("one", " two")
    assert tokens == len(tokenizer.encode("<think>one"))
    for text in ("one two", "<thi", "<", "one</"):
        unopened, tokens = answer(plan(ThoughtStart.IF_OPENED), tokenizer, text)
        assert (unopened.reasoning, unopened.content, tokens) == ("", text, 0)


@ALL
def test_tokens_are_counted_up_to_the_closing_tag(tokenizer):
    for text in ("<think>one two", "one two three", "one"):
        expected = len(tokenizer.encode(text))
        assert answer(plan(), tokenizer, text + "</think> three")[1] == expected
        assert answer(plan(), tokenizer, text)[1] == expected
        assert answer(plan(is_split=False), tokenizer, text + "</think> three")[1] == expected
    assert answer(plan(ThoughtStart.NONE), tokenizer, "one two")[1] == 0


def test_an_unsplit_thought_stays_in_the_content():
    got, _ = answer(plan(is_split=False), WITH_TAGS, "<think>one</think> two")
    assert (got.content, got.reasoning) == ("<think>one</think> two", None)


def test_a_tag_in_letters_is_text_where_the_vocabulary_has_a_token():
    letters = [WITH_TAGS.encode_bytes(bytes([byte]))[0] for byte in b"</think>"]
    tokens = [*WITH_TAGS.encode("one"), *letters, *WITH_TAGS.encode(" two</think> three")]
    got = fold(play(plan(), WITH_TAGS, tokens)[0])
    assert (got.reasoning, got.content) == ("one</think> two", " three")


@ALL
def test_deltas_say_which_part_they_belong_to(tokenizer):
    assembler = ChoiceAssembler(plan(), tokenizer=tokenizer, index=0)
    events = [assembler.feed(token_id) for token_id in tokenizer.encode("one</think> two")]
    assert [event.reasoning for event in events if event.reasoning] == ["one"]
    assert [event.content for event in events if event.content] == [" two"]
    assert len(events) == len(tokenizer.encode("one</think> two"))


@ALL
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_inside_the_thought_stays_in_it(tokenizer, include):
    got, _ = answer(plan(stop=("two",), include_stop=include), tokenizer, "<think>one two three</think>one")
    assert (got.reasoning, got.content, got.finish_reason) == ("one two", "", "stop")


@ALL
def test_a_stop_string_after_the_thought_is_cut_off(tokenizer):
    got, _ = answer(plan(stop=("two",)), tokenizer, "one</think> three two one")
    assert (got.reasoning, got.content) == ("one", " three ")


@pytest.mark.parametrize("tokenizer", [WITH_TAGS, PLAIN], ids=["token", "text"])
def test_a_stop_string_across_the_thoughts_end(tokenizer):
    got, _ = answer(plan(stop=("one</think>\n\n two",)), tokenizer, "one</think>\n\n two three")
    assert (got.reasoning, got.content) == ("one", "")


@pytest.mark.parametrize("tokenizer", [WITH_TAGS, PLAIN], ids=["token", "text"])
def test_calls_come_after_the_thought_only(tokenizer):
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = ToolPlan(format=find_format("hermes"))
    got, _ = answer(plan(tools=tools), tokenizer, f"one{call}</think>\n\n two\n\n{call}")
    assert (got.reasoning, got.content, got.calls) == (f"one{call}", "two", [("f", "{}")])


def test_the_length_inside_the_thought():
    got, tokens = answer(plan(), WITH_TAGS, "<think>one two", FinishReason.LENGTH)
    assert (got.reasoning, got.content, got.finish_reason, tokens) == ("one two", "", "length", 3)
