"""The thread that reads media while the engine's own thread goes on with running sequences."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread

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

Outcome = RequestMedia | MindserveError


class Job:
    """The media of one request."""

    def __init__(self, length: int, media: Sequence[MediaInput], on_done: Callable[[Outcome], None]) -> None:
        self.length = length
        """Tokens of the prompt."""
        self.media = media
        self.on_done = on_done
        """Called on the encoder's thread, unless the job is cancelled."""
        self.size_bytes = sum(array.nbytes for item in media for array in item.features.values())
        self.is_wanted = True


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
        self._current: Job | None = None
        self._waiting_bytes = 0
        self._news = Condition()
        self._is_closing = False
        self._thread = Thread(target=self._main, name="mindserve-towers", daemon=True)
        self._thread.start()

    def reserve(self, job: Job) -> None:
        """Make room for a job that is started next. Raises Overloaded."""
        with self._news:
            if self._waiting_bytes and self._waiting_bytes + job.size_bytes > MAX_WAITING_BYTES:
                raise Overloaded("Model is overloaded")
            self._waiting_bytes += job.size_bytes

    def start(self, job: Job) -> None:
        """Let it take its place in the line."""
        with self._news:
            self._jobs.append(job)
            self._news.notify()

    def cancel(self, job: Job) -> None:
        """Nobody waits for it any more: a tower that works for it stops."""
        with self._news:
            job.is_wanted = False
            if self._current is job:
                self._towers.interrupt()

    def close(self) -> None:
        """Drop everything and end the thread."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        while self._thread.is_alive():
            self._towers.interrupt()
            self._thread.join(0.05)

    def _main(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._finish(job)
            finally:
                with self._news:
                    self._current = None
                    self._waiting_bytes -= job.size_bytes

    def _next(self) -> Job | None:
        with self._news:
            while not self._jobs and not self._is_closing:
                self._news.wait()
            self._current = None if self._is_closing else self._jobs.popleft()
            return self._current

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
