"""Names for decoded JSON: values that may be anything until a rule has looked at them."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

Document: TypeAlias = Mapping[str, Any]
"""A JSON object."""


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a decoded value is a JSON object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether a decoded value is a JSON array."""
    return isinstance(value, list)
