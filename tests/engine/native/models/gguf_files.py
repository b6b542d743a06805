"""Writes reference models as GGUF files, in the terms of llama.cpp."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[np.float32]]


def write_gguf(target: Path, architecture: str, metadata: Mapping[str, float | str], tensors: Tensors) -> Path:
    """`metadata` without the architecture's prefix: int, float or str as they are."""
    writer = GGUFWriter(target, architecture)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 1)
    for name, value in metadata.items():
        key = f"{architecture}.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def gguf_name(name: str, parts: Mapping[str, str]) -> str:
    """`parts`: what Hugging Face calls a part of a layer, and GGUF."""
    usual = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
    }
    for ours, theirs in {**usual, **parts}.items():
        name = name.replace(f"{ours}.", f"{theirs}.")
    return name
