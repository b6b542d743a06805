"""`ModelConfig[0].models`: settings that count for one model type, known only once the model's own files are read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from mindserve.errors import ConfigError
from mindserve.settings.keys import Key, Kind, Notes, Section, shown
from mindserve.settings.values import Settings

_ENTRY = (
    Key(name="enable_reasoning", kind=Kind.BOOLEAN, default=False),
    Key(name="chat_template", kind=Kind.STRING, default=""),
    Key(name="early_stopping_text", kind=Kind.STRING),
    Key(name="tool_call_options", kind=Kind.OBJECT),
)
_TOOL_CALL_OPTIONS = (Key(name="tool_call_parser", kind=Kind.STRING, default=""),)


def read_models(model: Section, *, home: Path) -> dict[str, object]:
    """`models` with the paths of templates resolved, each entry checked. Raises ConfigError."""
    models: dict[str, object] = {}
    for model_type, entry in model.members("models").items():
        section = _entry(model_type, entry, path=model.path_of("models"))
        template = section.text("chat_template")
        path = {"chat_template": str(home / template)} if template else {}
        models[model_type] = {**cast(Mapping[str, object], entry), **path}
    return models


def for_model_type(settings: Settings, model_type: str) -> Settings:
    """`settings` with the entry of `models` for `model_type` applied; the same settings when there is none."""
    if model_type not in settings.raw_models:
        return settings
    entry = _entry(model_type, settings.raw_models[model_type], path="models")
    template = entry.text("chat_template")
    model = replace(
        settings.model,
        enable_reasoning=entry.flag("enable_reasoning"),
        chat_template=Path(template) if template else None,
        early_stopping_text=cast(str | None, entry.value("early_stopping_text")) or None,
        tool_call_parser=entry.child("tool_call_options", _TOOL_CALL_OPTIONS).text("tool_call_parser") or None,
    )
    return replace(settings, model=model)


def _entry(model_type: str, entry: object, *, path: str) -> Section:
    path = f"{path}.{model_type}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{path} must be an object, got {shown(entry)}.", param=path)
    # Other keys here steer NPU kernels of one model type and have no meaning for another engine.
    section = Section(cast(Mapping[str, object], entry), path=path, keys=_ENTRY, notes=Notes())
    section.child("tool_call_options", _TOOL_CALL_OPTIONS)
    return section
