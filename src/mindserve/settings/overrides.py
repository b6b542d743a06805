"""What the command line changes, and the settings of a server that is started with nothing but a model."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from mindserve.settings.values import (
    ApiMode,
    CachePrecision,
    EngineKind,
    ModelSettings,
    Plane,
    Precision,
    SchedulerSettings,
    ServerSettings,
    Settings,
)

MAX_DEFAULT_SEQ_LEN = 32768
"""Longest context without a configuration; the model's own length and the memory bound it further."""
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options of `mindserve serve`; None leaves the configured value."""

    host: str | None = None
    port: int | None = None
    model_path: Path | None = None
    model_name: str | None = None
    precision: Precision | None = None
    cache_precision: CachePrecision | None = None
    threads: int | None = None
    cache_gb: float | None = None
    max_seq_len: int | None = None
    max_draft_tokens: int | None = None
    api_key: str | None = None
    api_mode: ApiMode | None = None
    engine: EngineKind | None = None
    instances: int | None = None
    script: Path | None = None
    log_level: str | None = None


def for_model(path: Path) -> Settings:
    """Defaults for `mindserve serve PATH`: one plane on port 1025, plain HTTP, the whole context for every request."""
    plane = Plane()
    return Settings(
        model=ModelSettings(
            name=name_of(path),
            path=path,
            max_seq_len=MAX_DEFAULT_SEQ_LEN,
            max_input_len=MAX_DEFAULT_SEQ_LEN - 1,
        ),
        server=ServerSettings(service=plane, management=plane, metrics=plane),
        scheduler=SchedulerSettings(max_iter_times=MAX_DEFAULT_SEQ_LEN),
    )


def name_of(path: Path) -> str:
    """A model name that requests can use: the directory's or the file's, without what names may not hold."""
    path = path.absolute()
    stem = path.name.removesuffix(".gguf") if path.suffix == ".gguf" else path.name
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", stem).strip("-_.")[:256] or "model"


def apply(settings: Settings, overrides: Overrides) -> Settings:
    """`settings` with the given options in place of the configured values."""
    return replace(
        settings,
        model=_model(settings.model, overrides),
        server=_server(settings.server, overrides),
        scheduler=_scheduler(settings.scheduler, overrides),
        engine=replace(
            settings.engine,
            **_given(
                kind=overrides.engine,
                precision=overrides.precision,
                cache_precision=overrides.cache_precision,
                threads=overrides.threads,
                cache_bytes=None if overrides.cache_gb is None else int(overrides.cache_gb * GIB),
                script=overrides.script,
                instances=overrides.instances,
            ),
        ),
        **_given(log_level=overrides.log_level),
    )


def _model(model: ModelSettings, overrides: Overrides) -> ModelSettings:
    model = replace(model, **_given(name=overrides.model_name, path=overrides.model_path))
    if overrides.max_seq_len is None:
        return model
    return replace(model, max_seq_len=overrides.max_seq_len, max_input_len=max(overrides.max_seq_len - 1, 1))


def _scheduler(scheduler: SchedulerSettings, overrides: Overrides) -> SchedulerSettings:
    scheduler = replace(scheduler, **_given(max_ngram_draft=overrides.max_draft_tokens))
    if overrides.max_seq_len is None:
        return scheduler
    return replace(scheduler, max_iter_times=min(scheduler.max_iter_times, overrides.max_seq_len))


def _server(server: ServerSettings, overrides: Overrides) -> ServerSettings:
    """Planes that shared the service plane's address move with it."""
    address = (server.service.host, server.service.port)
    moved = replace(server.service, **_given(host=overrides.host, port=overrides.port))
    planes = {
        name: moved if (plane.host, plane.port) == address else plane
        for name, plane in (
            ("service", server.service),
            ("management", server.management),
            ("metrics", server.metrics),
        )
    }
    return replace(server, **planes, **_given(api_key=overrides.api_key, api_mode=overrides.api_mode))


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
