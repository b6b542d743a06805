"""The real vLLM behind `border.Core`. Imported only when an engine starts; the one module that calls vLLM's engine."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

from vllm import SamplingParams
from vllm import exceptions as vllm_exceptions
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt, tokens_input
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.renderers.inputs.preprocess import parse_model_prompt
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from mindserve.engine.vllm.border import Adapter, Output, Question
from mindserve.engine.vllm.figures import Figures
from mindserve.engine.vllm.media import collapsed, media_data, media_digests, media_options
from mindserve.engine.vllm.model import ModelFacts
from mindserve.engine.vllm.options import OWN_KEY, check_names, engine_args
from mindserve.errors import EngineFailure, InvalidRequest, MindserveError, ModelLoadError
from mindserve.settings.values import Settings

logger = logging.getLogger(__name__)

_CLIENT_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    getattr(vllm_exceptions, "VLLMClientError", ValueError),
)
_MAX_ERROR_LENGTH = 500
_SHUTDOWN_TIMEOUT_S = 20.0
"""For its processes to end by themselves."""


class VllmCore:
    """Made on any thread, which takes a minute; used on one event loop from `connect` on."""

    def __init__(self, settings: Settings, facts: ModelFacts, figures: Figures) -> None:
        """Raises ConfigError and ModelLoadError."""
        self._is_closed = False
        check_names(settings.engine, {field.name for field in dataclasses.fields(AsyncEngineArgs)})
        wanted = _platform_args() | engine_args(settings, facts)

        def recorder(_config: object, index: int = 0) -> StatLoggerBase:
            return _Recorder(figures, index)

        try:
            args = AsyncEngineArgs(**_within_model(wanted))
            self._llm = AsyncLLM.from_engine_args(
                args, usage_context=UsageContext.OPENAI_API_SERVER, stat_loggers=[recorder]
            )
        except Exception as error:
            if not isinstance(error, (ValueError, TypeError)):  # those tell of a wrong argument
                logger.error("vLLM did not start", exc_info=error)
            raise ModelLoadError(_start_failure(error, settings)) from error

    @property
    def vocab_size(self) -> int:
        """See Core."""
        return self._llm.model_config.get_vocab_size()

    @property
    def max_context_len(self) -> int:
        """See Core."""
        return self._llm.model_config.max_model_len

    @property
    def block_count(self) -> int:
        """One block of each engine is never used."""
        config = self._llm.vllm_config
        return (config.cache_config.num_gpu_blocks or 0) - config.parallel_config.data_parallel_size

    @property
    def block_size(self) -> int:
        """See Core."""
        return self._llm.vllm_config.cache_config.block_size

    @property
    def takes_adapters(self) -> bool:
        """See Core."""
        return self._llm.vllm_config.lora_config is not None

    @property
    def max_adapters(self) -> int:
        """On CPUs requests without an adapter get what is in the batch's last place, which therefore stays empty."""
        lora = self._llm.vllm_config.lora_config
        if lora is None:
            return 0
        return lora.max_loras - 1 if current_platform.is_cpu() else lora.max_cpu_loras or lora.max_loras

    @property
    def is_dead(self) -> bool:
        """See Core."""
        return self._is_closed or self._llm.errored

    async def connect(self) -> None:
        """See Core."""
        await self._llm.get_supported_tasks()

    def ask(self, question: Question, request_id: str) -> AsyncIterator[Output]:
        """See Core."""
        try:
            params = SamplingParams(
                **cast("dict[str, Any]", question.sampling),
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                skip_clone=True,
            )
        except _CLIENT_ERRORS as error:
            raise InvalidRequest(str(error)) from error
        lora = None if question.adapter is None else _lora(question.adapter)
        if question.media:
            return self._ask_with_media(_media_prompt(question), params, request_id, lora)
        return self._llm.generate(tokens_input(question.token_ids), params, request_id, lora_request=lora)

    async def _ask_with_media(
        self, prompt: TokensPrompt, params: SamplingParams, request_id: str, lora: LoRARequest | None
    ) -> AsyncIterator[Output]:
        """vLLM prepares media on threads of its own."""
        (rendered,) = await self._llm.renderer.render_cmpl_async([parse_model_prompt(self._llm.model_config, prompt)])
        async for output in self._llm.generate(rendered, params, request_id, lora_request=lora):
            yield output

    def failure(self, error: Exception) -> MindserveError:
        """See Core."""
        if isinstance(error, MindserveError):
            return error
        if isinstance(error, EngineDeadError) or self.is_dead:
            return EngineFailure("The engine stopped working.")
        if isinstance(error, _CLIENT_ERRORS):
            return InvalidRequest(str(error)[:_MAX_ERROR_LENGTH], param="messages")
        logger.error("vLLM failed at a request", exc_info=error)
        return EngineFailure("The engine failed at the request.")

    async def load_adapter(self, adapter: Adapter) -> None:
        """See Core."""
        if not await self._llm.add_lora(_lora(adapter)):
            raise ModelLoadError(f"{adapter.path}: vLLM did not take the adapter.")

    async def unload_adapter(self, adapter: Adapter) -> None:
        """See Core."""
        await self._llm.remove_lora(adapter.number)

    async def close(self) -> None:
        """The task that reads outputs ends first: it would call this a crash."""
        if (reader := self._llm.output_handler) is not None:
            reader.cancel()
        self._is_closed = True
        await asyncio.to_thread(self._llm.shutdown, _SHUTDOWN_TIMEOUT_S)
        del self._llm  # its finalizer fails once the interpreter is on its way out


class _Recorder(StatLoggerBase):
    """Called with every step of one engine."""

    def __init__(self, figures: Figures, index: int) -> None:
        self._figures = figures
        self._index = index

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """See StatLoggerBase."""
        self._figures.record(engine_idx, scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def _start_failure(error: Exception, settings: Settings) -> str:
    """On one line, with the arguments that the operator chose."""
    given = ", ".join(f"{OWN_KEY}.{name}" for name in settings.engine.vllm)
    return f"vLLM did not start{f' with {given}' if given else ''}: {' '.join(str(error).split())[:_MAX_ERROR_LENGTH]}"


def _platform_args() -> dict[str, object]:
    """Where a seeded request's prompt is read in chunks, vLLM turns its generator back, which those of CPUs refuse: the
    engine would end."""
    return {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}


def _within_model(args: dict[str, object]) -> dict[str, Any]:
    """vLLM refuses a length beyond the model's own, which it alone knows for every family."""
    asked = cast("int", args["max_model_len"])
    unbounded: dict[str, Any] = {name: value for name, value in args.items() if name != "max_model_len"}
    longest = AsyncEngineArgs(**unbounded).create_model_config().max_model_len
    return unbounded | {"max_model_len": min(asked, longest)}


def _media_prompt(question: Question) -> TokensPrompt:
    """Raises InvalidRequest."""
    return TokensPrompt(
        prompt_token_ids=collapsed(question.token_ids, question.media),
        multi_modal_data=dict(media_data(question.media)),
        multi_modal_uuids=dict(media_digests(question.media)),
        mm_processor_kwargs=dict(media_options(question.media)),
    )


def _lora(adapter: Adapter) -> LoRARequest:
    return LoRARequest(lora_name=adapter.key, lora_int_id=adapter.number, lora_path=str(adapter.path))
