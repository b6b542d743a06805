"""A MindIE config.json becomes Settings. A file that starts MindIE starts this server, unchanged.

`settings.table` says what each key may be; here are the cross checks and where each value goes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from mindserve.errors import ConfigError
from mindserve.settings import table
from mindserve.settings.adapters import LEGACY_FILE, legacy_adapters, listed_adapters
from mindserve.settings.engines import engine_kind, name_warning, read_engine
from mindserve.settings.keys import Effect, Notes, Section, shown
from mindserve.settings.models import read_models
from mindserve.settings.planes import read_planes
from mindserve.settings.values import (
    AdapterSettings,
    ApiMode,
    EngineKind,
    Limits,
    ModelSettings,
    SchedulerSettings,
    ServerSettings,
    Settings,
    Truncation,
)

MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_NAMES = 40
"""Keys that one warning names."""
DRAFT_TOKENS = {"la": ("level", 4), "memory_decoding": ("decoding_length", 8)}
"""Speculative plugins: which of their parameters bounds a draft, and its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sections:
    """The file's objects, checked key by key."""

    top: Section
    log: Section
    server: Section
    backend: Section
    deploy: Section
    adapters: list[Section]
    model: Section
    schedule: Section
    own: Section
    notes: Notes
    home: Path


def load(file: Path, *, home: Path | None = None, kind: EngineKind | None = None) -> Settings:
    """Read and check a config.json. `home` is what its relative paths start from; `kind` wins over its engine.

    Raises ConfigError, whose `param` is the path of the key at fault.
    """
    home = home or home_of(file)
    return from_json(read_object(file), home=home, file=file, kind=kind)


def home_of(file: Path) -> Path:
    """`<home>/conf/config.json` is MindIE's layout; elsewhere the file's own directory is home."""
    folder = file.absolute().parent
    return folder.parent if folder.name == "conf" else folder


def read_object(file: Path) -> dict[str, object]:
    """The JSON object in `file`. Raises ConfigError."""
    try:
        size = file.stat().st_size
        if not 0 < size <= MAX_FILE_BYTES:
            raise ConfigError(f"{file} has {size} bytes; a configuration has 1 to {MAX_FILE_BYTES}.")
        document: object = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as e:
        raise ConfigError(f"{file} cannot be read: {e.strerror}.") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{file} is not valid JSON: {e}.") from e
    if not isinstance(document, dict):
        raise ConfigError(f"{file} must hold a JSON object.")
    return cast(dict[str, object], document)


def from_json(
    document: Mapping[str, object], *, home: Path, file: Path | None = None, kind: EngineKind | None = None
) -> Settings:
    """Settings of a parsed config.json. Raises ConfigError."""
    sections = _read_sections(document, home)
    _check_across(sections)
    backend, model, own = sections.backend, sections.model, sections.own
    kind = kind or engine_kind(backend, model)
    log_level = sections.log.text("dynamicLogLevel").lower() or own.text("logLevel")
    return Settings(
        model=_model(sections),
        server=_server(sections, file),
        scheduler=_scheduler(sections),
        engine=read_engine(kind, backend=backend, model=model, own=own, home=home),
        log_level=_known_level(sections.log, log_level),
        warnings=tuple(_warnings(sections, file, kind)),
        raw_models=read_models(model, home=home),
    )


def api_mode(document: Mapping[str, object]) -> ApiMode:
    """The mode that a parsed config.json asks for; all that is read when the file changes under a running server."""
    server = Section(document, path="", keys=table.TOP, notes=Notes()).child("ServerConfig", table.SERVER)
    return ApiMode.VLLM if server.text("openAiSupport") == "vllm" else ApiMode.NATIVE


