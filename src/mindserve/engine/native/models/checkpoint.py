"""A model's files behind one face: a configuration and tensors by Hugging Face name, read when asked for."""

from pathlib import Path
from typing import Protocol

from mindserve.engine.fields import Fields
from mindserve.engine.native.models.stored import StoredTensor
from mindserve.errors import ModelLoadError


class Checkpoint(Protocol):
    """Where a model comes from."""

    @property
    def config(self) -> Fields:
        """In the shape of config.json."""
        ...

    @property
    def generation(self) -> Fields:
        """In the shape of generation_config.json; empty where there is none."""
        ...

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of that Hugging Face name exists."""
        ...

    def source_of(self, name: str) -> str:
        """File (and the tensor's name in it, where it differs), for error texts."""
        ...

    def tensor(self, name: str) -> StoredTensor:
        """Read one tensor. Raises ModelLoadError for one that is missing or damaged."""
        ...


def model_files(path: Path) -> tuple[Path, ...]:
    """The files that decide what a model is: a GGUF file, in a directory with the projector that lies beside it, or
    configuration and safetensors. Raises ModelLoadError."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ModelLoadError(f"{path}: no such model file or directory")
    if (path / "config.json").is_file():
        names = ("config.json", "generation_config.json", "model.safetensors.index.json")
        found = [path / name for name in names if (path / name).is_file()]
        return (*found, *sorted(path.glob("*.safetensors")))
    ggufs = sorted(path.glob("*.gguf"), key=is_projector)
    models = [file for file in ggufs if not is_projector(file)]
    if len(models) != 1 or len(ggufs) > 2:
        raise ModelLoadError(
            f"{path}: expected config.json with safetensors, or one .gguf file and at most one mmproj beside it, "
            f"found {len(models)} and {len(ggufs) - len(models)}"
        )
    return tuple(ggufs)


def is_projector(file: Path) -> bool:
    """Whether a GGUF file holds the towers of another one, by its name."""
    return "mmproj" in file.name.lower()
