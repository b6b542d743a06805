"""Settings as plain data for `mindserve config show`, secrets masked."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import cast

SECRET_FIELDS = frozenset({"api_key", "hf_token"})
"""Ours, and vLLM's among the arguments that are passed on to it."""


def as_plain(value: object) -> object:
    """`value` as JSON types: dataclasses as objects, enums and paths as strings, a secret that is set as `***`."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _field(f.name, getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum | Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [as_plain(element) for element in cast(list[object], value)]
    if isinstance(value, frozenset):
        return sorted(str(element) for element in cast(frozenset[object], value))
    if isinstance(value, Mapping):
        return {str(key): _field(str(key), element) for key, element in cast(Mapping[object, object], value).items()}
    return value


def _field(name: str, value: object) -> object:
    return "***" if name in SECRET_FIELDS and value is not None else as_plain(value)
