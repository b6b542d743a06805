"""Where each family cuts; pieces written with GPT-2's alphabet, in which `Ġ` is a space and `Ċ` a newline."""

import pytest

from mindserve.text.pretokenizers import find_pretokenizer


def pieces(name: str, text: str) -> list[str]:
    found = find_pretokenizer(name)
    assert found is not None
    return [piece for piece, _ in found.build().pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'll pay 1234 $!  now", ["I", "'ll", "Ġpay", "Ġ1234", "Ġ$!", "Ġ", "Ġnow"]),
        ("gpt-2", "I'LL\n\nx", ["I", "'", "LL", "Ċ", "Ċ", "x"]),
        ("smollm", "pay 12 now", ["pay", "Ġ", "1", "2", "Ġnow"]),
        ("qwen2", "I'LL pay 123!\n\nx", ["I", "'LL", "Ġpay", "Ġ", "1", "2", "3", "!ĊĊ", "x"]),
        ("llama-bpe", "pay 12345 .Net", ["pay", "Ġ", "123", "45", "Ġ.", "Net"]),
        ("glm4", "a 1234", ["a", "Ġ", "123", "4"]),
        ("tekken", "someWord 12/x", ["some", "Word", "Ġ", "1", "2", "/x"]),
        ("gpt-4o", "someWord's 1234", ["some", "Word's", "Ġ", "123", "4"]),
        ("deepseek-v3", "a 1234 日本 .x", ["a", "Ġ", "123", "4", "Ġ", "æĹ¥æľ¬", "Ġ.", "x"]),
        ("deepseek-llm", "Ab 12\nx,y", ["Ab", "Ġ", "1", "2", "Ċ", "x", ",", "y"]),
        ("deepseek-coder", "Ab 12, x", ["Ab", "Ġ", "1", "2", ",", "Ġx"]),
        ("falcon", "a+b 12345", ["a", "+", "b", "Ġ", "123", "45"]),
        ("qwen35", "é e\u0301x 12", ["Ã©", "ĠeÌģx", "Ġ", "1", "2"]),
    ],
)
def test_cuts(name: str, text: str, expected: list[str]) -> None:
    assert pieces(name, text) == expected


def test_nothing_is_lost() -> None:
    text = "Añb 12\t\n  x🙂  日本'S\r\n end  "
    for name in ("default", "gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "deepseek-llm", "deepseek-v3", "falcon"):
        bytes_ = "".join(pieces(name, text))
        assert len(bytes_) == len(text.encode()), name


def test_unknown_names_are_not_guessed() -> None:
    assert find_pretokenizer("brand-new") is None
