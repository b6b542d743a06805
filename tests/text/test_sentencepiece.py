import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mindserve.errors import ModelLoadError
from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer
from mindserve.text.sentencepiece import Piece, PieceKind

from .sentencepiece_files import UNIGRAM, base_pieces, write_model

CHATGLM_SPECIALS = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>"]


def load(directory: Path, more: Sequence[Piece] = (), *, config: dict[str, object] | None = None) -> Tokenizer:
    write_model(directory / "tokenizer.model", [*base_pieces(), *more])
    (directory / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return load_tokenizer(directory)


def texts(tokenizer: Tokenizer, text: str) -> list[bytes]:
    return [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]


def scored(*pairs: tuple[str, float]) -> list[Piece]:
    return [Piece(text=text, score=score) for text, score in pairs]


def test_the_best_scored_pair_is_joined_first(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = load(tmp_path / "a", scored(("ab", -1.0), ("bc", -2.0)))
    second = load(tmp_path / "b", scored(("ab", -2.0), ("bc", -1.0)))
    assert texts(first, "abc") == [b" ", b"ab", b"c"]
    assert texts(second, "abc") == [b" ", b"a", b"bc"]


def test_longer_pieces_come_from_any_cut(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, scored(("bc", -1.0), ("abc", -2.0), ("▁abc", -3.0)))
    assert texts(tokenizer, "abc abc") == [b" abc", b" abc"]


def test_characters_without_a_piece_become_bytes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert texts(tokenizer, "a\né") == [b" ", b"a", b"\n", b"\xc3", b"\xa9"]
    assert tokenizer.decode(tokenizer.encode("a\né")) == " a\né"


def test_unused_pieces_are_never_made(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, [Piece(text="ab", score=-1.0, kind=PieceKind.UNUSED), *scored(("bc", -5.0))])
    assert texts(tokenizer, "abc") == [b" ", b"a", b"bc"]


def test_user_defined_pieces_are_cut_out_first(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, [Piece(text="hello", kind=PieceKind.USER_DEFINED)])
    assert texts(tokenizer, "abhello") == [b" ", b"a", b"b", b"hello"]
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_llama_models_start_texts_with_their_first_token(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.encode("a", add_special_tokens=True) == [1, *tokenizer.encode("a")]
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.encode("<s>a") == [1, *tokenizer.encode("a")]


def test_configuration_decides_about_first_and_last_tokens(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, config={"add_bos_token": False, "add_eos_token": True})
    assert tokenizer.encode("a", add_special_tokens=True) == [*tokenizer.encode("a"), 2]


def test_tokens_beyond_the_model_come_from_the_configuration(tmp_path: Path) -> None:
    size = len(base_pieces())
    added = {
        str(size): {"content": "<pad>"},
        str(size + 1): {"content": "<extra>"},
        str(size + 9): {"content": "<far>"},
    }
    tokenizer = load(tmp_path, config={"added_tokens_decoder": added})
    assert tokenizer.encode("<extra>") == [size + 1]
    assert tokenizer.vocab_size == size + 2


def test_unigram_models_take_the_likeliest_cut(tmp_path: Path) -> None:
    pieces = [*base_pieces(), *scored(("ab", -1.0), ("abc", -9.0), ("c", -2.0), ("▁", -1.0))]
    write_model(tmp_path / "tokenizer.model", pieces, kind=UNIGRAM)
    assert texts(load_tokenizer(tmp_path), "abc") == [b" ", b"ab", b"c"]


def test_spaces_collapse_where_the_model_says_so(tmp_path: Path) -> None:
    write_model(tmp_path / "tokenizer.model", base_pieces(), collapses_spaces=True)
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).encode("  a   b ")) == " a b"


def test_no_space_is_added_where_the_model_says_so(tmp_path: Path) -> None:
    write_model(tmp_path / "tokenizer.model", base_pieces(), adds_space=False)
    assert texts(load_tokenizer(tmp_path), "a") == [b"a"]


@pytest.mark.parametrize("config", [{"tokenizer_class": "ChatGLMTokenizer"}, {}])
def test_chatglm3_has_its_special_tokens_behind_the_model(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "chatglm"}')
    tokenizer = load(tmp_path, config=config)
    size = len(base_pieces())
    assert [tokenizer.token_id(name) for name in CHATGLM_SPECIALS] == [size + i for i in range(8)]
    assert all(tokenizer.is_special(size + i) for i in range(9))
    assert tokenizer.decode([size + 3, size + 6]) == ""


def test_chatglm3_prompts_start_with_two_tokens_whose_letters_are_ordinary_elsewhere(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, config={"tokenizer_class": "ChatGLMTokenizer"})
    size = len(base_pieces())
    prompt = tokenizer.encode("[gMASK]sop<|user|>\n philosophy<|assistant|>")
    assert prompt[:3] == [size + 1, size + 3, size + 6]
    assert prompt[-1] == size + 7
    assert not set(prompt[3:-1]) & set(range(size, size + 9))
    assert tokenizer.decode(prompt[3:-1]) == " \n philosophy"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x7f", b"\xff" * 20, b"abcd" * 9, b"\x0a\x02\x0d\x00", b"IQ== 0\nIg== 1\n"],
)
def test_damaged_models_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model is not a sentencepiece model"):
        load_tokenizer(tmp_path)
