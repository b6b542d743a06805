"""What lies beside a vocabulary, and clear words where something is missing."""

import json
import shutil
from pathlib import Path

import gguf
import pytest

from mindserve.errors import ModelLoadError
from mindserve.text.base import Tokenizer
from mindserve.text.load import load_tokenizer

from .goldens import GOLDENS, VOCABULARIES


def directory(path: Path, **config: object) -> Path:
    """A Qwen3 vocabulary with a configuration of its own."""
    shutil.copy(GOLDENS / "qwen3" / "model" / "tokenizer.json", path)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def template_of(path: Path) -> object:
    return load_tokenizer(path).chat_template


def test_a_template_of_its_own_wins_over_the_processor_s_and_that_over_the_tokenizer_s(tmp_path: Path) -> None:
    directory(tmp_path, chat_template="tokenizer")
    assert template_of(tmp_path) == "tokenizer"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "processor"}')
    assert template_of(tmp_path) == "processor"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert template_of(tmp_path) == "file"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert template_of(directory(tmp_path, chat_template=named)) == {"default": "a", "tool_use": "b"}


def test_no_template(tmp_path: Path) -> None:
    assert template_of(directory(tmp_path)) is None


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": [{"name": "default"}]},
        {"chat_template": ["a"]},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"495": {}}},
        {"added_tokens_decoder": {"495": "x"}},
    ],
)
def test_configurations_of_an_unexpected_form(tmp_path: Path, config: dict[str, object]) -> None:
    if "added_tokens_decoder" in config:
        assert load_tokenizer(GOLDENS / "qwen3" / "model").vocab_size == 495
    with pytest.raises(ModelLoadError, match="unexpected form"):
        load_tokenizer(directory(tmp_path, **config))


def test_a_template_file_that_is_no_text(tmp_path: Path) -> None:
    directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match="unexpected form"):
        load_tokenizer(tmp_path)


def test_special_tokens_as_strings_and_objects_and_from_their_own_file(tmp_path: Path) -> None:
    directory(tmp_path, eos_token={"content": "<|im_end|>", "special": True}, bos_token=None, pad_token="<|endoftext|>")
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "!", "eos_token": "other"}')
    tokens = load_tokenizer(tmp_path).special_tokens
    assert tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": "!"}


def test_switches_that_the_weights_set(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(directory(tmp_path, enable_thinking=False, thinking="no boolean"))
    assert tokenizer.template_defaults == {"enable_thinking": False}


def test_tokens_that_only_the_configuration_lists(tmp_path: Path) -> None:
    size = load_tokenizer(GOLDENS / "qwen3" / "model").vocab_size
    added = {str(size): {"content": "<|new|>", "special": True}, str(size + 5): {"content": "<|far|>"}}
    tokenizer = load_tokenizer(directory(tmp_path, added_tokens_decoder=added))
    assert tokenizer.encode("<|new|>") == [size]
    assert tokenizer.is_special(size)
    assert tokenizer.vocab_size == size + 1


def test_first_and_last_tokens_that_the_configuration_asks_for(tmp_path: Path) -> None:
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": True, "add_eos_token": True}
    tokenizer = load_tokenizer(directory(tmp_path, **config))
    first, last = tokenizer.token_id("<|endoftext|>"), tokenizer.token_id("<|im_end|>")
    assert tokenizer.encode("Hello") == tokenizer.encode("Hello", add_special_tokens=True)[1:-1]
    framed = tokenizer.encode("<|endoftext|>Hello<|im_end|>", add_special_tokens=True)
    assert (framed[0], framed[-1], framed.count(first or -1), framed.count(last or -1)) == (first, last, 1, 1)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "holds no tokenizer.json, tokenizer.model or .gguf file"),
        ({"a.gguf": "", "b.gguf": ""}, "holds several .gguf files"),
        ({"a.gguf": "GGML"}, "not a"),
        ({"tokenizer.json": "{}"}, "tokenizer.json is not usable"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "["}, "tokenizer_config.json is not readable"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "[]"}, "tokenizer_config.json is not a JSON object"),
    ],
)
def test_unusable_directories(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=reason):
        load_tokenizer(tmp_path)


def test_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"neither a directory nor a \.gguf file"):
        load_tokenizer(tmp_path / "model.bin")


def test_wordpiece_vocabularies_are_refused(tmp_path: Path) -> None:
    wordpiece = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 9,
    }
    tokenizer = {"version": "1.0", "model": {**wordpiece, "vocab": {"[UNK]": 0}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(tokenizer | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}})
    )
    with pytest.raises(ModelLoadError, match="only byte-level and sentencepiece-like"):
        load_tokenizer(tmp_path)


def gguf_file(path: Path, **pairs: object) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in pairs.items():
        name = "tokenizer." + key.replace("__", ".")
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, str(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


TINY = {"ggml__model": "gpt2", "ggml__tokens": ["a", "b", "ab", "<|end|>"], "ggml__token_type": [1, 1, 1, 3]}


def tiny(path: Path, **pairs: object) -> Tokenizer:
    return load_tokenizer(
        gguf_file(path / "tiny.gguf", **(TINY | {"ggml__merges": ["a b"], "ggml__pre": "gpt-2"} | pairs))
    )


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({"ggml__model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"ggml__pre": "brand-new"}, "pre-tokenizer 'brand-new'"),
        ({"ggml__merges": ["a x"]}, "merges is not usable"),
        ({"ggml__merges": ["ab"]}, "merges is not usable"),
        ({"ggml__token_type": [1, 1]}, "differ in number"),
        ({"ggml__tokens": []}, "tokens is missing"),
        ({"ggml__tokens": [1, 2, 3, 4]}, "tokens is not a list of str"),
        ({"ggml__token_type": "x"}, "token_type is not a list of int"),
    ],
)
def test_unusable_gguf_vocabularies(tmp_path: Path, pairs: dict[str, object], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        tiny(tmp_path, **pairs)


def test_gguf_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="holds no tokenizer"):
        load_tokenizer(gguf_file(tmp_path / "tiny.gguf", other="x"))


def test_gguf_without_a_pretokenizer_gets_the_default_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TINY | {"ggml__merges": ["a b"]}
    tokenizer = load_tokenizer(gguf_file(tmp_path / "tiny.gguf", **tokens))
    assert tokenizer.encode("ab") == [2]
    assert "tokenizer.ggml.pre" in caplog.text


def test_gguf_special_tokens_and_named_templates(tmp_path: Path) -> None:
    tokenizer = tiny(
        tmp_path,
        ggml__eos_token_id=3,
        ggml__bos_token_id=99,
        chat_template="d",
        chat_templates=["tool_use"],
        chat_template__tool_use="t",
    )
    assert tokenizer.special_tokens == {"eos_token": "<|end|>"}
    assert tokenizer.chat_template == {"default": "d", "tool_use": "t"}
    assert tokenizer.encode("ab<|end|>") == [2, 3]
    assert tokenizer.decode([2, 3]) == "ab"


def test_gguf_unused_entries_are_no_tokens() -> None:
    tokenizer = load_tokenizer(VOCABULARIES / "qwen2.gguf")
    assert tokenizer.token_id("[PAD511]") is None
    assert len(tokenizer.encode("[PAD511]")) > 1
