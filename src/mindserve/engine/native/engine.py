"""The embedded engine behind the `Engine` protocol."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter

from mindserve.engine.base import EngineStats, GenerateRequest, ModelInfo
from mindserve.engine.checks import loaded, refuse_too_long, refuse_unknown
from mindserve.engine.native.adapters.registry import AdapterRegistry
from mindserve.engine.native.encoder import Job, MediaEncoder, Outcome
from mindserve.engine.native.outbox import Events
from mindserve.engine.native.step import BLOCK_SIZE, Runner
from mindserve.engine.native.stepper import Stepper
from mindserve.engine.native.stream import Stream
from mindserve.engine.native.worker import Worker
from mindserve.errors import NotReady
from mindserve.settings.values import Settings


class NativeEngine:
    """Refuses what cannot be answered, numbers the rest and hands it to the worker; brings events to their streams.

    Unhealthy after several failed steps in a row (until one succeeds) or once its thread has died.
    """

    def __init__(self, settings: Settings, *, load: Callable[[Settings], tuple[Runner, ModelInfo]]) -> None:
        self._settings = settings
        self._load = load
        self._worker: Worker | None = None
        self._encoder: MediaEncoder | None = None
        """Where the model takes media."""
        self._info: ModelInfo | None = None
        self._context_len = 0
        self._streams: dict[int, Stream] = {}
        self._numbers = count()
        self._adapters = AdapterRegistry(self._apply)

    @property
    def info(self) -> ModelInfo:
        """Facts about the model. Raises NotReady before `start`."""
        return loaded(self._info)

    @property
    def is_healthy(self) -> bool:
        """Whether requests can be answered."""
        return self._info is not None and self._worker is not None and self._worker.is_healthy

    async def start(self) -> None:
        """Load the model on the engine's own thread. Raises ModelLoadError."""
        self._worker = Worker(self._load_stepper, self._deliver, asyncio.get_running_loop())
        self._info = await self._worker.start()

    def submit(self, request: GenerateRequest) -> Stream:
        """Queue a request. Raises NotReady, InvalidRequest, PromptTooLong or Overloaded."""
        if self._worker is None:
            raise NotReady("The engine is not running.")
        request = self._adapters.resolve(request)
        refuse_unknown(request, self.info)
        refuse_too_long(len(request.prompt_token_ids), self.info, self._settings.model, context_len=self._context_len)
        worker, number, arrival_s = self._worker, next(self._numbers), perf_counter()
        encoder, job = self._encoder, self._media_job(worker, number, request)

        def cancel(index: int | None) -> None:
            if encoder is not None and job is not None and index is None:
                encoder.cancel(job)
            worker.post(lambda stepper: stepper.cancel(number, index))

        if not worker.post(lambda stepper: stepper.add(number, request, arrival_s=arrival_s)):
            raise NotReady("The engine stopped working.")
        if encoder is not None and job is not None:
            encoder.start(job)
        self._adapters.started(number, request)
        self._streams[number] = Stream(request.n, cancel)
        return self._streams[number]

    def _media_job(self, worker: Worker, number: int, request: GenerateRequest) -> Job | None:
        """What the towers have to do for a request; None without media. Raises Overloaded."""
        if not request.media or self._encoder is None:
            return None

        def provide(outcome: Outcome) -> None:
            worker.post(lambda stepper: stepper.provide_media(number, outcome))

        job = Job(len(request.prompt_token_ids), request.media, provide)
        self._encoder.reserve(job)
        return job

    def stats(self) -> EngineStats:
        """Counters as of the last step."""
        return EngineStats() if self._worker is None else self._worker.stats

    async def load_adapter(self, name: str, path: Path) -> None:
        """Running requests go on meanwhile. Raises ModelLoadError or InvalidRequest."""
        await self._adapters.load(name, path)

    async def unload_adapter(self, name: str) -> None:
        """Refuse new requests for it; running ones finish with it. Raises InvalidRequest."""
        await self._adapters.unload(name)

    async def close(self) -> None:
        """Cancel what runs and free everything. Idempotent."""
        worker, self._worker = self._worker, None
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            await asyncio.to_thread(encoder.close)
        await self._adapters.close()
        if worker is not None:
            await worker.close()

    def _load_stepper(self) -> tuple[Runner, ModelInfo, Stepper]:
        runner, info = self._load(self._settings)
        in_blocks = runner.block_count * BLOCK_SIZE
        self._context_len = min(info.max_context_len, self._settings.model.max_seq_len, in_blocks)
        self._adapters.of_model = runner.adapters
        if runner.towers is not None:
            self._encoder = MediaEncoder(runner.towers)
        stepper = Stepper(runner, info, self._settings.scheduler, context_len=self._context_len)
        return runner, info, stepper

    def _apply(self, change: Callable[[], None]) -> None:
        """Have an adapter change done between two steps."""
        if self._worker is not None:
            self._worker.post(lambda stepper: change())

    def _deliver(self, events: Events) -> None:
        for number, of_request in events.items():
            stream = self._streams[number]
            stream.put(of_request)
            if stream.is_complete:
                del self._streams[number]
                self._adapters.ended(number)
