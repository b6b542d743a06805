"""From the media parts of one request to features: the only door of this room.

What costs nothing is checked for every part before anything is fetched. Then parts are fetched together, decoded in a
few worker threads, and remembered by their content.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mindserve.contract.failure import failure
from mindserve.contract.parts import MEDIA_RULES, NOT_TAKEN, TOO_LARGE
from mindserve.contract.request import MediaPart
from mindserve.errors import InvalidRequest, MindserveError
from mindserve.media.content import Content, SizeBudget, chunks_of
from mindserve.media.fetch import Fetcher
from mindserve.media.inline import decode_base64
from mindserve.media.limits import MEGABYTE, MediaLimits
from mindserve.media.local import open_local
from mindserve.media.policy import AddressPolicy
from mindserve.media.prepared import MediaCache, PreparedMedia
from mindserve.media.processors import MEDIA_KINDS, MediaProcessors, media_digest
from mindserve.media.source import InlineSource, LocalSource, RemoteSource, Source, find_source

ALLOWED_DOMAINS_VARIABLE: Final = "ALLOWED_MEDIA_DOMAINS_ENV"
DOWNLOAD_TIMEOUT: Final = "Download timed out after {seconds:.1f} seconds."
EXCEEDS: Final = "The size of {kind} exceeds the limit of {limit}.00 MB."
_NICENESS: Final = 10
WHICH_PART: Final = "Media part {number} of {count} ({kind}): {reason}"


@dataclass(slots=True, kw_only=True)
class _RequestBounds:
    """What all parts of one request share."""

    policy: AddressPolicy
    sizes: SizeBudget
    deadline: float
    """Time of the event loop at which downloads end."""
    tokens: int = 0


def allowed_domains() -> str:
    """The operator's list as it is now."""
    return os.environ.get(ALLOWED_DOMAINS_VARIABLE, "")


class MediaLoader:
    """Fetches, decodes and prepares media for one model. Belongs to one event loop."""

    def __init__(
        self,
        processors: MediaProcessors,
        media_dir: Path,
        *,
        limits: MediaLimits | None = None,
        fetcher: Fetcher | None = None,
        domains: Callable[[], str] = allowed_domains,
    ) -> None:
        """`domains` is asked once per request."""
        self._processors = processors
        self._media_dir = media_dir
        self._limits = limits or MediaLimits()
        self._fetcher = fetcher or Fetcher(self._limits)
        self._domains = domains
        self._cache = MediaCache(self._limits.cache_bytes)
        self._places = asyncio.Semaphore(self._limits.max_parts_at_once)
        self._pool = ThreadPoolExecutor(self._limits.decode_threads, thread_name_prefix="media", initializer=_give_way)

    async def load(self, parts: Sequence[MediaPart]) -> list[PreparedMedia]:
        """Features of all `parts`, in their order. Raises InvalidRequest, PromptTooLong and Overloaded.

        The message of an error says which part it is about. Cancelling leaves neither connections nor files behind.
        """
        bounds = self._bounds()
        sources: list[Source] = []
        for number, part in enumerate(parts, start=1):
            with _naming(part, number, len(parts)):
                sources.append(self._find(part, bounds.policy))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._load(part, source, (number, len(parts)), bounds))
                    for number, (part, source) in enumerate(zip(parts, sources, strict=True), start=1)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    def close(self) -> None:
        """End the worker threads once they are idle."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _bounds(self) -> _RequestBounds:
        return _RequestBounds(
            policy=AddressPolicy.parse(self._domains()),
            sizes=SizeBudget(self._limits.max_request_bytes),
            deadline=asyncio.get_running_loop().time() + self._limits.download_timeout_s,
        )

    def _find(self, part: MediaPart, policy: AddressPolicy) -> Source:
        """The checks that cost nothing."""
        if MEDIA_KINDS[part.kind] not in self._processors.kinds:
            raise failure(NOT_TAKEN, param="messages", kind=part.kind)
        source = find_source(part)
        if isinstance(source, RemoteSource):
            policy.check_url(source.url, part.kind)
        return source

    async def _load(
        self, part: MediaPart, source: Source, place: tuple[int, int], bounds: _RequestBounds
    ) -> PreparedMedia:
        with _naming(part, *place):
            async with self._places:
                content = _content(part, source, bounds.sizes)
                media = await self._prepare(content, part, source, bounds)
            bounds.tokens += media.tokens
            self._processors.check_tokens(bounds.tokens)
            return media

    async def _prepare(
        self, content: Content, part: MediaPart, source: Source, bounds: _RequestBounds
    ) -> PreparedMedia:
        """Closes `content` in any case, but never under a worker's hands."""
        try:
            if isinstance(source, RemoteSource):
                await self._download(content, part, source, bounds)
            job = self._pool.submit(self._work, content, part, source)
        except BaseException:
            content.close()
            raise
        job.add_done_callback(lambda _: content.close())
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            content.abandon()
            raise

    async def _download(self, content: Content, part: MediaPart, source: RemoteSource, bounds: _RequestBounds) -> None:
        try:
            async with asyncio.timeout_at(bounds.deadline):
                await self._fetcher.fetch(source.url, part.kind, bounds.policy, content)
        except TimeoutError as error:
            text = DOWNLOAD_TIMEOUT.format(seconds=self._limits.download_timeout_s)
            raise InvalidRequest(text, param="messages") from error

    def _work(self, content: Content, part: MediaPart, source: Source) -> PreparedMedia:
        """In a worker thread: read what is not downloaded, then decode unless the same content came before."""
        if isinstance(source, InlineSource):
            content.write_all(decode_base64(source.payload, part.kind))
        elif isinstance(source, LocalSource):
            with open_local(source.path, self._media_dir) as file:
                content.announce(os.fstat(file.fileno()).st_size)
                content.write_all(chunks_of(file))
        kind = MEDIA_KINDS[part.kind]
        media = self._cache.find(media_digest(content, kind))
        if media is None:
            media = self._processors.prepare(content, kind, self._limits)
            self._cache.keep(media)
        return media


def _content(part: MediaPart, source: Source, sizes: SizeBudget) -> Content:
    """Limits and texts by where it comes from (contract: request.md 12.2)."""
    rule = MEDIA_RULES[part.kind]
    limit = rule.max_megabytes
    if isinstance(source, RemoteSource):
        too_large = EXCEEDS.format(kind=part.kind, limit=limit)
    else:
        what = rule.name if isinstance(source, InlineSource) else part.kind
        too_large = TOO_LARGE.format(what=what, limit=limit)
    return Content(max_bytes=limit * MEGABYTE, too_large=too_large, budget=sizes)


def _give_way() -> None:
    """Decoding yields the processor to the model's threads; the decoders' own threads inherit it."""
    if sys.platform != "linux":  # elsewhere priorities belong to processes
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


@contextmanager
def _naming(part: MediaPart, number: int, count: int) -> Generator[None]:
    """Errors say which part they are about."""
    try:
        yield
    except MindserveError as error:
        error.message = WHICH_PART.format(number=number, count=count, kind=part.kind, reason=error.message)
        error.args = (error.message,)
        raise
