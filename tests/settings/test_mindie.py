"""config.json to Settings: MindIE's own file as it stands, every refusal, every cross check."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindserve.errors import ConfigError
from mindserve.settings.mindie import api_mode, from_json, load
from mindserve.settings.values import (
    ApiMode,
    CachePrecision,
    EngineKind,
    ParallelSettings,
    Precision,
    Settings,
    Truncation,
)

FILE = Path(__file__).parent / "data" / "config.json"
DEPLOY = "BackendConfig.ModelDeployConfig"
MODEL = f"{DEPLOY}.ModelConfig[0]"
SCHEDULE = "BackendConfig.ScheduleConfig"


def document() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def changed(path: str, value: Any) -> dict[str, Any]:
    """MindIE's file with one key set (`...` removes it)."""
    result = document()
    *parents, last = path.split(".")
    place: Any = result
    for parent in parents:
        name, _, index = parent.partition("[")
        place = place.setdefault(name, {})
        place = place[int(index[:-1])] if index else place
    if value is ...:
        del place[last]
    else:
        place[last] = copy.deepcopy(value)
    return result


def read(path: str, value: Any) -> Settings:
    return from_json(changed(path, value), home=Path("/home"))


def test_the_shipped_file_works_as_it_stands() -> None:
    settings = load(FILE)
    home = FILE.parent
    server = settings.server
    assert (server.service.host, server.service.port) == ("127.0.0.1", 1025)
    assert (server.management.host, server.management.port) == ("127.0.0.2", 1026)
    assert (server.metrics.host, server.metrics.port) == ("127.0.0.2", 1027)
    assert server.service.tls is not None
    assert server.service.tls.ca == (home / "security/ca/ca.pem",)
    assert server.service.tls.revocation_lists == (home / "security/certs/server_crl.pem",)
    assert server.management.tls is not None
    assert server.management.tls.certificate == home / "security/certs/management/server.pem"
    assert server.metrics.tls is not None
    assert server.metrics.tls.key == home / "security/keys/metrics/server.key.pem"
    assert server.limits.max_link_num == 1000
    assert server.limits.max_body_bytes == 40 * 1024 * 1024
    assert server.limits.max_json_depth == 64
    assert server.api_mode is ApiMode.VLLM
    assert server.config_file == FILE
    assert settings.model.name == "llama_65b"
    assert settings.model.path == Path("/data/atb_testdata/weights/llama1-65b-safetensors")
    assert (settings.model.max_seq_len, settings.model.max_input_len) == (2560, 2048)
    assert settings.model.truncation is Truncation.REJECT
    assert settings.scheduler.max_iter_times == 512
    assert settings.engine.kind is EngineKind.NATIVE
    assert settings.engine.cache_bytes == 0


def test_keys_that_do_nothing_are_named_in_one_warning() -> None:
    raw = changed("ServerConfig.maxLnkNum", 7)
    raw["Extra"] = {"a": 1}
    settings = from_json(raw, home=Path("/home"))
    assert len(settings.warnings) == 1
    for name in ("ServerConfig.maxLnkNum", "Extra", f"{MODEL}.worldSize", "BackendConfig.npuDeviceIds"):
        assert name in settings.warnings[0]
    assert "maxLinkNum" not in settings.warnings[0]


def test_a_prefill_batch_larger_than_the_batch_is_cut_with_a_warning() -> None:
    settings = read(f"{SCHEDULE}.maxPrefillBatchSize", 201)
    assert settings.scheduler.max_prefill_batch_size == 200
    assert settings.warnings[1] == f"{SCHEDULE}.maxPrefillBatchSize counts as maxBatchSize (200)."


def test_a_small_file_has_defaults() -> None:
    model = {"modelName": "m", "modelWeightPath": "weights"}
    raw = {
        "ServerConfig": {"httpsEnabled": False, "port": 2000},
        "BackendConfig": {"ModelDeployConfig": {"ModelConfig": [model]}, "ScheduleConfig": {}},
    }
    settings = from_json(raw, home=Path("/home"))
    assert settings.warnings == ()
    assert settings.server.management == settings.server.service
    assert settings.server.service.port == 2000
    assert settings.server.metrics.port == 1027
    assert settings.model.path == Path("/home/weights")
    assert settings.scheduler.max_batch_size == 200
    assert settings.server.limits.token_timeout_s == 600


