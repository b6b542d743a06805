"""Real weights for tests: the demo model, and the same with an adapter for thoughts and tool calls merged into it.

`scripts/test` fetches the demo model. The adapter (low-rank matrices of every projection, as bytes with one scale per
rank) and its chat template lie in `tests/data/think-tools`. The merged file is kept beside the demo model.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from mindserve.settings.values import EngineSettings

from .servers import Server, running, settings

MODELS = Path(__file__).parents[2] / ".models"
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
ADAPTER = Path(__file__).parents[1] / "data" / "think-tools"
SCALE = 16 / 8
"""The adapter's alpha over its rank."""
MODULES = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_output": "o_proj",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
HEADS = {"attn_q": 9, "attn_k": 3}
"""Projections whose rows this kind of file interleaves per head."""


def think_tools() -> Path:
    """The demo model with the adapter merged into its weights and the adapter's chat template."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted(ADAPTER.iterdir()):
        digest.update(file.read_bytes())
    path = MODELS / f"SmolLM2-135M-think-tools-{digest.hexdigest()[:12]}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        _merge(unfinished)
        for outdated in MODELS.glob("SmolLM2-135M-think-tools-*.gguf"):
            outdated.unlink()
        unfinished.rename(path)
    return path


@contextmanager
def serving(path: Path, **values: Any) -> Iterator[Server]:
    """A server of this model in the engine's fast mode. Its compiled form is kept beside the weights."""
    engine = EngineSettings(prepared_dir=MODELS / "prepared", cache_bytes=256 * 1024 * 1024)
    with running(settings(engine, path=path, **values)) as up:
        yield up


def _merge(path: Path) -> None:
    reader = gguf.GGUFReader(SMOLLM2)
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "tokenizer.chat_template"):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    writer.add_chat_template((ADAPTER / "chat_template.jinja").read_text())
    adapter = np.load(ADAPTER / "adapter.npz")
    for tensor in reader.tensors:
        data, kind = _merged(tensor, adapter)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merged(tensor: Any, adapter: Any) -> tuple[NDArray[Any], gguf.GGMLQuantizationType]:
    """The tensor's data and type: W + alpha / r * B A where the adapter has matrices, else as it was."""
    _, _, rest = tensor.name.partition("blk.")
    layer, _, projection = rest.removesuffix(".weight").partition(".")
    if projection not in MODULES:
        return tensor.data, tensor.tensor_type
    a, b = (_matrix(adapter, f"{MODULES[projection]}.{side}", int(layer)) for side in "AB")
    change = SCALE * _interleaved(b @ a, HEADS.get(projection))
    weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type) + change
    kind = gguf.GGMLQuantizationType.Q8_0
    return gguf.quants.quantize(weight, kind), kind


def _matrix(adapter: Any, name: str, layer: int) -> NDArray[np.float32]:
    return adapter[name][layer] * adapter[f"{name}.scale"][layer]


def _interleaved(rows: NDArray[np.float32], heads: int | None) -> NDArray[np.float32]:
    """The two halves of each head's rows, which rotate together, one row from each in turn."""
    if heads is None:
        return rows
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
