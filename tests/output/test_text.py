"""Plain answers: characters, special tokens, stop strings and log-probabilities."""

import random

import pytest

from mindserve.engine.base import FinishReason, TokenLogprob
from mindserve.output.assembler import ChoiceAssembler
from mindserve.output.plan import OutputPlan
from mindserve.text.bytes_tokenizer import ByteTokenizer
from tests.output.play import fold, play
from tests.output.vocabulary import PieceTokenizer

SPECIAL = ("<|im_end|>", "<|note|>")
TEXTS = ["plain text", "héllo wörld", "天气：晴。", "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "e\u0301 a\u0308", "𝔘𝔫𝔦", "a\u0000b\x7f", ""]


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer(special=SPECIAL)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_become_whole_characters_only(tokenizer, text):
    events, _ = play(OutputPlan(), tokenizer, tokenizer.encode(text))
    assert fold(events).content == text
    assert all("\ufffd" not in event.content for event in events)
    assert len(events) == len(text.encode()) + 1


@pytest.mark.parametrize(
    "data", [b"\xe5\xa4", b"a\xffb", b"\xf0\x9f\x91A", b"\xe5\xe5\xa4\xa9", b"\xc0\xaf", b"\xed\xa0\x80x"]
)
def test_broken_bytes_are_replaced_as_in_a_whole_decode(tokenizer, data):
    events, _ = play(OutputPlan(), tokenizer, list(data))
    assert fold(events).content == data.decode("utf-8", "replace")


def test_random_bytes_never_stall(tokenizer):
    rng = random.Random(3)
    for _ in range(200):
        data = bytes(rng.choices([0x41, 0x80, 0xBF, 0xC3, 0xE5, 0xA4, 0xF0, 0x9F, 0xFF], k=20))
        assembler, seen = ChoiceAssembler(OutputPlan(), tokenizer=tokenizer, index=0), 0
        for at, byte in enumerate(data, 1):
            assembler.feed(byte)
            seen = len(assembler.content)
            assert len(data[:at].decode("utf-8", "replace")) - seen <= 1
        assembler.end(FinishReason.LENGTH)
        assert assembler.content == data.decode("utf-8", "replace")


def test_a_character_cut_off_by_the_length_is_replaced(tokenizer):
    events, _ = play(OutputPlan(), tokenizer, list("天".encode()[:2]), finish=FinishReason.LENGTH)
    assert fold(events).content == "\ufffd"
    assert events[-1].finish_reason == "length"


def test_special_tokens_are_skipped_or_shown(tokenizer):
    note, end = tokenizer.token_id("<|note|>"), tokenizer.token_id("<|im_end|>")
    tokens = [*b"Hi", note, *b"there."]
    skipped, _ = play(OutputPlan(), tokenizer, tokens, end_token=end)
    shown, _ = play(OutputPlan(skip_special_tokens=False), tokenizer, tokens, end_token=end)
    assert fold(skipped).content == "Hithere."
    assert fold(shown).content == "Hi<|note|>there.<|im_end|>"
    assert fold(shown).finish_reason == "stop"


def test_a_skipped_token_does_not_break_a_character(tokenizer):
    first, *rest = "天".encode()
    events, _ = play(OutputPlan(), tokenizer, [first, tokenizer.token_id("<|note|>"), *rest])
    assert fold(events).content == "天"


def test_every_token_gives_one_event_and_the_last_one_the_reason(tokenizer):
    assembler = ChoiceAssembler(OutputPlan(), tokenizer=tokenizer, index=3)
    events = [assembler.feed(byte) for byte in "né".encode()]
    assert [event.content for event in events] == ["n", "", "é"]
    last = assembler.feed(ord("!"), finish=FinishReason.LENGTH)
    assert (last.content, last.finish_reason, last.index) == ("!", "length", 3)
    assert assembler.is_finished and assembler.content == "né!" and assembler.reasoning_tokens is None
    with pytest.raises(RuntimeError):
        assembler.feed(65)


@pytest.mark.parametrize(("include", "expected"), [(False, "one two "), (True, "one two STOP")])
def test_a_stop_string_ends_the_choice(tokenizer, include, expected):
    plan = OutputPlan(stop=("STOP", "never"), include_stop=include)
    events, assembler = play(plan, tokenizer, tokenizer.encode("one two STOP three"))
    assert fold(events).content == expected == assembler.content
    assert fold(events).finish_reason == "stop"
    assert len(events) == len("one two STOP")


def test_a_stop_string_inside_a_token_cuts_its_rest():
    tokenizer = PieceTokenizer(["one", " two.\n\nthree"])
    events, _ = play(OutputPlan(stop=(".",)), tokenizer, tokenizer.encode("one two.\n\nthree"))
    assert [event.content for event in events] == ["one", " two"]
    events, _ = play(OutputPlan(stop=(".",), include_stop=True), tokenizer, tokenizer.encode("one two.\n\nthree"))
    assert fold(events).content == "one two."


def test_held_back_text_comes_out_when_no_stop_string_follows(tokenizer):
    events, _ = play(OutputPlan(stop=("###",)), tokenizer, tokenizer.encode("a ##"), finish=FinishReason.LENGTH)
    assert [event.content for event in events] == ["a", " ", "", "##"]
    assert events[-1].finish_reason == "length"


def test_the_length_wins_over_a_stop_string_on_the_same_token(tokenizer):
    events, _ = play(OutputPlan(stop=("!",)), tokenizer, tokenizer.encode("a!"), finish=FinishReason.LENGTH)
    assert (fold(events).content, fold(events).finish_reason) == ("a", "length")


def test_a_skipped_special_token_can_be_a_stop_string(tokenizer):
    plan = OutputPlan(stop=("<|note|>",))
    tokens = [*b"Hi", tokenizer.token_id("<|note|>"), *b"more"]
    events, _ = play(plan, tokenizer, tokens)
    assert (fold(events).content, len(events)) == ("Hi", 3)


@pytest.mark.parametrize(("include", "expected"), [(False, "Hi"), (True, "Hi!")])
def test_a_stop_token_shows_only_when_asked_for(tokenizer, include, expected):
    plan = OutputPlan(stop_token_ids=frozenset({ord("!")}), include_stop=include)
    events, _ = play(plan, tokenizer, list(b"Hi"), end_token=ord("!"))
    assert (fold(events).content, fold(events).finish_reason) == (expected, "stop")


def test_a_cancelled_choice_ends_with_stop(tokenizer):
    events, _ = play(OutputPlan(), tokenizer, list(b"Hi"), finish=FinishReason.CANCELLED)
    assert (fold(events).content, fold(events).finish_reason) == ("Hi", "stop")


def test_full_text_repeats_the_whole_content(tokenizer):
    events, _ = play(OutputPlan(reports_full_text=True), tokenizer, list(b"abc"))
    assert [event.full_text for event in events] == ["a", "ab", "abc", "abc"]


def test_logprobs_show_each_token_alone(tokenizer):
    end = tokenizer.token_id("<|im_end|>")
    assembler = ChoiceAssembler(OutputPlan(), tokenizer=tokenizer, index=0)
    first = assembler.feed(0xE5, logprob=TokenLogprob(logprob=-0.5, top=((0xE5, -0.5), (end, -2.0))))
    last = assembler.feed(end, logprob=TokenLogprob(logprob=-0.1), finish=FinishReason.STOP)
    assert first.logprobs is not None and last.logprobs is not None
    entry = first.logprobs[0]
    assert (entry.token, entry.bytes, entry.logprob) == ("\ufffd", (0xEF, 0xBF, 0xBD), -0.5)
    assert [(rival.token, rival.logprob) for rival in entry.top] == [("\ufffd", -0.5), ("<|im_end|>", -2.0)]
    assert (last.logprobs[0].token, last.logprobs[0].bytes) == ("", ())


def test_logprobs_are_absent_unless_given(tokenizer):
    events, _ = play(OutputPlan(), tokenizer, list(b"ab"))
    assert all(event.logprobs is None for event in events)
