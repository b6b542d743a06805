"""From settings to a server's state: tokenizer, engine, prompts, service, metrics."""

import asyncio
from dataclasses import dataclass

from mindserve.chat.media import PlacedMedia
from mindserve.chat.prompt import PromptBuilder
from mindserve.cli.engines import build_engine
from mindserve.cli.operator import Report
from mindserve.contract.context import ValidationContext
from mindserve.contract.request import PartKind
from mindserve.engine.base import Engine, MediaKind, ModelInfo
from mindserve.errors import ModelLoadError
from mindserve.media import MediaLoader, load_processors
from mindserve.server.observing import EngineCollector, RateCollector, RequestObserver
from mindserve.server.state import ModelNames, ServerState
from mindserve.service import ChatService
from mindserve.settings.models import for_model_type
from mindserve.settings.values import ApiMode, EngineKind, Settings
from mindserve.telemetry import Metrics
from mindserve.text.base import Tokenizer
from mindserve.text.bytes_tokenizer import ByteTokenizer
from mindserve.text.load import load_tokenizer

PARTS = {
    MediaKind.IMAGE: (PartKind.IMAGE_URL,),
    MediaKind.VIDEO: (PartKind.VIDEO_URL,),
    MediaKind.AUDIO: (PartKind.AUDIO_URL, PartKind.INPUT_AUDIO),
}
"""Content parts that a model takes which understands a kind of media."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A loaded model with everything above it. Whoever made it closes it."""

    state: ServerState
    engine: Engine
    media: MediaLoader | None = None

    async def close(self) -> None:
        """End the engine, and the threads that decode media."""
        await self.engine.close()
        if self.media is not None:
            self.media.close()


async def compose(settings: Settings, *, report: Report) -> Composition:
    """Load the model and build the house on it. Raises ModelLoadError, ConfigError."""
    tokenizer = await _tokenizer(settings)
    engine = build_engine(settings, report)
    await engine.start()
    try:
        for adapter in settings.model.adapters:
            await engine.load_adapter(adapter.name, adapter.path)
        settings = for_model_type(settings, engine.info.model_type)
        media = _media_loader(settings, engine.info)
        prompts = _prompts(settings, engine.info, tokenizer, media)
        report("preparing constrained decoding", 0.0)
        await asyncio.to_thread(prompts.warm_up)
        report("preparing constrained decoding", 1.0)
        state = _state(settings, engine, tokenizer, prompts)
    except BaseException:
        await engine.close()
        raise
    return Composition(state=state, engine=engine, media=media)


def _media_loader(settings: Settings, info: ModelInfo) -> MediaLoader | None:
    """None for models that take text only. Raises ModelLoadError where it is not said how media are prepared."""
    if not info.media:
        return None
    model = settings.model
    room = min(model.max_input_len, info.max_context_len - 1)
    is_prepared_by_engine = settings.engine.kind is EngineKind.VLLM
    processors = load_processors(model.path, max_tokens=room, keeps_decoded=is_prepared_by_engine)
    if not info.media <= processors.kinds:
        raise ModelLoadError(f"{model.path}: preprocessor_config.json is missing or for another kind of model")
    return MediaLoader(processors, model.media_dir)


def _prompts(settings: Settings, info: ModelInfo, tokenizer: Tokenizer, media: MediaLoader | None) -> PromptBuilder:
    return PromptBuilder(
        tokenizer,
        settings.model,
        info,
        media=None if media is None else PlacedMedia(media, info.media_token_ids, asyncio.get_running_loop()),
        reports_full_text=settings.server.full_text,
    )


async def _tokenizer(settings: Settings) -> Tokenizer:
    """A scripted engine works without any file: then every byte is a token."""
    if settings.engine.kind is EngineKind.SCRIPTED:
        return ByteTokenizer()
    return await asyncio.to_thread(load_tokenizer, settings.model.path)


def _state(settings: Settings, engine: Engine, tokenizer: Tokenizer, prompts: PromptBuilder) -> ServerState:
    metrics = Metrics(model_name=settings.model.name)
    service = ChatService(
        settings, engine=engine, tokenizer=tokenizer, prompts=prompts, observer=RequestObserver(metrics)
    )
    metrics.registry.register(EngineCollector(service, model_name=settings.model.name))
    metrics.registry.register(RateCollector(metrics))
    return ServerState(
        settings=settings,
        service=service,
        tokenizer=tokenizer,
        contexts={mode: _context(settings, engine.info, service, tokenizer, mode) for mode in ApiMode},
        metrics=metrics,
        mode=settings.server.api_mode,
    )


def _context(
    settings: Settings, info: ModelInfo, service: ChatService, tokenizer: Tokenizer, mode: ApiMode
) -> ValidationContext:
    return ValidationContext(
        models=ModelNames(settings.model.name, service),
        mode=mode,
        model_type=info.model_type,
        plugin_types=settings.model.plugin_types,
        media=frozenset(part for kind in info.media for part in PARTS[kind]),
        allows_chat_template=settings.model.allow_request_chat_template,
        reserved_template_keys=frozenset(tokenizer.special_tokens),
        max_n=settings.server.limits.max_n,
        max_json_depth=settings.server.limits.max_json_depth,
    )
