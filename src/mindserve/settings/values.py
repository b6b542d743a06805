"""The configuration as frozen values, one class per concern. `settings.mindie` and the command line make them.

Key names of config.json (MindIE layout, contract: config.json) stand beside the fields that they set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class ApiMode(StrEnum):
    """Which dialect `/v1/chat/completions` speaks (`openAiSupport`: absent or "vllm", anything else)."""

    VLLM = "vllm"
    NATIVE = "openai"


class Truncation(StrEnum):
    """What happens to an over-long prompt (`truncation` 0, -1, 1)."""

    REJECT = "reject"
    CUT_RIGHT = "cut_right"
    CUT_LEFT = "cut_left"


class EngineKind(StrEnum):
    """Which engine answers."""

    NATIVE = "native"
    SCRIPTED = "scripted"
    """Plays a script without a model (`modelInstanceType: StandardMock`)."""
    VLLM = "vllm"
    """vLLM in this process (`backendName: vllm`)."""


class Precision(StrEnum):
    """How weights are held. AUTO keeps a GGUF file's own blocks where they map exactly and picks the fastest else."""

    AUTO = "auto"
    F32 = "f32"
    F16 = "f16"
    INT8 = "int8"
    INT4 = "int4"


class CachePrecision(StrEnum):
    """How keys and values are held."""

    AUTO = "auto"
    F32 = "f32"
    F16 = "f16"
    U8 = "u8"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Certificates of one plane (`tlsCaPath` + `tlsCaFile`, `tlsCert`, `tlsPk`, `tlsCrlPath` + `tlsCrlFiles`)."""

    ca: tuple[Path, ...]
    certificate: Path
    key: Path
    revocation_lists: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Where one plane listens; planes with the same address share one socket. Port 0: any free port."""

    host: str = "127.0.0.1"
    port: int = 1025
    tls: TlsFiles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server refuses or ends."""

    max_link_num: int = 1000
    """Requests running at once; twice as many may wait; more get 429 (`maxLinkNum`)."""
    max_body_bytes: int = 40 * 1024 * 1024
    """`maxRequestLength`, there in MB."""
    max_json_depth: int = 64
    """`maxJsonDepth`."""
    token_timeout_s: float = 600
    """Longest wait for the next token (`tokenTimeout`)."""
    e2e_timeout_s: float = 600
    """Longest life of a request (`e2eTimeout`)."""
    max_n: int = 128
    """`maxN`."""
    drain_timeout_s: float = 30
    """After SIGTERM, how long running requests may go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP side."""

    service: Plane = Plane()
    management: Plane = Plane()
    metrics: Plane = Plane()
    limits: Limits = Limits()
    api_mode: ApiMode = ApiMode.VLLM
    full_text: bool = False
    """`fullTextEnabled`."""
    api_key: str | None = None
    """Asked for in `Authorization: Bearer`, when set."""
    tokenizer_threads: int = 8
    """Threads for templates and tokenisation (`tokenizerProcessNumber`)."""
    config_file: Path | None = None
    """Watched for changes of `openAiSupport`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """One entry of `LoraModules`."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The served model (`ModelDeployConfig` and its `ModelConfig[0]`)."""

    name: str
    """`modelName`: what requests call it."""
    path: Path
    """`modelWeightPath`: a Hugging Face directory, or a GGUF file (or a directory with one)."""
    max_seq_len: int = 2560
    max_input_len: int = 2048
    """`maxInputTokenLen`; effective: min(it, max_seq_len - 1)."""
    truncation: Truncation = Truncation.REJECT
    trust_remote_code: bool = False
    """Only vLLM ever runs a model's own code."""
    adapters: tuple[AdapterSettings, ...] = ()
    max_loras: int = 0
    """Adapters that vLLM has room for at once (`maxLoras`); 0: not said."""
    max_lora_rank: int = 0
    """The highest rank of one (`maxLoraRank`); 0: not said."""
    plugin_types: frozenset[str] = frozenset()
    """Names in `plugin_params`.plugin_type (mtp, la, memory_decoding, prefix_cache, splitfuse, ...)."""
    enable_reasoning: bool = False
    """`models.{model_type}.enable_reasoning`."""
    chat_template: Path | None = None
    """`models.{model_type}.chat_template`."""
    tool_call_parser: str | None = None
    """`models.{model_type}.tool_call_options.tool_call_parser`."""
    allow_request_chat_template: bool = False
    early_stopping_text: str | None = None
    """`models.{model_type}.early_stopping_text`."""
    media_dir: Path = Path("/data/multimodal_inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How the native engine fills its steps (`ScheduleConfig`)."""

    max_batch_size: int = 200
    """Sequences decoding at once."""
    max_prefill_batch_size: int = 50
    max_prefill_tokens: int = 8192
    """Prompt tokens over all sequences of a step."""
    max_iter_times: int = 512
    """Default and cap of max_tokens (`maxIterTimes`)."""
    step_token_budget: int = 512
    """Tokens of one step, decodes first, prompts in chunks beside them (`stepTokenBudget`)."""
    step_stretch: float = 2.25
    """How many times as long as its decodes alone a step may be because of prompts, while no more prompts wait than
    sequences decode (`stepStretch`)."""
    prefix_cache: bool = True
    max_ngram_draft: int = 0
    """Prompt-lookup speculation: longest draft; 0: off (`maxDraftTokens`; `plugin_type` la, memory_decoding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSettings:
    """How one vLLM engine is spread over devices."""

    tensor: int = 1
    """`tp`; without it `worldSize` divided by the others."""
    pipeline: int = 1
    """`pp`."""
    data: int = 1
    """`dp`."""
    spans_nodes: bool = False
    """Whether Ray places its workers on several nodes (`multiNodesInferEnabled`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine and its memory."""

    kind: EngineKind = EngineKind.NATIVE
    precision: Precision = Precision.AUTO
    cache_precision: CachePrecision = CachePrecision.AUTO
    threads: int = 0
    """0: all cores that the process may use."""
    cache_bytes: int = 0
    """Memory for keys and values (`npuMemSize`, there in GB); 0: a share of what is free."""
    prepared_dir: Path | None = None
    """Where prepared models are cached; None: `~/.cache/mindserve`."""
    script: Path | None = None
    """JSON script of the scripted engine."""
    instances: int = 1
    """Engines behind the server; more than one are replicas on a Ray cluster (`modelInstanceNumber`)."""
    parallel: ParallelSettings = ParallelSettings()
    vllm: Mapping[str, object] = field(default_factory=dict[str, object])
    """Further engine arguments of vLLM, as it names them (`MindserveConfig.vllm`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything."""

    model: ModelSettings
    server: ServerSettings = ServerSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    engine: EngineSettings = EngineSettings()
    log_level: str = "info"
    warnings: tuple[str, ...] = ()
    """What the operator should hear at start: unknown and irrelevant keys."""
    raw_models: Mapping[str, object] = field(default_factory=dict[str, object])
    """`models` of ModelConfig as written; the entry of the loaded model's type counts once it is known."""
