"""GGUF files of text models as checkpoints: Hugging Face names and an HF-shaped configuration."""

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.gguf_file import GgufFile
from mindserve.engine.native.models.gguf_metadata import architecture_of, hf_config, hf_names
from mindserve.engine.native.models.stored import StoredTensor
from mindserve.errors import ModelLoadError


class GgufCheckpoint:
    """One file, mapped; a tensor is read when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GgufFile(path)
        self._architecture = architecture_of(self._file.metadata, str(path))
        self._names = hf_names(self._file.names, self._architecture)
        is_longrope = "rope_factors_long.weight" in self._file.names
        config = hf_config(self._file.metadata, self._architecture, is_longrope=is_longrope)
        config |= self._facts_from_tensors()
        self.config = Fields(str(path), config)
        self.generation = Fields(str(path), {})

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def source_of(self, name: str) -> str:
        """See Checkpoint."""
        return f"{self._path}: {self._names[name]}" if name in self._names else str(self._path)

    def tensor(self, name: str) -> StoredTensor:
        """See Checkpoint."""
        if name not in self._names:
            raise ModelLoadError(f"{self._path}: tensor {name} is missing")
        stored = self._file.tensor(self._names[name])
        order = self._rotary_row_order(name, stored.shape[0])
        return stored if order is None else stored.rows(order)

    def token_id(self, text: str) -> int | None:
        """Of a token of the vocabulary, as it is spelled there."""
        tokens = cast("list[object]", self._file.metadata.get("tokenizer.ggml.tokens", []))
        return tokens.index(text) if text in tokens else None

    def _rotary_row_order(self, name: str, count: int) -> NDArray[np.int64] | None:
        """Undo the converter's permutation: pairs (2i, 2i + 1) go back to (i, i + head_dim / 2)."""
        is_query, is_key = ".self_attn.q_proj." in name, ".self_attn.k_proj." in name
        if not self._architecture.permutes_rotary_rows or not (is_query or is_key):
            return None
        heads = self.config.positive("num_attention_heads")
        if is_key:
            heads = self.config.positive("num_key_value_heads", heads)
        if count % (2 * heads):
            raise ModelLoadError(f"{self.source_of(name)}: {count} rows are not {heads} heads")
        return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def _facts_from_tensors(self) -> dict[str, object]:
        name = "token_embd.weight"
        shape = self._file.tensor(name).shape if name in self._file else ()
        if len(shape) != 2:
            raise ModelLoadError(f"{self._path}: tensor {name} is missing or no matrix")
        return {
            "vocab_size": shape[0],
            "tie_word_embeddings": "output.weight" not in self._file,
            "attention_bias": "blk.0.attn_q.bias" in self._file or "blk.0.attn_qkv.bias" in self._file,
        }
