from hypothesis import given
from hypothesis import strategies as st

from mindserve.text.bytes_tokenizer import CHATML_TOKENS, THINKING_TOKENS, ByteTokenizer

TOKENIZER = ByteTokenizer(markers=THINKING_TOKENS)


@given(st.text())
def test_text_survives(text: str) -> None:
    encoded = text.encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == encoded


def test_special_tokens_are_single_tokens_wherever_they_stand() -> None:
    ids = TOKENIZER.encode("a<|im_end|>é<think>")
    assert ids == [97, 258, 0xC3, 0xA9, 259]
    assert TOKENIZER.decode(ids) == "aé<think>"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "a<|im_end|>é<think>"


def test_vocabulary() -> None:
    assert TOKENIZER.vocab_size == 256 + len(CHATML_TOKENS) + len(THINKING_TOKENS)
    assert [TOKENIZER.token_id(name) for name in (*CHATML_TOKENS, *THINKING_TOKENS)] == [256, 257, 258, 259, 260]
    assert TOKENIZER.token_id("a") == 97
    assert TOKENIZER.token_id("ab") is None
    assert TOKENIZER.is_special(258)
    assert not TOKENIZER.is_special(259)
    assert TOKENIZER.token_bytes(258) == b"<|im_end|>"
    assert TOKENIZER.token_bytes(261) == TOKENIZER.token_bytes(-1) == b""


def test_broken_bytes_become_replacement_characters() -> None:
    assert TOKENIZER.decode([0xE2, 0x82, 97]) == "\ufffda"