REFUSED = [
    ("ServerConfig.port", 80),
    ("ServerConfig.port", 65536),
    ("ServerConfig.port", "1025"),
    ("ServerConfig.port", 1025.0),
    ("ServerConfig.port", True),
    ("ServerConfig.metricsPort", 1023),
    ("ServerConfig.managementPort", 0),
    ("ServerConfig.ipAddress", "localhost"),
    ("ServerConfig.ipAddress", "0.0.0.0"),
    ("ServerConfig.ipAddress", "::"),
    ("ServerConfig.ipAddress", 7),
    ("ServerConfig.managementIpAddress", "127.0.0.256"),
    ("ServerConfig.maxLinkNum", 0),
    ("ServerConfig.maxLinkNum", 4097),
    ("ServerConfig.httpsEnabled", "false"),
    ("ServerConfig.httpsEnabled", 0),
    ("ServerConfig.tokenTimeout", 0),
    ("ServerConfig.tokenTimeout", 3601),
    ("ServerConfig.e2eTimeout", 65536),
    ("ServerConfig.maxRequestLength", 101),
    ("ServerConfig.maxJsonDepth", 9),
    ("ServerConfig.openAiSupport", 1),
    ("ServerConfig.inferMode", "dmi"),
    ("ServerConfig.fullTextEnabled", 1),
    ("ServerConfig.tlsCert", ...),
    ("ServerConfig.tlsPk", ""),
    ("ServerConfig.tlsCaFile", []),
    ("ServerConfig.tlsCaFile", ["a", "b", "c", "d"]),
    ("ServerConfig.tlsCaFile", [1]),
    ("ServerConfig.tlsCrlFiles", ["a", "b", "c", "d"]),
    ("ServerConfig.managementTlsCert", ...),
    ("ServerConfig.metricsTlsPk", ...),
    ("ServerConfig", ...),
    ("ServerConfig", []),
    ("BackendConfig", ...),
    ("Version", 1),
    ("ServerConfig.HealthCheckConfig", 5),
    ("BackendConfig.backendName", "Bad Name"),
    ("BackendConfig.backendName", "x" * 51),
    ("BackendConfig.modelInstanceNumber", 0),
    ("BackendConfig.modelInstanceNumber", 11),
    ("BackendConfig.multiNodesInferEnabled", 1),
    ("BackendConfig.kvPoolConfig", "mooncake"),
    ("BackendConfig.tokenizerProcessNumber", 33),
    (DEPLOY, ...),
    (f"{DEPLOY}.maxSeqLen", 0),
    (f"{DEPLOY}.maxInputTokenLen", 4194305),
    (f"{DEPLOY}.ModelConfig", ...),
    (f"{DEPLOY}.ModelConfig", []),
    (f"{DEPLOY}.ModelConfig", [{}, {}]),
    (f"{DEPLOY}.LoraModules", {}),
    (f"{MODEL}.modelName", ...),
    (f"{MODEL}.modelName", ""),
    (f"{MODEL}.modelName", "-a"),
    (f"{MODEL}.modelName", "a" * 257),
    (f"{MODEL}.modelName", "a\n"),
    (f"{MODEL}.modelWeightPath", ...),
    (f"{MODEL}.backendType", "cuda"),
    (f"{MODEL}.npuMemSize", 0),
    (f"{MODEL}.npuMemSize", -2),
    (f"{MODEL}.modelInstanceType", "Other"),
    (f"{MODEL}.trustRemoteCode", "no"),
    (f"{MODEL}.plugin_params", "{"),
    (f"{MODEL}.plugin_params", "[]"),
    (f"{MODEL}.plugin_params", 3),
    (SCHEDULE, ...),
    (f"{SCHEDULE}.templateType", "Other"),
    (f"{SCHEDULE}.maxBatchSize", 0),
    (f"{SCHEDULE}.maxPrefillTokens", 2047),
    (f"{SCHEDULE}.maxIterTimes", 0),
    (f"{SCHEDULE}.maxN", 201),
    (f"{SCHEDULE}.maxPreemptCount", 201),
    (f"{SCHEDULE}.policyType", 3),
    (f"{SCHEDULE}.maxQueueDelayMicroseconds", 499),
    ("MindserveConfig.precision", "int2"),
    ("MindserveConfig.threads", -1),
    ("MindserveConfig.cacheSizeGb", "1"),
    ("MindserveConfig.vllm", []),
    ("LogConfig.dynamicLogLevel", "loud"),
]


