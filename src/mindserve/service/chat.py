"""The service: a valid ChatRequest in, a ChatStream out. Everything that can refuse refuses before `open` returns."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindserve.chat.messages import media_parts
from mindserve.chat.prompt import Prompt, PromptBuilder
from mindserve.contract.request import ChatRequest
from mindserve.engine.base import Engine, GenerateRequest
from mindserve.errors import DuplicateRequest, InvalidRequest, MindserveError, ModelNotFound
from mindserve.output.assembler import ChoiceAssembler
from mindserve.service.admission import Admission
from mindserve.service.limits import PromptLimits
from mindserve.service.observer import NullObserver, Observer, Outcome, RequestTimeline
from mindserve.service.sampling import sampling_params
from mindserve.service.stream import ChatStream, Choice, Generation
from mindserve.service.watchdog import Watchdog, timeout_error
from mindserve.settings.values import Settings
from mindserve.text.base import Tokenizer


class ChatService:
    """One model, open for requests. All methods run on one event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine,
        tokenizer: Tokenizer,
        prompts: PromptBuilder,
        observer: Observer | None = None,
    ) -> None:
        """Make it when `engine` has started: its `info` must be valid."""
        self._settings = settings
        self._engine = engine
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._observer = observer or NullObserver()
        self._limits = PromptLimits.of(settings.model, engine.info)
        self._adapters = {adapter.name for adapter in settings.model.adapters}
        self._admission = Admission(settings.server.limits.max_link_num)
        threads = settings.server.tokenizer_threads
        self._text_threads = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._media_threads = ThreadPoolExecutor(threads, thread_name_prefix="media")
        """Apart, so that slow downloads hold up no plain prompt."""
        self._requests: dict[str, ChatStream | None] = {}
        """By request id, from arrival to close; None until the engine has it."""
        self._stopped_early: set[str] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def engine(self) -> Engine:
        """The engine, for health checks and statistics."""
        return self._engine

    @property
    def admission(self) -> Admission:
        """How many requests run and wait."""
        return self._admission

    @property
    def adapters(self) -> frozenset[str]:
        """Names of the adapters that requests may use as `model`."""
        return frozenset(self._adapters)

    async def open(self, request: ChatRequest, *, request_id: str) -> ChatStream:
        """Admit, build the prompt, submit. Returns a stream whose `close` the caller owes.

        Raises InvalidRequest, ModelNotFound, PromptTooLong, Overloaded, DuplicateRequest, NotReady, EngineFailure or
        GenerationTimeout, all before the first token.
        """
        if request_id in self._requests:
            raise DuplicateRequest("Failed to enqueue inferRequest. Runtime request has been used before.")
        timeline = RequestTimeline(request_id=request_id)
        self._requests[request_id] = None
        self._is_idle.clear()
        self._observer.request_arrived(timeline)
        try:
            return await self._open_in_time(request, timeline)
        except BaseException as error:
            timeline.outcome = _outcome_of(error)
            self._forget(timeline)
            raise

    def stop(self, request_id: str) -> bool:
        """End a request with what it has (stopInfer). False: no such request."""
        if request_id not in self._requests:
            return False
        stream = self._requests[request_id]
        if stream is None:
            self._stopped_early.add(request_id)
            self._admission.let_in(request_id)
        else:
            stream.stop()
        return True

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make an adapter available as a model name. Raises ModelLoadError or InvalidRequest."""
        if name in self._adapters or name == self._settings.model.name:
            raise InvalidRequest(f"The name {name} is in use already.", param="lora_name")
        await self._engine.load_adapter(name, path)
        try:
            await asyncio.to_thread(self._prompts.add_adapter, name, path)
        except MindserveError:
            await self._engine.unload_adapter(name)
            raise
        self._adapters.add(name)

    async def unload_adapter(self, name: str) -> None:
        """Take it away; running requests finish with it. Raises ModelNotFound."""
        if name not in self._adapters:
            raise ModelNotFound("Model not found", param="lora_name")
        self._adapters.discard(name)
        self._prompts.remove_adapter(name)
        await self._engine.unload_adapter(name)

    def stop_admitting(self) -> None:
        """Refuse new requests and those in line (503); running ones go on."""
        self._admission.close()

    async def close(self, *, drain_timeout_s: float = 0.0) -> None:
        """Stop admitting, give running requests time to finish, then end the others with what they have."""
        self.stop_admitting()
        try:
            await asyncio.wait_for(self._is_idle.wait(), drain_timeout_s)
        except TimeoutError:
            for request_id in list(self._requests):
                self.stop(request_id)
        for threads in (self._text_threads, self._media_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _open_in_time(self, request: ChatRequest, timeline: RequestTimeline) -> ChatStream:
        limits = self._settings.server.limits
        deadline = asyncio.get_running_loop().time() + limits.e2e_timeout_s
        scope = asyncio.timeout_at(deadline)
        try:
            async with scope:
                await self._admission.enter(timeline.request_id)
                try:
                    timeline.admitted_s = time.perf_counter()
                    prompt = await self._build(request)
                    return self._submit(request, prompt, timeline=timeline, deadline=deadline)
                except BaseException:
                    self._admission.leave()
                    raise
        except TimeoutError:
            if scope.expired():
                raise timeout_error("e2eTimeout") from None
            raise

    async def _build(self, request: ChatRequest) -> Prompt:
        threads = self._media_threads if media_parts(request.messages) else self._text_threads
        return await asyncio.get_running_loop().run_in_executor(threads, self._prompts.build, request)

    def _submit(
        self, request: ChatRequest, prompt: Prompt, *, timeline: RequestTimeline, deadline: float
    ) -> ChatStream:
        job = self._job(request, prompt, request_id=timeline.request_id)
        choices = tuple(self._choice(prompt, index) for index in range(job.n))
        timeline.prompt_tokens = len(job.prompt_token_ids)
        timeline.submitted_s = time.perf_counter()
        generation = Generation(
            tokens=self._engine.submit(job),
            choices=choices,
            watchdog=Watchdog(token_timeout_s=self._settings.server.limits.token_timeout_s, e2e_deadline=deadline),
            timeline=timeline,
            merges_hypotheses=job.use_beam_search,
        )
        stream = ChatStream(generation, on_close=self._closed)
        self._requests[timeline.request_id] = stream
        if timeline.request_id in self._stopped_early:
            stream.stop()
        return stream

    def _job(self, request: ChatRequest, prompt: Prompt, *, request_id: str) -> GenerateRequest:
        token_ids = self._limits.fit(list(prompt.token_ids), has_media=bool(prompt.media))
        room = min(self._settings.scheduler.max_iter_times, self._limits.room(len(token_ids)))
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=sampling_params(request, self._engine.info, max_tokens=room),
            n=request.sequences,
            use_beam_search=request.use_beam_search,
            adapter=self._adapter(request.model),
            media=prompt.media,
            mask=prompt.mask,
        )

    def _adapter(self, model: str) -> str | None:
        return None if model == self._settings.model.name else model

    def _choice(self, prompt: Prompt, index: int) -> Choice:
        return Choice(assembler=ChoiceAssembler(prompt.plan, tokenizer=self._tokenizer, index=index))

    def _closed(self, stream: ChatStream) -> None:
        self._admission.leave()
        self._forget(stream.timeline)

    def _forget(self, timeline: RequestTimeline) -> None:
        timeline.finished_s = time.perf_counter()
        del self._requests[timeline.request_id]
        self._stopped_early.discard(timeline.request_id)
        if not self._requests:
            self._is_idle.set()
        self._observer.request_finished(timeline)


def _outcome_of(error: BaseException) -> Outcome:
    """What an exception before the first token means."""
    if isinstance(error, MindserveError):
        return Outcome.REFUSED
    return Outcome.ABANDONED if isinstance(error, asyncio.CancelledError) else Outcome.FAILED
