"""Every key of a MindIE config.json (layout 1.0.0), as data.

`Effect.NEVER` marks what belongs to NPUs or another scheduler, `Effect.NATIVE` and `Effect.VLLM` what one engine alone
can follow: it is checked, so that a file means the same everywhere, and then does nothing. MindIE insists on many keys
that only matter on its hardware; here only the objects themselves and the model's name and path must be there, and the
rest have MindIE's defaults.
"""

from mindserve.settings.keys import Effect, Key, Kind

NAME = r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,254}[a-zA-Z0-9])?"
"""Model and adapter names."""
MAX_DEVICES = 65536
"""Of one engine: far beyond any, so that a slip of the pen is noticed."""


def _integer(name: str, default: int | None, minimum: float | None = None, maximum: float | None = None) -> Key:
    return Key(name=name, kind=Kind.INTEGER, default=default, minimum=minimum, maximum=maximum)


def _flag(name: str, default: bool) -> Key:
    return Key(name=name, kind=Kind.BOOLEAN, default=default)


def _text(name: str, default: str | None = None, *, choices: tuple[str, ...] = ()) -> Key:
    return Key(name=name, kind=Kind.STRING, default=default, choices=choices)


def _list(name: str) -> Key:
    return Key(name=name)


def _object(name: str, *, is_required: bool = False) -> Key:
    return Key(name=name, kind=Kind.OBJECT, is_required=is_required)


def _idle(name: str, kind: Kind = Kind.ANY, minimum: float | None = None, maximum: float | None = None) -> Key:
    return Key(name=name, kind=kind, minimum=minimum, maximum=maximum, effect=Effect.NEVER)


def _vllm(name: str, kind: Kind = Kind.ANY, minimum: float | None = None, default: object = None) -> Key:
    return Key(name=name, kind=kind, minimum=minimum, default=default, effect=Effect.VLLM)


def _idle_all(names: str) -> tuple[Key, ...]:
    return tuple(_idle(name) for name in names.split())


TOP = (
    _idle("Version", Kind.STRING),
    _object("ServerConfig", is_required=True),
    _object("BackendConfig", is_required=True),
    _object("LogConfig"),
    _object("MindserveConfig"),
    _flag("EnableDynamicAdjustTimeoutConfig", False),
)

LOG = (
    _text("dynamicLogLevel", ""),
    _idle("dynamicLogLevelValidHours", Kind.INTEGER, 1, 168),
    _idle("dynamicLogLevelValidTime", Kind.STRING),
)


def _tls(prefix: str) -> tuple[Key, ...]:
    """The files of one plane: `tlsCert`, `managementTlsCert`, `metricsTlsCert`, ..."""
    start = f"{prefix}Tls" if prefix else "tls"
    names = (_text(f"{start}CaPath"), _list(f"{start}CaFile"), _text(f"{start}Cert"), _text(f"{start}Pk"))
    lists = (_text(f"{start}CrlPath"), _list(f"{start}CrlFiles"))
    return (*names, *lists, _idle(f"{start}PkPwd"))


SERVER = (
    _text("ipAddress", "127.0.0.1"),
    _text("managementIpAddress"),
    _integer("port", 1025, 1024, 65535),
    _integer("managementPort", None, 1024, 65535),
    _integer("metricsPort", 1027, 1024, 65535),
    _flag("allowAllZeroIpListening", False),
    _integer("maxLinkNum", 1000, 1, 4096),
    _flag("httpsEnabled", True),
    _flag("fullTextEnabled", False),
    *_tls(""),
    *_tls("management"),
    *_tls("metrics"),
    *_idle_all("kmcKsfMaster kmcKsfStandby"),
    Key(name="inferMode", kind=Kind.STRING, choices=("standard",), effect=Effect.NEVER),
    _text("openAiSupport", "vllm"),
    _integer("tokenTimeout", 600, 1, 3600),
    _integer("e2eTimeout", 600, 1, 65535),
    _integer("maxRequestLength", 40, 1, 100),
    # MindIE's own default is 10, which cuts deep tool schemas short without a word.
    _integer("maxJsonDepth", 64, 10, 100),
    *_idle_all("interCommTLSEnabled interCommPort interCommTlsCaPath interCommTlsCaFiles interCommTlsCert interCommPk"),
    *_idle_all("interCommPkPwd interCommTlsCrlPath interCommTlsCrlFiles distDPServerEnabled"),
    *_idle_all("layerwiseDisaggregated layerwiseDisaggregatedRoleType"),
    _idle("HealthCheckConfig", Kind.OBJECT),
)

BACKEND = (
    Key(name="backendName", kind=Kind.STRING, default="", pattern="[a-z]+(_[a-z]+)*", max_length=50),
    _integer("modelInstanceNumber", 1, 1, 10),
    _idle("npuDeviceIds", Kind.ARRAY),
    _integer("tokenizerProcessNumber", 8, 1, 32),
    _vllm("multiNodesInferEnabled", Kind.BOOLEAN, default=False),
    _idle("multiNodesInferPort", Kind.INTEGER, 1024, 65535),
    *_idle_all("interNodeTLSEnabled interNodeTlsCaPath interNodeTlsCaFiles interNodeTlsCert interNodeTlsPk"),
    *_idle_all("interNodeTlsPkPwd interNodeTlsCrlPath interNodeTlsCrlFiles interNodeKmcKsfMaster"),
    _idle("interNodeKmcKsfStandby"),
    _idle("kvPoolConfig", Kind.OBJECT),
    _object("ModelDeployConfig", is_required=True),
    _object("ScheduleConfig", is_required=True),
)

