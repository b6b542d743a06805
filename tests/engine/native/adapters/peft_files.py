"""PEFT directories for tests, and bases for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


def write_adapter(directory: Path, matrices: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], **config: Any) -> Path:
    """`matrices`: A and B of each module."""
    directory.mkdir(parents=True, exist_ok=True)
    targets = sorted({name.rpartition(".")[2] for name in matrices})
    document = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": targets, **config}
    (directory / "adapter_config.json").write_text(json.dumps(document))
    tensors = {
        f"base_model.model.{name}.lora_{side}.weight": array
        for name, both in matrices.items()
        for side, array in zip("AB", both, strict=True)
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def random_pair(rows: int, columns: int, rank: int = 2, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """A and B."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rank, columns)).astype(np.float32), rng.normal(size=(rows, rank)).astype(np.float32)