@pytest.mark.parametrize(("path", "value"), REFUSED, ids=lambda v: str(v)[:40])
def test_a_wrong_value_is_refused_by_its_path(path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read(path, value)
    assert caught.value.param == path
    assert path in caught.value.message


def test_a_long_wrong_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        read("ServerConfig.port", "x" * 5000)
    assert len(caught.value.message) < 250


def test_a_wrong_entry_of_models_is_refused() -> None:
    for entry, path in (
        ({"enable_reasoning": 1}, f"{MODEL}.models.qwen3.enable_reasoning"),
        ({"tool_call_options": {"tool_call_parser": 1}}, f"{MODEL}.models.qwen3.tool_call_options.tool_call_parser"),
        (3, f"{MODEL}.models.qwen3"),
    ):
        with pytest.raises(ConfigError) as caught:
            read(f"{MODEL}.models", {"qwen3": entry})
        assert caught.value.param == path


ACCEPTED: list[tuple[str, Any, Callable[[Settings], object], object]] = [
    (f"{SCHEDULE}.maxPrefillBatchSize", 0, lambda s: s.scheduler.max_prefill_batch_size, 200),
    (f"{SCHEDULE}.maxN", 4, lambda s: s.server.limits.max_n, 4),
    (f"{SCHEDULE}.maxBatchSize", 100, lambda s: s.server.limits.max_n, 128),
    (f"{DEPLOY}.truncation", True, lambda s: s.model.truncation, Truncation.CUT_RIGHT),
    (f"{DEPLOY}.truncation", -1, lambda s: s.model.truncation, Truncation.CUT_RIGHT),
    (f"{DEPLOY}.truncation", 1, lambda s: s.model.truncation, Truncation.CUT_LEFT),
    (f"{DEPLOY}.truncation", "left", lambda s: s.model.truncation, Truncation.REJECT),
    (f"{DEPLOY}.maxInputTokenLen", 4096, lambda s: s.model.max_input_len, 2559),
    (f"{MODEL}.npuMemSize", 3, lambda s: s.engine.cache_bytes, 3 * 1024**3),
    (f"{MODEL}.modelInstanceType", "StandardMock", lambda s: s.engine.kind, EngineKind.SCRIPTED),
    ("BackendConfig.backendName", "mindserve_native", lambda s: s.engine.kind, EngineKind.NATIVE),
    ("BackendConfig.backendName", ..., lambda s: s.engine.kind, EngineKind.NATIVE),
    ("BackendConfig.backendName", "vllm", lambda s: s.engine.kind, EngineKind.VLLM),
    ("BackendConfig.modelInstanceNumber", 3, lambda s: s.engine.instances, 3),
    (f"{DEPLOY}.maxLoras", 2, lambda s: s.model.max_loras, 2),
    (f"{DEPLOY}.maxLoraRank", 64, lambda s: s.model.max_lora_rank, 64),
    (f"{MODEL}.tp", 8, lambda s: s.engine.parallel, ParallelSettings()),
    ("MindserveConfig.vllm", {"enforce_eager": True}, lambda s: s.engine.vllm, {"enforce_eager": True}),
    ("ServerConfig.openAiSupport", "openai", lambda s: s.server.api_mode, ApiMode.NATIVE),
    ("ServerConfig.openAiSupport", ..., lambda s: s.server.api_mode, ApiMode.VLLM),
    ("ServerConfig.maxRequestLength", 1, lambda s: s.server.limits.max_body_bytes, 1024 * 1024),
    ("ServerConfig.managementIpAddress", ..., lambda s: s.server.management.host, "127.0.0.1"),
    ("EnableDynamicAdjustTimeoutConfig", True, lambda s: s.server.limits.e2e_timeout_s, 65535),
    ("MindserveConfig.cacheSizeGb", 0.5, lambda s: s.engine.cache_bytes, 1024**3 // 2),
    ("MindserveConfig.precision", "int4", lambda s: s.engine.precision, Precision.INT4),
    ("MindserveConfig.cachePrecision", "f32", lambda s: s.engine.cache_precision, CachePrecision.F32),
    ("MindserveConfig.apiKey", "k", lambda s: s.server.api_key, "k"),
    ("MindserveConfig.mediaDir", "media", lambda s: s.model.media_dir, Path("/home/media")),
    ("MindserveConfig.preparedDir", "p", lambda s: s.engine.prepared_dir, Path("/home/p")),
    ("MindserveConfig.prefixCache", False, lambda s: s.scheduler.prefix_cache, False),
    ("LogConfig.dynamicLogLevel", "WARN", lambda s: s.log_level, "warning"),
]


@pytest.mark.parametrize(("path", "value", "get", "expected"), ACCEPTED, ids=lambda v: str(v)[:40])
def test_a_value_arrives(path: str, value: Any, get: Callable[[Settings], object], expected: object) -> None:
    assert get(read(path, value)) == expected


def test_an_all_zero_address_needs_its_permission() -> None:
    raw = changed("ServerConfig.allowAllZeroIpListening", True)
    raw["ServerConfig"]["ipAddress"] = "0.0.0.0"
    assert from_json(raw, home=Path("/home")).server.service.host == "0.0.0.0"


def test_metrics_may_not_take_the_service_port_alone() -> None:
    raw = changed("ServerConfig.managementIpAddress", "127.0.0.1")
    raw["ServerConfig"]["metricsPort"] = 1025
    with pytest.raises(ConfigError) as caught:
        from_json(raw, home=Path("/home"))
    assert caught.value.param == "ServerConfig.metricsPort"
    raw["ServerConfig"]["managementPort"] = 1025
    server = from_json(raw, home=Path("/home")).server
    assert server.service == server.management == server.metrics


def test_chunked_prefill_lifts_the_bound_on_prefill_tokens() -> None:
    raw = changed(f"{SCHEDULE}.maxPrefillTokens", 100)
    raw["BackendConfig"]["ScheduleConfig"]["templateType"] = "Mix"
    assert from_json(raw, home=Path("/home")).scheduler.max_prefill_tokens == 100


def test_adapters_and_plugins() -> None:
    raw = changed(f"{DEPLOY}.LoraModules", [{"name": "a1", "path": "/l/a1", "baseModelName": "llama_65b"}])
    params = json.dumps({"plugin_type": "memory_decoding, prefix_cache", "decoding_length": 12})
    raw["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]["plugin_params"] = params
    settings = from_json(raw, home=Path("/home"))
    assert [(a.name, a.path) for a in settings.model.adapters] == [("a1", Path("/l/a1"))]
    assert settings.model.plugin_types == {"memory_decoding", "prefix_cache"}
    assert settings.scheduler.max_ngram_draft == 12
    raw["MindserveConfig"] = {"maxDraftTokens": 3}
    assert from_json(raw, home=Path("/home")).scheduler.max_ngram_draft == 3


@pytest.mark.parametrize("names", [["llama_65b"], ["a", "a"]])
def test_adapter_names_must_differ(names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"{DEPLOY}.LoraModules", [{"name": name, "path": "/l"} for name in names])
    assert caught.value.param == f"{DEPLOY}.LoraModules[{len(names) - 1}].name"


def test_the_mode_alone_can_be_read_again() -> None:
    assert api_mode(document()) is ApiMode.VLLM
    assert api_mode(changed("ServerConfig.openAiSupport", "openai")) is ApiMode.NATIVE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1,}', "nope", "[" * 100000, '"x"'])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(file) in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.json")
