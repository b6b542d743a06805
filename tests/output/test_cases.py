"""The contract's cases, whole and in any pieces, and cut off at every token."""

import json
import random
import re

import pytest

from mindserve.engine.base import FinishReason
from tests.output.cases import VERBATIM, Case, load_cases, markers
from tests.output.play import Answer, fold, play
from tests.output.vocabulary import PieceTokenizer

CASES = load_cases()
END = "<|im_end|>"


def pieces_of(text: str, whole: list[str], rng: random.Random) -> list[str]:
    """Cut `text` at random places, never inside one of `whole`."""
    inner = {at + i for m in whole for at in range(len(text)) if text.startswith(m, at) for i in range(1, len(m))}
    places = [at for at in range(1, len(text)) if at not in inner]
    edges = {e for m in whole for at in range(len(text)) if text.startswith(m, at) for e in (at, at + len(m))}
    cuts = sorted({*rng.sample(places, rng.randint(0, len(places))), *(edges - {0, len(text)})})
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def check(case: Case, answer: Answer) -> None:
    assert answer.content == case.content
    assert answer.reasoning == case.reasoning
    assert answer.finish_reason == case.finish_reason
    assert [name for name, _ in answer.calls] == [name for name, _ in case.calls]
    for (_, got), (_, expected) in zip(answer.calls, case.calls, strict=True):
        if case.family in VERBATIM:
            assert got == expected
        assert json.loads(got) == json.loads(expected)


def answer_of(case: Case, tokenizer: PieceTokenizer, tokens: list[int]) -> Answer:
    if case.finish == "length":
        return fold(play(case.plan, tokenizer, tokens, finish=FinishReason.LENGTH)[0])
    if case.text.endswith(END):
        return fold(play(case.plan, tokenizer, tokens[:-1], end_token=tokens[-1])[0])
    skipping = case.plan.skip_special_tokens
    return fold(play(case.plan, tokenizer, tokens, end_token=tokenizer.token_id(END) if skipping else None)[0])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_whole_text_in_one_token(case):
    text = case.text.removesuffix(END)
    tokenizer = PieceTokenizer([text], special=[END])
    check(case, answer_of(case, tokenizer, tokenizer.encode(case.text)))


SHOWN = [case for case in CASES if any(marker in case.content + (case.reasoning or "") for marker in markers(case))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_any_pieces_with_a_token_for_each_marker(case):
    check_pieces(case, special=[END])


@pytest.mark.parametrize("case", [case for case in CASES if case not in SHOWN], ids=lambda case: case.id)
def test_any_pieces_with_a_special_token_for_each_marker(case):
    check_pieces(case, special=[END, *markers(case)])


def check_pieces(case: Case, *, special: list[str]) -> None:
    rng = random.Random(case.id)
    text = case.text.removesuffix(END)
    for _ in range(20):
        whole = markers(case)
        pieces = pieces_of(text, whole, rng)
        tokenizer = PieceTokenizer([*pieces, *whole], special=special)
        tokens = [tokenizer.encode(piece)[0] for piece in pieces] + tokenizer.encode(case.text[len(text) :])
        check(case, answer_of(case, tokenizer, tokens))


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case.id)
def test_skipped_markers_leave_the_content(case):
    """Markers of blocks that are no calls are content, so special ones are skipped there."""
    whole = markers(case)
    tokenizer = PieceTokenizer(whole, special=[END, *whole])
    answer = answer_of(case, tokenizer, tokenizer.encode(case.text))
    shown = re.compile("|".join(map(re.escape, sorted(whole, key=len, reverse=True))))
    assert answer.content == (str.strip if case.plan.tools else str)(shown.sub("", case.content))
    assert answer.reasoning == (None if case.reasoning is None else shown.sub("", case.reasoning))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bytes_without_any_marker_token(case):
    tokenizer = PieceTokenizer([], special=[END])
    check(case, answer_of(case, tokenizer, tokenizer.encode(case.text)))


@pytest.mark.parametrize("case", [case for case in CASES if not case.text.endswith(END)], ids=lambda case: case.id)
def test_every_length_gives_a_sound_answer(case):
    tokenizer = PieceTokenizer(markers(case), special=[END])
    tokens = tokenizer.encode(case.text)
    whole = answer_of(case, tokenizer, tokens)
    for length in range(1, len(tokens) + 1):
        events, _ = play(case.plan, tokenizer, tokens[:length], finish=FinishReason.LENGTH)
        answer = fold(events)
        at_once = PieceTokenizer([tokenizer.decode(tokens[:length])], special=[END])
        text = tokenizer.decode(tokens[:length])
        if "\ufffd" not in text:
            one = fold(play(case.plan, at_once, at_once.encode(text), finish=FinishReason.LENGTH)[0])
            assert (one.content, one.reasoning, one.calls) == (answer.content, answer.reasoning, answer.calls)
            assert one.finish_reason == answer.finish_reason
        assert answer.calls == whole.calls[: len(answer.calls)]
        assert answer.finish_reason in (("length", "tool_calls") if answer.calls else ("length",))
        for _, arguments in answer.calls:
            json.loads(arguments)
        if answer.calls:
            assert whole.content.startswith(answer.content)
