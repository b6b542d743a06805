"""vLLM behind the `Engine` protocol: token ids go in, token events come out, everything between is its business."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

from mindserve.engine.base import EngineStats, GenerateRequest, ModelInfo
from mindserve.engine.checks import loaded, refuse_too_long, refuse_unknown
from mindserve.engine.vllm.adapters import Adapters
from mindserve.engine.vllm.beams import BeamRun
from mindserve.engine.vllm.border import Adapter, Core, Output, Question
from mindserve.engine.vllm.figures import Figures
from mindserve.engine.vllm.model import ModelFacts, read_facts
from mindserve.engine.vllm.options import prepare_environment
from mindserve.engine.vllm.sampling import Frame, sequence_fields
from mindserve.engine.vllm.sequence import Sequence
from mindserve.engine.vllm.stream import Steps, Stream
from mindserve.errors import EngineFailure, ModelLoadError, NotReady
from mindserve.settings.values import Settings

NOT_INSTALLED = (
    "The engine vllm (BackendConfig.backendName, --engine) is not installed: pip install 'mindserve[vllm]' "
    "(another build of it for CPUs or NPUs)."
)
WRONG_VERSION = "The installed vLLM is not one that mindserve knows (0.23 and later): {error}"

_PATIENCE_S = 5.0
"""For vLLM to hear of what is cancelled at the end."""

Open = Callable[[Settings, ModelFacts, Figures], Core]
"""Starts vLLM; blocks for a minute."""


def open_vllm(settings: Settings, facts: ModelFacts, figures: Figures) -> Core:
    """Raises ModelLoadError and ConfigError."""
    if importlib.util.find_spec("vllm") is None:
        raise ModelLoadError(NOT_INSTALLED)
    prepare_environment(settings)
    try:
        from mindserve.engine.vllm.library import VllmCore  # noqa: PLC0415 - heavy, and not always installed
    except ImportError as error:
        raise ModelLoadError(WRONG_VERSION.format(error=error)) from error
    return VllmCore(settings, facts, figures)


class VllmEngine:
    """One vLLM with all its processes. Every sequence is a request of its own to it, so that each can be cancelled;
    the prompt that they share is found in its prefix cache."""

    def __init__(self, settings: Settings, *, open_core: Open = open_vllm) -> None:
        self._settings = settings
        self._open_core = open_core
        self._figures = Figures()
        self._steps = Steps()
        self._core: Core | None = None
        self._adapters: Adapters | None = None
        self._info: ModelInfo | None = None
        self._streams: set[Stream] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> ModelInfo:
        """Facts about the model. Raises NotReady before `start`."""
        return loaded(self._info)

    @property
    def is_healthy(self) -> bool:
        """False for good once one of vLLM's processes has died."""
        return self._core is not None and not self._core.is_dead

    async def start(self) -> None:
        """Load on another thread. Raises ModelLoadError and ConfigError."""
        facts = await asyncio.to_thread(read_facts, self._settings.model)
        core = await asyncio.to_thread(self._open_core, self._settings, facts, self._figures)
        try:
            await core.connect()
        except Exception as error:
            await core.close()
            raise ModelLoadError(f"vLLM ended at its start: {error}") from error
        self._core, self._adapters = core, Adapters(core)
        self._info = ModelInfo(
            model_type=facts.model_type,
            vocab_size=core.vocab_size,
            max_context_len=core.max_context_len,
            eos_token_ids=facts.eos_token_ids,
            block_size=core.block_size,
            default_top_k=facts.default_top_k,
            media_token_ids=facts.media_token_ids,
        )

    def submit(self, request: GenerateRequest) -> Stream:
        """Queue a request. Raises NotReady, InvalidRequest or PromptTooLong."""
        core, adapters = self._running()
        adapter = adapters.find(request.adapter)
        info, length = self.info, len(request.prompt_token_ids)
        refuse_unknown(request, info)
        refuse_too_long(length, info, self._settings.model, context_len=info.max_context_len)
        room = min(info.max_context_len - length, self._settings.scheduler.max_iter_times)
        frame = Frame.of(
            request,
            max_new_tokens=min(room, request.sampling.max_tokens),
            eos_token_ids=info.eos_token_ids,
        )
        sequences = [Sequence(index, request.sampling, frame) for index in range(request.n)]
        stream = Stream(sequences, self._steps)
        if request.use_beam_search:
            run = BeamRun(request, frame, core=core, adapter=adapter)
            self._start(stream, sequences, self._search(run, stream, core), adapter)
        else:
            self._ask(stream, request, frame, adapter)
        return stream

    def stats(self) -> EngineStats:
        """Counters as of the last step."""
        return EngineStats() if self._core is None else self._figures.stats(self._core.block_count)

    async def load_adapter(self, name: str, path: Path) -> None:
        """Running requests go on meanwhile. Raises ModelLoadError or InvalidRequest."""
        _, adapters = self._running()
        await adapters.load(name, path)

    async def unload_adapter(self, name: str) -> None:
        """Refuse new requests for it; running ones finish with it. Raises InvalidRequest."""
        _, adapters = self._running()
        adapters.unload(name)

    async def close(self) -> None:
        """Cancel what runs and end all of vLLM's processes, of a dead engine too. Idempotent."""
        core, self._core = self._core, None
        adapters, self._adapters = self._adapters, None
        for stream in list(self._streams):
            stream.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE_S)
        if adapters is not None:
            await adapters.close()
        if core is not None:
            await core.close()

    def _running(self) -> tuple[Core, Adapters]:
        if self._core is None or self._adapters is None:
            raise NotReady("The engine is not running.")
        if self._core.is_dead:
            raise NotReady("The engine stopped working.")
        return self._core, self._adapters

    def _ask(self, stream: Stream, request: GenerateRequest, frame: Frame, adapter: Adapter | None) -> None:
        """All of them or none: what vLLM refuses is refused before anything starts."""
        core, _ = self._running()
        outputs = [
            core.ask(
                Question(
                    token_ids=list(request.prompt_token_ids),
                    sampling=sequence_fields(request, sequence.index, frame),
                    media=request.media,
                    adapter=adapter,
                ),
                f"{request.request_id}-{sequence.index}",
            )
            for sequence in stream.sequences
        ]
        for sequence, of_sequence in zip(stream.sequences, outputs, strict=True):
            self._start(stream, [sequence], self._read(of_sequence, sequence, stream, core), adapter)

    def _start(
        self,
        stream: Stream,
        sequences: list[Sequence],
        reading: Coroutine[None, None, None],
        adapter: Adapter | None,
    ) -> None:
        """Have some of a stream's sequences read by a task of their own."""
        _, adapters = self._running()
        task = asyncio.get_running_loop().create_task(reading)
        for sequence in sequences:
            sequence.task = task
        self._streams.add(stream)
        self._tasks.add(task)
        adapters.started(adapter)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            adapters.ended(adapter)
            if all(sequence.is_over for sequence in stream.sequences):
                self._streams.discard(stream)

        task.add_done_callback(ended)

    async def _read(self, outputs: AsyncIterator[Output], sequence: Sequence, stream: Stream, core: Core) -> None:
        """One sequence, to its end; cancelled where nobody wants it any more, which aborts it in vLLM."""
        try:
            async for output in outputs:
                self._steps.post(stream, sequence, sequence.read(output))
            stream.fail(EngineFailure("The engine ended without an answer."), sequence.index)
        except Exception as error:
            stream.fail(core.failure(error), sequence.index)

    async def _search(self, run: BeamRun, stream: Stream, core: Core) -> None:
        try:
            await run.run(stream, self._steps)
        except Exception as error:
            stream.fail(core.failure(error))
