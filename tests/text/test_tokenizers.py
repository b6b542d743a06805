"""Hugging Face and GGUF tokenizers against reference ids, against each other, and byte for byte."""

import random
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer

from .goldens import FAMILIES, GGUF_FAMILIES, GOLDENS, VOCABULARIES, prompts

ALPHABET = "abcXYZ  \n\t\r'sStTllé日本語한국١٢34567890.,!?-_<>|{}[]()🙂\u00a0\u3000ßſﬁe\u0301▁Ġ"
SPECIAL = {"mistral": "[INST]", "glm4": "<|user|>", "llama": "<|eot_id|>"}


@cache
def huggingface(family: str) -> Tokenizer:
    return load_tokenizer(GOLDENS / family / "model")


@cache
def gguf(family: str) -> Tokenizer:
    return load_tokenizer(VOCABULARIES / f"{family}.gguf")


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, 60))) for _ in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_has_the_reference_ids(family: str) -> None:
    texts = prompts(family, "text")
    assert texts
    for prompt in texts:
        assert huggingface(family).encode(prompt["text"], add_special_tokens=True) == prompt["ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_rendered_prompts_have_the_reference_ids(family: str) -> None:
    chats = prompts(family, "chat")
    assert chats
    for prompt in chats:
        assert huggingface(family).encode(prompt["rendered"]) == prompt["ids"]


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_gguf_files_give_the_same_ids(family: str) -> None:
    for prompt in prompts(family, "chat"):
        assert gguf(family).encode(prompt["rendered"]) == prompt["ids"]
    special = SPECIAL.get(family, "<|im_end|>")
    for text in [*random_texts(200), f"a{special}b {special}", special, ""]:
        assert gguf(family).encode(text) == huggingface(family).encode(text)


@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_gguf_files_give_the_same_vocabulary(family: str) -> None:
    of_file, of_directory = gguf(family), huggingface(family)
    assert of_file.vocab_size == of_directory.vocab_size
    for token_id in range(of_file.vocab_size):
        assert of_file.token_bytes(token_id) == of_directory.token_bytes(token_id)
        assert of_file.is_special(token_id) == of_directory.is_special(token_id)
    assert of_file.chat_template == of_directory.chat_template
    assert of_file.special_tokens["eos_token"] == of_directory.special_tokens["eos_token"]


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_gguf_files_add_the_token_that_starts_a_text(family: str) -> None:
    for prompt in prompts(family, "text"):
        assert gguf(family).encode(prompt["text"], add_special_tokens=True) == prompt["ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_the_concatenation_of_token_bytes(family: str) -> None:
    tokenizer, rng = huggingface(family), random.Random(3)
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(20)]
        joined = b"".join(tokenizer.token_bytes(i) for i in ids)
        assert tokenizer.decode(ids, skip_special_tokens=False) == joined.decode("utf-8", "replace")
        kept = b"".join(tokenizer.token_bytes(i) for i in ids if not tokenizer.is_special(i))
        assert tokenizer.decode(ids) == kept.decode("utf-8", "replace")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mistral"])
def test_byte_level_decoding_is_the_library_s_own(family: str) -> None:
    tokenizer, rng = huggingface(family), random.Random(5)
    library = tokenizers.Tokenizer.from_file(str(GOLDENS / family / "model" / "tokenizer.json"))
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(20)]
        assert tokenizer.decode(ids) == library.decode(ids)


@given(st.text(alphabet=ALPHABET))
def test_encoding_loses_nothing_in_byte_level_vocabularies(text: str) -> None:
    tokenizer = huggingface("llama")
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@given(st.text(alphabet=[char for char in ALPHABET if char not in "▁<"], min_size=1))
def test_encoding_adds_one_space_in_sentencepiece_vocabularies(text: str) -> None:
    tokenizer = huggingface("mistral")
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == " " + text


@pytest.mark.parametrize("family", FAMILIES)
def test_every_token_is_found_by_its_text(family: str) -> None:
    tokenizer = huggingface(family)
    whole = [i for i in range(tokenizer.vocab_size) if "\ufffd" not in tokenizer.decode([i], skip_special_tokens=False)]
    assert len(whole) > 200
    for token_id in whole:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        found = tokenizer.token_id(text)
        assert found is not None
        assert tokenizer.token_bytes(found) == tokenizer.token_bytes(token_id)
    assert tokenizer.token_id("no single token is this long") is None


def test_ids_outside_the_vocabulary_are_nothing() -> None:
    tokenizer = huggingface("qwen2")
    assert tokenizer.decode([tokenizer.vocab_size, 10**9, -1]) == ""
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert not tokenizer.is_special(tokenizer.vocab_size)


def test_markers_of_tool_calls_are_not_special_but_end_tokens_are() -> None:
    tokenizer = huggingface("qwen3")
    call, end = tokenizer.token_id("<tool_call>"), tokenizer.token_id("<|im_end|>")
    assert call is not None and end is not None
    assert tokenizer.decode([call, end]) == "<tool_call>"
    assert tokenizer.decode([call, end], skip_special_tokens=False) == "<tool_call><|im_end|>"


def test_lone_surrogates_do_not_break_encoding() -> None:
    tokenizer = huggingface("qwen2")
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a?b")


def test_a_directory_with_one_gguf_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes((VOCABULARIES / "llama.gguf").read_bytes())
    (tmp_path / "mmproj-model.gguf").write_bytes(b"GGUF")
    assert load_tokenizer(tmp_path).encode("Hello") == gguf("llama").encode("Hello")