def _read_sections(document: Mapping[str, object], home: Path) -> _Sections:
    notes = Notes()
    top = Section(document, path="", keys=table.TOP, notes=notes)
    backend = top.child("BackendConfig", table.BACKEND)
    deploy = backend.child("ModelDeployConfig", table.MODEL_DEPLOY)
    count = len(cast(list[object], deploy.value("ModelConfig")))
    if count != 1:
        path = deploy.path_of("ModelConfig")
        raise ConfigError(f"{path} must hold exactly one model, got {count}.", param=path)
    return _Sections(
        top=top,
        log=top.child("LogConfig", table.LOG),
        server=top.child("ServerConfig", table.SERVER),
        backend=backend,
        deploy=deploy,
        adapters=deploy.children("LoraModules", table.LORA_MODULE),
        model=deploy.children("ModelConfig", table.MODEL)[0],
        schedule=backend.child("ScheduleConfig", table.SCHEDULE),
        own=top.child("MindserveConfig", table.MINDSERVE),
        notes=notes,
        home=home,
    )


def _check_across(sections: _Sections) -> None:
    schedule, deploy = sections.schedule, sections.deploy
    max_batch = schedule.integer("maxBatchSize")
    if schedule.gives("maxN") and schedule.integer("maxN") > max_batch:
        raise schedule.refuse("maxN", f"must be at most maxBatchSize ({max_batch})")
    if schedule.gives("maxPreemptCount") and schedule.integer("maxPreemptCount") > max_batch:
        raise schedule.refuse("maxPreemptCount", f"must be at most maxBatchSize ({max_batch})")
    longest = deploy.integer("maxInputTokenLen")
    is_chunked = schedule.text("templateType") == "Mix"
    gives_both = schedule.gives("maxPrefillTokens") and deploy.gives("maxInputTokenLen")
    if gives_both and not is_chunked and schedule.integer("maxPrefillTokens") < longest:
        raise schedule.refuse("maxPrefillTokens", f"must be at least maxInputTokenLen ({longest})")
    if sections.model.integer("npuMemSize") == 0:
        raise sections.model.refuse("npuMemSize", "must be -1 or positive")


def _model(sections: _Sections) -> ModelSettings:
    deploy, model, own, home = sections.deploy, sections.model, sections.own, sections.home
    max_seq_len = deploy.integer("maxSeqLen")
    return ModelSettings(
        name=model.text("modelName"),
        path=home / model.text("modelWeightPath"),
        max_seq_len=max_seq_len,
        max_input_len=min(deploy.integer("maxInputTokenLen"), max(max_seq_len - 1, 1)),
        truncation=_truncation(deploy.value("truncation")),
        trust_remote_code=model.flag("trustRemoteCode"),
        max_loras=deploy.integer("maxLoras"),
        max_lora_rank=deploy.integer("maxLoraRank"),
        adapters=_adapters(sections),
        plugin_types=_plugin_types(_plugin_params(model)),
        allow_request_chat_template=own.flag("allowRequestChatTemplate"),
        media_dir=home / own.text("mediaDir"),
    )


def _adapters(sections: _Sections) -> tuple[AdapterSettings, ...]:
    name, weights = sections.model.text("modelName"), sections.home / sections.model.text("modelWeightPath")
    legacy = (weights if weights.is_dir() else weights.parent) / LEGACY_FILE
    if sections.deploy.gives("LoraModules") or not legacy.is_file():
        return listed_adapters(sections.adapters, home=sections.home, model_name=name)
    return legacy_adapters(read_object(legacy), file=legacy, model_name=name)


def _truncation(value: object) -> Truncation:
    """MindIE takes integers and booleans; every other type counts as 0."""
    if value is True or value == -1:
        return Truncation.CUT_RIGHT
    return Truncation.CUT_LEFT if value == 1 else Truncation.REJECT


def _plugin_params(model: Section) -> Mapping[str, object]:
    value = model.value("plugin_params")
    if isinstance(value, str):
        try:
            value = cast(object, json.loads(value or "{}"))
        except (ValueError, RecursionError):
            raise model.refuse("plugin_params", "must be a JSON object, or the text of one") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise model.refuse("plugin_params", "must be a JSON object, or the text of one")
    return cast(Mapping[str, object], value)


def _plugin_types(params: Mapping[str, object]) -> frozenset[str]:
    names = params.get("plugin_type")
    parts = names.split(",") if isinstance(names, str) else []
    return frozenset(part.strip() for part in parts if part.strip())


