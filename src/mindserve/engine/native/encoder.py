"""The thread that reads media while the engine's own thread goes on with running sequences."""

import logging
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread, get_native_id

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import MediaInput
from mindserve.engine.native.media import RequestMedia
from mindserve.engine.native.step import Towers
from mindserve.errors import EngineFailure, MindserveError, Overloaded

logger = logging.getLogger(__name__)

CACHE_BYTES = 128 << 20
"""Embeddings kept for media that come again: a conversation's history, the same picture asked about twice."""
MAX_WAITING_BYTES = 2 << 30
"""Features of all requests that wait for the towers."""

NICENESS = 4
"""How far the towers stand behind running streams."""

Outcome = RequestMedia | MindserveError


class Job:
    """The media of one request."""

    def __init__(
        self,
        length: int,
        media: Sequence[MediaInput],
        on_done: Callable[[Outcome], None],
        *,
        start: "Callable[[Job], None]",
    ) -> None:
        self.length = length
        """Tokens of the prompt."""
        self.media = media
        self.on_done = on_done
        """Called on the encoder's thread, unless the job is cancelled."""
        self._start = start
        self.size_bytes = sum(array.nbytes for item in media for array in item.features.values())
        self.is_wanted = True

    def start(self) -> None:
        """Take its place in the line."""
        self._start(self)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.is_wanted = False


class EmbeddingCache:
    """What the towers made of the media used last, by digest, within a budget of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._size_bytes = 0

    def find(self, digest: bytes) -> NDArray[np.float32] | None:
        """What was kept for this content."""
        if digest in self._entries:
            self._entries.move_to_end(digest)
        return self._entries.get(digest)

    def keep(self, digest: bytes, rows: NDArray[np.float32]) -> None:
        """Forgets what was not used for longest; what exceeds the whole budget is not kept."""
        if rows.nbytes > self._max_bytes or digest in self._entries:
            return
        self._entries[digest] = rows
        self._size_bytes += rows.nbytes
        while self._size_bytes > self._max_bytes:
            self._size_bytes -= self._entries.popitem(last=False)[1].nbytes


class MediaEncoder:
    """Takes jobs in the order in which they are started. All methods may be called from any thread."""

    def __init__(self, towers: Towers, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._towers = towers
        self._cache = EmbeddingCache(cache_bytes)
        self._jobs: deque[Job] = deque()
        self._waiting_bytes = 0
        self._news = Condition()
        self._is_closing = False
        self._thread = Thread(target=self._main, name="mindserve-towers", daemon=True)
        self._thread.start()

    def reserve(self, length: int, media: Sequence[MediaInput], on_done: Callable[[Outcome], None]) -> Job:
        """Room for the media of a prompt of `length` tokens; the caller starts the job. Raises Overloaded."""
        job = Job(length, media, on_done, start=self._start)
        with self._news:
            if self._waiting_bytes and self._waiting_bytes + job.size_bytes > MAX_WAITING_BYTES:
                raise Overloaded("Model is overloaded")
            self._waiting_bytes += job.size_bytes
        return job

    def _start(self, job: Job) -> None:
        with self._news:
            self._jobs.append(job)
            self._news.notify()

    def close(self) -> None:
        """Drop everything and end the thread."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        while self._thread.is_alive():
            self._towers.interrupt()
            self._thread.join(0.05)

    def _main(self) -> None:
        _give_way()
        while (job := self._next()) is not None:
            try:
                self._finish(job)
            finally:
                with self._news:
                    self._waiting_bytes -= job.size_bytes

    def _next(self) -> Job | None:
        with self._news:
            while not self._jobs and not self._is_closing:
                self._news.wait()
            return None if self._is_closing else self._jobs.popleft()

    def _finish(self, job: Job) -> None:
        try:
            outcome: Outcome | None = self._read(job)
        except MindserveError as error:
            outcome = error
        except Exception:
            logger.exception("A tower failed")
            outcome = EngineFailure("The model could not read the media.")
        if outcome is not None and job.is_wanted and not self._is_closing:
            job.on_done(outcome)

    def _read(self, job: Job) -> RequestMedia | None:
        """None: no longer wanted."""
        embeddings: list[NDArray[np.float32]] = []
        for item in job.media:
            if not job.is_wanted or self._is_closing:
                return None
            embeddings.append(self._embedded(item))
        return RequestMedia(job.media, embeddings, self._towers.positions(job.length, job.media))

    def _embedded(self, item: MediaInput) -> NDArray[np.float32]:
        rows = self._cache.find(item.digest)
        if rows is None or len(rows) != item.length:
            rows = self._towers.encode(item)
            self._cache.keep(item.digest, rows)
        return rows


def _give_way() -> None:
    """Let this thread have about a third of a core that the engine's threads want too. Only Linux can."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
