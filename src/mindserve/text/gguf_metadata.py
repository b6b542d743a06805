"""Reads the key-value pairs at the head of a GGUF file, without touching the tensors.

Layout (versions 2 and 3, little endian): magic, version, tensor count, pair count, then pairs of key, type and value.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mindserve.errors import ModelLoadError

_MAGIC: Final = b"GGUF"
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_PAIRS: Final = 65536


def read_metadata(path: Path, *, prefix: str = "") -> Mapping[str, object]:
    """Pairs whose key starts with `prefix`: bool, int, float, str, or lists of these. Raises ModelLoadError."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return dict(_Reader(data, path).pairs(prefix))
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise ModelLoadError(f"{path.name} is not a readable GGUF file: {error}") from error


class _Reader:
    """A cursor over the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._name = path.name
        self._at = 0

    def pairs(self, prefix: str) -> list[tuple[str, object]]:
        count = self._header()
        found: list[tuple[str, object]] = []
        for _ in range(count):
            key, kind = self._string(), self._scalar("I")
            value = self._value(int(kind))
            if key.startswith(prefix):
                found.append((key, value))
        return found

    def _header(self) -> int:
        if self._take(4) != _MAGIC:
            raise ModelLoadError(f"{self._name} is not a GGUF file")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelLoadError(f"{self._name}: GGUF version {version} is not supported")
        self._scalar("Q")  # number of tensors
        count = int(self._scalar("Q"))
        if count > _MAX_PAIRS:
            raise ModelLoadError(f"{self._name}: {count} metadata pairs are more than {_MAX_PAIRS}")
        return count

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalar(_SCALARS[kind]) if kind in _SCALARS else self._unknown(kind)

    def _array(self) -> object:
        kind, count = int(self._scalar("I")), int(self._scalar("Q"))
        if count > len(self._data) - self._at:
            raise ValueError(f"an array of {count} elements")
        if kind == _STRING:
            return self._strings(count)
        if kind in _SCALARS:
            layout = struct.Struct(f"<{count}{_SCALARS[kind]}")
            return list(layout.unpack(self._take(layout.size)))
        return self._unknown(kind)

    def _strings(self, count: int) -> list[str]:
        """As `_string`, without its calls: vocabularies have hundreds of thousands."""
        data, at, read_size = self._data, self._at, _LAYOUTS["Q"].unpack_from
        found: list[str] = []
        for _ in range(count):
            start = at + 8
            at = start + read_size(data, at)[0]
            found.append(data[start:at].decode("utf-8", "replace"))
        if at > len(data):
            raise ValueError("the file ends too early")
        self._at = at
        return found

    def _unknown(self, kind: int) -> object:
        raise ValueError(f"value type {kind}")

    def _string(self) -> str:
        return self._take(int(self._scalar("Q"))).decode("utf-8", "replace")

    def _scalar(self, code: str) -> int | float | bool:
        layout = _LAYOUTS[code]
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return value

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise ValueError("the file ends too early")
        self._at += size
        return taken


_LAYOUTS: Final = {code: struct.Struct("<" + code) for code in _SCALARS.values()}
