"""LoRA adapters by name: `LoraModules`, or without it `lora_adapter.json` beside the weights, the older way."""

import re
from collections.abc import Mapping
from pathlib import Path

from mindserve.errors import ConfigError
from mindserve.settings.keys import Section, shown
from mindserve.settings.table import NAME
from mindserve.settings.values import AdapterSettings

LEGACY_FILE = "lora_adapter.json"


def listed_adapters(modules: list[Section], *, home: Path, model_name: str) -> tuple[AdapterSettings, ...]:
    """Entries of `LoraModules`. Raises ConfigError."""
    names = [model_name, *(module.text("name") for module in modules)]
    for i, module in enumerate(modules):
        if module.text("name") in names[: i + 1]:
            raise module.refuse("name", "must differ from the model's and the other adapters' names")
    return tuple(AdapterSettings(name=module.text("name"), path=home / module.text("path")) for module in modules)


def legacy_adapters(document: Mapping[str, object], *, file: Path, model_name: str) -> tuple[AdapterSettings, ...]:
    """The file's object: names and paths, which start from the file's directory. Raises ConfigError."""
    for name, path in document.items():
        if re.fullmatch(NAME, name) is None or name == model_name:
            raise ConfigError(f"{file}: the name {shown(name)} must match {NAME} and differ from the model's.")
        if not isinstance(path, str) or not path:
            raise ConfigError(f"{file}: {name} must be a path, got {shown(path)}.")
    return tuple(AdapterSettings(name=name, path=file.parent / str(path)) for name, path in document.items())
