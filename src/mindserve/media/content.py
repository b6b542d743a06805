"""The bytes of one media file on their way from a source to a decoder: counted, hashed, spooled to disk when large."""

import hashlib
import tempfile
import threading
from collections.abc import Iterable
from typing import IO, cast

from mindserve.errors import InvalidRequest, Overloaded

DIGEST_BYTES = 32
_MEMORY_BYTES = 4 * 1024 * 1024
"""Larger content lies in a temporary file."""
_CHUNK_BYTES = 1024 * 1024


class SizeBudget:
    """Bytes that the media of one request may still bring. Its parts are read in several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Raises InvalidRequest when all parts together are too large."""
        with self._lock:
            self._left -= size_bytes
            is_spent = self._left < 0
        if is_spent:
            megabytes = self._max_bytes / (1024 * 1024)
            raise InvalidRequest(f"The total media input cannot exceed {megabytes:.1f} MB.", param="messages")


class Content:
    """A file to decode. Its temporary file has no name: the system removes it with the last reference."""

    def __init__(self, *, max_bytes: int, too_large: str, budget: SizeBudget) -> None:
        """`too_large` is the text of the error for more than `max_bytes`."""
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._too_large = too_large
        self._budget = budget
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._is_abandoned = threading.Event()
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115  (closed by `close`)

    def announce(self, size_bytes: int) -> None:
        """Refuse at once what says itself that it is too large. Raises InvalidRequest."""
        if size_bytes > self._max_bytes:
            raise InvalidRequest(self._too_large, param="messages")

    def write(self, chunk: bytes) -> None:
        """Append. Raises InvalidRequest beyond the limits and Overloaded when the disk is full."""
        self.size_bytes += len(chunk)
        self.announce(self.size_bytes)
        self._budget.take(len(chunk))
        self._hash.update(chunk)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise Overloaded("Insufficient disk space for media.") from error

    def write_all(self, chunks: Iterable[bytes]) -> None:
        """Append all of `chunks`."""
        for chunk in chunks:
            self.write(chunk)

    def digest(self) -> bytes:
        """Of everything written."""
        return self._hash.digest()

    def open(self) -> IO[bytes]:
        """The content from its start; valid until `close`. Reading fails after `abandon`."""
        self._file.seek(0)
        return cast("IO[bytes]", _Reader(self._file, self._is_abandoned))

    def abandon(self) -> None:
        """Nobody waits for the result any more: let the decoder end soon."""
        self._is_abandoned.set()

    def close(self) -> None:
        """Give memory and disk back. Idempotent."""
        self._file.close()


class _Reader:
    """What decoders need of a file."""

    def __init__(self, file: IO[bytes], is_abandoned: threading.Event) -> None:
        self._file = file
        self._is_abandoned = is_abandoned

    def read(self, size: int = -1) -> bytes:
        if self._is_abandoned.is_set():
            raise OSError("abandoned")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def chunks_of(file: IO[bytes]) -> Iterable[bytes]:
    """What is left in `file`, piece by piece."""
    return iter(lambda: file.read(_CHUNK_BYTES), b"")
