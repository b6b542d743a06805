"""`mindserve serve`: load a model and answer requests until told to stop."""

import asyncio
import json
import logging
import os
import resource
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from mindserve.cli.compose import compose
from mindserve.cli.operator import console, plain_errors, progress_bars, warn
from mindserve.server.app import PlaneKind
from mindserve.server.lifecycle import Lifecycle, bind
from mindserve.server.protocol import ConnectionLimits
from mindserve.settings.location import load_configuration, with_cache_home
from mindserve.settings.overrides import Overrides, apply, for_model
from mindserve.settings.values import ApiMode, CachePrecision, EngineKind, Precision, Settings
from mindserve.telemetry import configure_logging

log = logging.getLogger("mindserve")


class LogLevel(StrEnum):
    """How much is logged; never prompts or answers."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


SPARE_FILES = 256
"""For everything that is no connection: libraries, the model, media."""

ModelPath = Annotated[
    Path | None, typer.Argument(help="Model directory or .gguf file; with a configuration it replaces the model there.")
]
ConfigFile = Annotated[Path | None, typer.Option("--config-file", help="MindIE config.json.")]


def serve(  # noqa: PLR0913, PLR0917 - the command's options
    model_path: ModelPath = None,
    config_file: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")] = None,
    model_name: Annotated[str | None, typer.Option(help="What requests call the model.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="How weights are held.")] = None,
    cache_precision: Annotated[CachePrecision | None, typer.Option(help="How keys and values are held.")] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="0: all cores.")] = None,
    cache_gb: Annotated[float | None, typer.Option(min=0.0, help="Memory for keys and values.")] = None,
    max_seq_len: Annotated[int | None, typer.Option(min=2, help="Tokens of prompt and answer together.")] = None,
    max_draft_tokens: Annotated[
        int | None, typer.Option(min=0, max=15, help="Speculation by prompt lookup: longest draft; 0: none.")
    ] = None,
    engine: Annotated[
        EngineKind | None,
        typer.Option(help="`vllm`: vLLM, from mindserve[vllm]; `scripted` plays a script without a model."),
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, max=10, help="Engines; more than one are replicas on a Ray cluster.")
    ] = None,
    script: Annotated[Path | None, typer.Option(help="Script of the scripted engine.")] = None,
    api: Annotated[
        ApiMode | None, typer.Option(help="`vllm`: MindIE's vLLM-compatible form; `openai`: OpenAI's.")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option()] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="One JSON object per log line.")] = False,
) -> None:
    """Serve a model. Without a MODEL_PATH the configuration names it. The API key comes from MINDSERVE_API_KEY."""
    overrides = Overrides(
        host=host,
        port=port,
        model_path=model_path,
        model_name=model_name,
        precision=precision,
        cache_precision=cache_precision,
        threads=threads,
        cache_gb=cache_gb,
        max_seq_len=max_seq_len,
        max_draft_tokens=max_draft_tokens,
        api_key=os.environ.get("MINDSERVE_API_KEY"),
        api_mode=api,
        engine=engine,
        instances=instances,
        script=script,
        log_level=log_level,
    )
    with plain_errors():
        settings = _settings(config_file, overrides)
        configure_logging(settings.log_level, as_json=log_json)
        for warning in settings.warnings:
            warn(warning)
        uvloop.run(_serve(settings, ConnectionLimits(max_connections=_connections(settings))))


def _settings(config_file: Path | None, overrides: Overrides) -> Settings:
    """The configuration where one is named or nothing else is; otherwise defaults around the given model."""
    is_bare = config_file is None and (overrides.model_path is not None or overrides.engine is EngineKind.SCRIPTED)
    if is_bare:
        base = for_model(overrides.model_path or Path("scripted"))
    else:
        base = load_configuration(config_file, os.environ, kind=overrides.engine)
    return with_cache_home(apply(base, overrides), os.environ)


async def _serve(settings: Settings, limits: ConnectionLimits) -> None:
    started_s = time.perf_counter()
    listeners = bind(settings.server)
    with progress_bars() as report:
        composition = await compose(settings, report=report)
    try:
        lifecycle = Lifecycle(composition.state, listeners, connection_limits=limits)
        await lifecycle.start()
        _obey_signals(lifecycle, settings.server.limits.drain_timeout_s)
        _announce(lifecycle.urls[PlaneKind.SERVICE], settings, time.perf_counter() - started_s)
        await lifecycle.run()
    finally:
        await composition.close()
    log.info("stopped")


def _obey_signals(lifecycle: Lifecycle, drain_timeout_s: float) -> None:
    """The first signal drains, the second ends the process at once."""
    is_second = False

    def obey() -> None:
        nonlocal is_second
        if is_second:
            os._exit(1)
        is_second = True
        lifecycle.request_stop(drain_timeout_s)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, obey)


def _announce(url: str, settings: Settings, seconds: float) -> None:
    question = {"model": settings.model.name, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    console.print(f"[bold green]ready[/] {url} model={settings.model.name} ({seconds:.1f} s)", soft_wrap=True)
    if settings.server.service.tls is None:
        key = ' -H "Authorization: Bearer $MINDSERVE_API_KEY"' if settings.server.api_key else ""
        command = f"curl -N {url}/v1/chat/completions{key} -d '{json.dumps(question)}'"
        console.print(command, markup=False, soft_wrap=True)


def _connections(settings: Settings) -> int:
    """How many connections a socket may have: some idle ones beside those that run and wait.

    Every connection is a file, and the soft limit on files is often lower than that needs.
    """
    wanted = 4 * settings.server.limits.max_link_num + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(soft, min(wanted + SPARE_FILES, hard if hard != resource.RLIM_INFINITY else wanted + SPARE_FILES))
    if files > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return min(wanted, max(files - SPARE_FILES, 16))