def _draft_tokens(params: Mapping[str, object]) -> int:
    for plugin in sorted(_plugin_types(params) & DRAFT_TOKENS.keys()):
        name, default = DRAFT_TOKENS[plugin]
        value = params.get(name, default)
        return min(value, 16) if isinstance(value, int) and value > 0 else default
    return 0


def _server(sections: _Sections, file: Path | None) -> ServerSettings:
    server = sections.server
    service, management, metrics = read_planes(server, home=sections.home)
    return ServerSettings(
        service=service,
        management=management,
        metrics=metrics,
        limits=_limits(sections),
        api_mode=ApiMode.VLLM if server.text("openAiSupport") == "vllm" else ApiMode.NATIVE,
        full_text=server.flag("fullTextEnabled"),
        api_key=cast(str | None, sections.own.value("apiKey")) or None,
        tokenizer_threads=sections.backend.integer("tokenizerProcessNumber"),
        config_file=file,
    )


def _limits(sections: _Sections) -> Limits:
    server = sections.server
    is_relaxed = sections.top.flag("EnableDynamicAdjustTimeoutConfig")
    return Limits(
        max_link_num=server.integer("maxLinkNum"),
        max_body_bytes=server.integer("maxRequestLength") * 1024 * 1024,
        max_json_depth=server.integer("maxJsonDepth"),
        token_timeout_s=3600 if is_relaxed else server.integer("tokenTimeout"),
        e2e_timeout_s=65535 if is_relaxed else server.integer("e2eTimeout"),
        max_n=min(sections.schedule.integer("maxN"), 128),
        drain_timeout_s=sections.own.number("drainTimeout"),
    )


def _scheduler(sections: _Sections) -> SchedulerSettings:
    schedule, own = sections.schedule, sections.own
    max_batch = schedule.integer("maxBatchSize")
    return SchedulerSettings(
        max_batch_size=max_batch,
        max_prefill_batch_size=min(schedule.integer("maxPrefillBatchSize") or max_batch, max_batch),
        max_prefill_tokens=schedule.integer("maxPrefillTokens"),
        max_iter_times=schedule.integer("maxIterTimes"),
        step_token_budget=own.integer("stepTokenBudget"),
        step_stretch=own.number("stepStretch"),
        prefix_cache=own.flag("prefixCache"),
        max_ngram_draft=own.integer("maxDraftTokens")
        if own.gives("maxDraftTokens")
        else _draft_tokens(_plugin_params(sections.model)),
    )


def _known_level(log: Section, level: str) -> str:
    level = {"warn": "warning", "critical": "error"}.get(level, level)
    if level not in ("debug", "info", "warning", "error"):
        raise log.refuse("dynamicLogLevel", "must be one of debug, info, warn, error, critical")
    return level


def _warnings(sections: _Sections, file: Path | None, kind: EngineKind) -> list[str]:
    notes, schedule = sections.notes, sections.schedule
    idle = notes.without_effect(Effect.VLLM if kind is EngineKind.VLLM else Effect.NATIVE)
    parts = [
        f"{label}: {', '.join(names[:MAX_NAMES])}{f' and {len(names) - MAX_NAMES} more' * (len(names) > MAX_NAMES)}"
        for label, names in (("unknown", notes.unknown), ("without effect here", idle))
        if names
    ]
    warnings = [f"Some keys of the configuration do nothing. {'; '.join(parts)}."] if parts else []
    if warning := name_warning(sections.backend, kind):
        warnings.append(warning)
    max_batch = schedule.integer("maxBatchSize")
    if schedule.gives("maxPrefillBatchSize") and schedule.integer("maxPrefillBatchSize") > max_batch:
        warnings.append(f"{schedule.path_of('maxPrefillBatchSize')} counts as maxBatchSize ({max_batch}).")
    if file is not None and file.stat().st_mode & 0o022:
        warnings.append(f"{shown(str(file))} can be changed by others than its owner.")
    return warnings
