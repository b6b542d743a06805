"""Hugging Face directories: config.json and safetensors, in one file or in shards with an index."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from safetensors import SafetensorError, safe_open

from mindserve.engine.model_files import read_fields, read_json
from mindserve.engine.native.models.stored import StoredTensor
from mindserve.errors import ModelLoadError

DENSE_TYPES = frozenset({"F32", "F16", "BF16"})


class SafetensorsCheckpoint:
    """One directory. Files are opened when first needed and mapped, tensors are copied out one by one."""

    def __init__(self, directory: Path) -> None:
        self.config, self.generation = read_fields(directory)
        self._directory = directory
        self._files: dict[Path, safe_open] = {}
        self._paths = self._tensor_files()

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def source_of(self, name: str) -> str:
        """See Checkpoint."""
        return str(self._paths.get(name, self._directory))

    def tensor(self, name: str) -> StoredTensor:
        """See Checkpoint."""
        path = self._paths.get(name)
        if path is None:
            raise ModelLoadError(f"{self._directory}: tensor {name} is missing")
        try:
            file = self._open(path)
            kind = file.get_slice(name).get_dtype()
            if kind not in DENSE_TYPES:
                raise ModelLoadError(f"{path}: tensor {name} has type {kind}, expected one of F32, F16, BF16")
            return StoredTensor(data=file.get_tensor(name))
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelLoadError(f"{path}: tensor {name}: {error}") from error

    def _open(self, path: Path) -> safe_open:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="np")
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{path}: {error}") from error
        return self._files[path]

    def _tensor_files(self) -> dict[str, Path]:
        """Which file holds which tensor."""
        index = self._directory / "model.safetensors.index.json"
        if index.is_file():
            return self._indexed_files(index)
        single = self._directory / "model.safetensors"
        paths = [single] if single.is_file() else sorted(self._directory.glob("*.safetensors"))
        if not paths:
            raise ModelLoadError(f"{self._directory}: no .safetensors file")
        return {name: path for path in paths for name in self._open(path).keys()}  # noqa: SIM118 (not a mapping)

    def _indexed_files(self, index: Path) -> dict[str, Path]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, Mapping):
            raise ModelLoadError(f"{index}: weight_map should be an object")
        files = {name: self._directory / str(file) for name, file in cast("Mapping[str, object]", weight_map).items()}
        for path in set(files.values()):
            if path.parent != self._directory or not path.is_file():
                raise ModelLoadError(f"{index}: names {path.name}, which is not in the directory")
        return files
