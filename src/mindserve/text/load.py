"""Finds the tokenizer that belongs to a model path."""

from pathlib import Path

from mindserve.errors import ModelLoadError
from mindserve.text.base import Tokenizer
from mindserve.text.gguf_vocabulary import load_gguf_tokenizer
from mindserve.text.huggingface import load_huggingface_tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory, a GGUF file, or a directory with one. Raises ModelLoadError."""
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(f"{path} is neither a directory nor a .gguf file")
        return load_gguf_tokenizer(path)
    if not path.is_dir():
        raise ModelLoadError(f"{path} does not exist")
    if (path / "tokenizer.json").is_file() or (path / "tokenizer.model").is_file():
        return load_huggingface_tokenizer(path)
    return load_gguf_tokenizer(_only_gguf(path))


def _only_gguf(directory: Path) -> Path:
    """The model's file; a projector (mmproj) beside it is not the model."""
    found = sorted(p for p in directory.glob("*.gguf") if "mmproj" not in p.name.lower())
    if not found:
        raise ModelLoadError(f"{directory} holds no tokenizer.json, tokenizer.model or .gguf file")
    if len(found) > 1:
        raise ModelLoadError(f"{directory} holds several .gguf files ({found[0].name}, {found[1].name}, ...): name one")
    return found[0]
