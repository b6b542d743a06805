"""From settings to the engine arguments of vLLM, by its own names. Imports nothing of it."""

import os
from collections.abc import Collection, MutableMapping
from typing import Final

from mindserve.engine.vllm.model import ModelFacts
from mindserve.errors import ConfigError
from mindserve.settings.values import (
    CachePrecision,
    EngineSettings,
    ModelSettings,
    Precision,
    SchedulerSettings,
    Settings,
)

OWN_KEY: Final = "MindserveConfig.vllm"

PROCESSORS: Final = ("mindserve.engine.vllm.masks:Constraints", "mindserve.engine.vllm.masks:Heat")
"""What is done to the logits in vLLM's own processes."""

_DTYPES: Final = {Precision.AUTO: "auto", Precision.F32: "float32", Precision.F16: "float16"}
_CACHE_DTYPES: Final = {CachePrecision.AUTO: "auto", CachePrecision.F16: "float16"}
_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as `max_lora_rank`."""
_USUAL_RANK: Final = 16
_MIN_LOADED_ADAPTERS: Final = 16
"""How many may be loaded at a time at least, where the engine has adapters at all."""
_USUAL_ADAPTERS: Final = 3
"""How many may be in a batch where the file does not say and no more are configured."""
_SHOWN_LOGPROBS: Final = 20
_SPARE_CANDIDATES: Final = 64
"""Beam search needs as many as there are end tokens, beside its beams."""

_SET_HERE: Final = frozenset(
    {"model", "logits_processors", "logprobs_mode", "generation_config", "disable_log_stats", "skip_tokenizer_init"}
)
_SPECULATION: Final = ("speculative_config", "spec_method", "spec_model", "spec_tokens")


def engine_args(settings: Settings, facts: ModelFacts) -> dict[str, object]:
    """Arguments of `AsyncEngineArgs`; `max_model_len` is an upper limit. Raises ConfigError."""
    engine, scheduler, model = settings.engine, settings.scheduler, settings.model
    _refuse_speculation(scheduler, engine)
    args: dict[str, object] = {
        "model": str(model.path),
        "served_model_name": model.name,
        "trust_remote_code": model.trust_remote_code,
        "dtype": _dtype(engine),
        "kv_cache_dtype": _cache_dtype(engine),
        "max_model_len": model.max_seq_len,
        "max_num_seqs": scheduler.max_batch_size,
        "enable_prefix_caching": scheduler.prefix_cache,
        "max_logprobs": max(_SHOWN_LOGPROBS, settings.server.limits.max_n + _SPARE_CANDIDATES),
        "logprobs_mode": "processed_logprobs",
        "logits_processors": list(PROCESSORS),
        "generation_config": "vllm",
        "disable_log_stats": True,
        "skip_tokenizer_init": not facts.media_token_ids,
    }
    if engine.cache_bytes:
        args["kv_cache_memory_bytes"] = engine.cache_bytes
    return args | _parallel(engine) | _adapters(model, facts) | _given(engine)


def check_names(engine: EngineSettings, known: Collection[str]) -> None:
    """Raises ConfigError for arguments that the installed vLLM does not have."""
    for name in engine.vllm:
        if name not in known:
            key = f"{OWN_KEY}.{name}"
            raise ConfigError(f"{key}: the installed vLLM has no engine argument of that name.", param=key)


def prepare_environment(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """What vLLM reads from the environment, in this process and in those that it starts. What is set already stays."""
    defaults = {
        # the newer runner takes logits processors of another kind
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # all events of a step in one go: they are counted and told together
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": str(max(128, settings.scheduler.max_batch_size)),
        "VLLM_NO_USAGE_STATS": "1",
    }
    for name, value in defaults.items():
        environment.setdefault(name, value)


def _dtype(engine: EngineSettings) -> str:
    if engine.precision not in _DTYPES:
        key = "MindserveConfig.precision"
        raise ConfigError(f"{key}: vLLM takes auto, f32 or f16, got {engine.precision}.", param=key)
    return _DTYPES[engine.precision]


def _cache_dtype(engine: EngineSettings) -> str:
    """`auto` is the model's own type, so that f32 is there for f32 models."""
    if engine.cache_precision is CachePrecision.F32 and engine.precision is Precision.F32:
        return "auto"
    if engine.cache_precision not in _CACHE_DTYPES:
        key = "MindserveConfig.cachePrecision"
        raise ConfigError(
            f"{key}: vLLM takes auto or f16 (f32 with precision f32 only), got {engine.cache_precision}; others are "
            f"named in {OWN_KEY}.kv_cache_dtype.",
            param=key,
        )
    return _CACHE_DTYPES[engine.cache_precision]


def _parallel(engine: EngineSettings) -> dict[str, object]:
    parallel = engine.parallel
    args: dict[str, object] = {
        "tensor_parallel_size": parallel.tensor,
        "pipeline_parallel_size": parallel.pipeline,
        "data_parallel_size": parallel.data,
    }
    if parallel.spans_nodes:
        args["distributed_executor_backend"] = "ray"
        if parallel.data > 1:
            args["data_parallel_backend"] = "ray"
    return args


def _adapters(model: ModelSettings, facts: ModelFacts) -> dict[str, object]:
    """Room for the configured adapters or as many as the file says, and for some more that are loaded at run time."""
    if not model.max_loras and not facts.adapter_ranks:
        return {}
    count = max(model.max_loras or _USUAL_ADAPTERS, len(facts.adapter_ranks))
    wanted = max((model.max_lora_rank or _USUAL_RANK, *facts.adapter_ranks))
    return {
        "enable_lora": True,
        "max_loras": count + 1,
        "max_cpu_loras": max(count + 1, _MIN_LOADED_ADAPTERS),
        "max_lora_rank": next((rank for rank in _RANKS if rank >= wanted), _RANKS[-1]),
    }


def _given(engine: EngineSettings) -> dict[str, object]:
    """The operator's own arguments, which win over ours."""
    for name in engine.vllm:
        key = f"{OWN_KEY}.{name}"
        if name in _SET_HERE:
            raise ConfigError(f"{key}: is set by the server itself.", param=key)
    return dict(engine.vllm)


def _refuse_speculation(scheduler: SchedulerSettings, engine: EngineSettings) -> None:
    """vLLM refuses logits processors beside speculation, and they are what constrains answers."""
    given = next((f"{OWN_KEY}.{name}" for name in _SPECULATION if engine.vllm.get(name) is not None), None)
    key = "MindserveConfig.maxDraftTokens" if scheduler.max_ngram_draft else given
    if key is not None:
        raise ConfigError(
            f"{key}: vLLM cannot speculate where answers may be constrained (response_format, tool_choice, "
            "thinking_budget); leave it out.",
            param=key,
        )