MODEL_DEPLOY = (
    _integer("maxSeqLen", 2560, 1),
    _integer("maxInputTokenLen", 2048, 1, 4194304),
    # An integer or a boolean; anything else counts as 0.
    Key(name="truncation", default=0),
    _idle("speculationGamma", Kind.INTEGER, 0),
    _vllm("maxLoras", Kind.INTEGER, 0, default=0),
    _vllm("maxLoraRank", Kind.INTEGER, 0, default=0),
    Key(name="LoraModules", kind=Kind.ARRAY),
    Key(name="ModelConfig", kind=Kind.ARRAY, is_required=True),
)

LORA_MODULE = (
    Key(name="name", kind=Kind.STRING, pattern=NAME, is_required=True),
    Key(name="path", kind=Kind.STRING, is_required=True),
    _idle("baseModelName", Kind.STRING),
)

MODEL = (
    _text("modelInstanceType", "Standard", choices=("Standard", "StandardMock", "TargetModel", "AssistantModel")),
    Key(name="modelName", kind=Kind.STRING, pattern=NAME, is_required=True),
    Key(name="modelWeightPath", kind=Kind.STRING, is_required=True),
    Key(name="worldSize", kind=Kind.INTEGER, minimum=1, maximum=MAX_DEVICES, effect=Effect.VLLM),
    _idle("cpuMemSize", Kind.INTEGER, 0),
    _integer("npuMemSize", -1, -1),
    Key(name="backendType", kind=Kind.STRING, choices=("atb", "ms", "torch"), effect=Effect.NEVER),
    _flag("trustRemoteCode", False),
    # A JSON text, or the object itself.
    Key(name="plugin_params"),
    _object("models"),
    # MindIE takes anything here; what vLLM is to follow is checked when it is chosen.
    _vllm("tp"),
    _vllm("pp"),
    _vllm("dp"),
    *_idle_all("cp sp moe_tp moe_ep async_scheduler_wait_time kv_trans_timeout kv_link_timeout"),
)

SCHEDULE = (
    _text("templateType", "Standard", choices=("Standard", "Mix")),
    _idle("templateName", Kind.STRING),
    _idle("cacheBlockSize", Kind.INTEGER, 1, 128),
    Key(name="maxPrefillBatchSize", kind=Kind.INTEGER, default=50, minimum=0, effect=Effect.NATIVE),
    Key(name="maxPrefillTokens", kind=Kind.INTEGER, default=8192, minimum=1, maximum=4194304, effect=Effect.NATIVE),
    _idle("prefillTimeMsPerReq", Kind.INTEGER, 0, 1000),
    _idle("decodeTimeMsPerReq", Kind.INTEGER, 0, 1000),
    _idle("prefillPolicyType", Kind.INTEGER, 0, 3),
    _idle("decodePolicyType", Kind.INTEGER, 0, 3),
    Key(name="policyType", kind=Kind.INTEGER, choices=(0, 4, 5, 6, 7), effect=Effect.NEVER),
    _integer("maxBatchSize", 200, 1, 819200),
    _integer("maxIterTimes", 512, 1),
    _idle("maxPreemptCount", Kind.INTEGER, 0),
    _idle("supportSelectBatch", Kind.BOOLEAN),
    _idle("maxQueueDelayMicroseconds", Kind.INTEGER, 500, 1000000),
    _idle("maxFirstTokenWaitTime", Kind.INTEGER, 0, 3600000),
    _integer("maxN", 128, 1, 8192),
    _idle("stageSelectPolicy", Kind.INTEGER, 0, 2),
    _idle("dynamicBatchSizeEnable", Kind.BOOLEAN),
    _idle("bufferResponseEnabled", Kind.BOOLEAN),
    _idle("prefillExpectedTime", Kind.INTEGER, 1, 10000),
    _idle("decodeExpectedTime", Kind.INTEGER, 1, 10000),
    *_idle_all("distributedEnable splitType splitStartType splitChunkTokens splitStartBatchSize prefillChunkSize"),
    _idle("maxNumPartialPrefills", Kind.INTEGER, 1, 64),
    _idle("maxLongPartialPrefills", Kind.INTEGER),
    _idle("longPrefillTokenThreshold", Kind.INTEGER, 1, 8192),
    *_idle_all("enableSplit enablePrefixCache"),
)

MINDSERVE = (
    _text("precision", "auto", choices=("auto", "f32", "f16", "int8", "int4")),
    _text("cachePrecision", "auto", choices=("auto", "f32", "f16", "u8")),
    _integer("threads", 0, 0, 1024),
    # Wins over npuMemSize; fractions of a GB are fine.
    Key(name="cacheSizeGb", kind=Kind.NUMBER, minimum=0, maximum=65536),
    Key(name="preparedDir", kind=Kind.STRING, effect=Effect.NATIVE),
    _text("apiKey"),
    _text("mediaDir", "/data/multimodal_inputs"),
    _flag("allowRequestChatTemplate", False),
    _flag("prefixCache", True),
    Key(name="stepTokenBudget", kind=Kind.INTEGER, default=512, minimum=16, maximum=1048576, effect=Effect.NATIVE),
    Key(name="stepStretch", kind=Kind.NUMBER, default=2.25, minimum=1, maximum=1000, effect=Effect.NATIVE),
    # Wins over plugin_params.
    _integer("maxDraftTokens", None, 0, 15),
    Key(name="drainTimeout", kind=Kind.NUMBER, default=30, minimum=0, maximum=3600),
    _text("script"),
    _vllm("vllm", Kind.OBJECT),
    _text("logLevel", "info", choices=("debug", "info", "warning", "error")),
)
