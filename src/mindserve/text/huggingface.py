"""Tokenizers of Hugging Face directories: tokenizer.json, or a sentencepiece tokenizer.model, and what lies beside."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import tokenizers

from mindserve.errors import ModelLoadError
from mindserve.text.added_tokens import add_tokens
from mindserve.text.chatglm import SPECIAL_TOKENS, find_bare_specials
from mindserve.text.fast import FastTokenizer, Traits
from mindserve.text.sentencepiece import Piece, PieceKind, build_backend
from mindserve.text.sentencepiece_model import read_model
from mindserve.text.spelling import Spelling

Json = Mapping[str, Any]

_MAX_JSON_BYTES: Final = 64 * 1024 * 1024
_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MODEL_SPECIALS: Final = {"bos_token": "<s>", "eos_token": "</s>"}
"""What sentencepiece models call them, where the configuration is silent."""
_TEMPLATE_SWITCHES: Final = ("enable_thinking", "thinking")


def load_huggingface_tokenizer(directory: Path) -> FastTokenizer:
    """The tokenizer of a model directory. Raises ModelLoadError."""
    config = _read_json(directory / "tokenizer_config.json")
    try:
        if (directory / "tokenizer.json").is_file():
            return _from_json(directory, config)
        if (directory / "tokenizer.model").is_file():
            return _from_sentencepiece(directory, config)
    except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ModelLoadError(f"the tokenizer's files in {directory} have an unexpected form: {error!r}") from error
    raise ModelLoadError(f"{directory} holds neither tokenizer.json nor tokenizer.model")


def _from_json(directory: Path, config: Json) -> FastTokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"tokenizer.json is not usable: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    _add_missing_tokens(backend, config)
    return FastTokenizer(backend, _traits(directory, config, _spelling_of(backend)))


def _spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    decoder = backend.decoder
    state = "" if decoder is None else bytes(decoder.__getstate__()).decode()
    if '"ByteLevel"' in state:
        return Spelling.BYTE_LEVEL
    if '"ByteFallback"' in state or '"Metaspace"' in state:
        return Spelling.METASPACE
    raise ModelLoadError("tokenizer.json: only byte-level and sentencepiece-like vocabularies are supported")


def _add_missing_tokens(backend: tokenizers.Tokenizer, config: Json) -> None:
    """Tokens that only tokenizer_config.json lists, as far as their ids follow the vocabulary's."""
    listed: Json = config.get("added_tokens_decoder") or {}
    for token_id in sorted(int(key) for key in listed if key.isdigit()):
        entry = listed[str(token_id)]
        if token_id == backend.get_vocab_size(with_added_tokens=True) and backend.id_to_token(token_id) is None:
            add_tokens(backend, [(str(entry["content"]), bool(entry.get("special", False)))])


def _from_sentencepiece(directory: Path, config: Json) -> FastTokenizer:
    model = read_model(directory / "tokenizer.model")
    pieces = [*model.pieces, *_further_pieces(directory, config, len(model.pieces))]
    texts = [piece.text for piece in pieces]
    bare = find_bare_specials(texts)
    traits = _traits(directory, config, Spelling.METASPACE)
    traits = replace(
        traits,
        special_tokens={**{n: t for n, t in _MODEL_SPECIALS.items() if t in texts}, **traits.special_tokens},
        adds_bos=bool(config.get("add_bos_token", bare is None)),
        bare_specials=bare,
    )
    return FastTokenizer(build_backend(pieces, model.normalization, is_unigram=model.is_unigram), traits)


def _further_pieces(directory: Path, config: Json, start: int) -> list[Piece]:
    """Special tokens beyond the sentencepiece model; ChatGLM's live in its tokenizer's code."""
    if _is_chatglm(directory, config):
        return [Piece(text=text, kind=PieceKind.CONTROL) for text in SPECIAL_TOKENS]
    listed: Json = config.get("added_tokens_decoder") or {}
    names = {int(key): str(entry["content"]) for key, entry in listed.items() if key.isdigit()}
    names |= {token_id: name for name, token_id in _read_json(directory / "added_tokens.json").items()}
    count = 0
    while start + count in names:
        count += 1
    return [Piece(text=names[start + i], kind=PieceKind.CONTROL) for i in range(count)]


def _is_chatglm(directory: Path, config: Json) -> bool:
    return (
        config.get("tokenizer_class") == "ChatGLMTokenizer"
        or _read_json(directory / "config.json").get("model_type") == "chatglm"
    )


def _traits(directory: Path, config: Json, spelling: Spelling) -> Traits:
    return Traits(
        spelling=spelling,
        chat_template=_chat_template(directory, config),
        special_tokens=_special_tokens(directory, config),
        template_defaults={key: config[key] for key in _TEMPLATE_SWITCHES if isinstance(config.get(key), bool)},
        adds_bos=bool(config.get("add_bos_token", False)),
        adds_eos=bool(config.get("add_eos_token", False)),
    )


def _special_tokens(directory: Path, config: Json) -> dict[str, str]:
    fallback = _read_json(directory / "special_tokens_map.json")
    found = {name: _content(config.get(name) or fallback.get(name)) for name in _SPECIAL_NAMES}
    return {name: text for name, text in found.items() if text is not None}


def _content(token: object) -> str | None:
    """A special token is written as a string or as an object with its `content`."""
    if isinstance(token, dict):
        token = cast("dict[str, object]", token).get("content")
    return token if isinstance(token, str) else None


def read_chat_template(directory: Path) -> str | dict[str, str] | None:
    """The chat template among the files of a model or an adapter; named ones where there are several. Raises
    ModelLoadError."""
    try:
        return _chat_template(directory, _read_json(directory / "tokenizer_config.json"))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise ModelLoadError(f"the chat template in {directory} has an unexpected form: {error!r}") from error


def _chat_template(directory: Path, config: Json) -> str | dict[str, str] | None:
    """A file of its own wins, then the processor's, then the tokenizer's (a string, or a list of named ones)."""
    if (directory / "chat_template.jinja").is_file():
        return (directory / "chat_template.jinja").read_text("utf-8")
    found = _read_json(directory / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):
        entries = cast("list[dict[str, str]]", found)
        return {entry["name"]: entry["template"] for entry in entries}
    return found if isinstance(found, str) else None


def _read_json(path: Path) -> Json:
    """An object, or nothing where the file is missing."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"larger than {_MAX_JSON_BYTES} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path.name} is not readable: {error}") from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path.name} is not a JSON object")
    return cast("dict[str, Any]", found)
