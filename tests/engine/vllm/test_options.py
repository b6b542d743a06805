"""From settings to vLLM's engine arguments, and what is refused on the way."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindserve.engine.base import MediaKind
from mindserve.engine.vllm.model import ModelFacts, adapter_rank, read_facts
from mindserve.engine.vllm.options import check_names, engine_args, prepare_environment
from mindserve.errors import ConfigError, ModelLoadError
from mindserve.settings.values import (
    AdapterSettings,
    CachePrecision,
    EngineSettings,
    ModelSettings,
    ParallelSettings,
    Precision,
    SchedulerSettings,
    Settings,
)

GOLDENS = Path(__file__).parents[2] / "data" / "goldens"
FACTS = ModelFacts(model_type="llama")


def args_of(facts: ModelFacts = FACTS, *, scheduler: SchedulerSettings | None = None, **engine: object) -> dict:
    model = ModelSettings(name="m", path=Path("/models/m"), max_seq_len=4096)
    settings = Settings(model=model, engine=EngineSettings(**engine), scheduler=scheduler or SchedulerSettings())
    return engine_args(settings, facts)


def test_what_the_settings_say_is_what_vllm_is_told() -> None:
    args = args_of(cache_bytes=1 << 30, precision=Precision.F32, cache_precision=CachePrecision.F32)
    assert args["model"] == "/models/m"
    assert (args["dtype"], args["kv_cache_dtype"]) == ("float32", "auto")
    assert args["max_model_len"] == 4096
    assert args["max_num_seqs"] == 200
    assert args["kv_cache_memory_bytes"] == 1 << 30
    assert args["logprobs_mode"] == "processed_logprobs"
    assert args["max_logprobs"] >= 128 + 20
    assert args["skip_tokenizer_init"] is True
    assert "kv_cache_memory_bytes" not in args_of()
    assert "enable_lora" not in args_of()


def test_the_prefix_cache_can_be_off() -> None:
    assert args_of()["enable_prefix_caching"] is True
    assert args_of(scheduler=SchedulerSettings(prefix_cache=False))["enable_prefix_caching"] is False


def test_a_model_with_media_needs_its_tokenizer() -> None:
    seeing = replace(FACTS, media_token_ids={MediaKind.IMAGE: 7})
    assert args_of(seeing)["skip_tokenizer_init"] is False


@pytest.mark.parametrize(
    ("precision", "dtype"), [(Precision.AUTO, "auto"), (Precision.F32, "float32"), (Precision.F16, "float16")]
)
def test_precisions(precision: Precision, dtype: str) -> None:
    assert args_of(precision=precision)["dtype"] == dtype


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_precisions_that_vllm_does_not_have_are_refused_by_name(precision: Precision) -> None:
    with pytest.raises(ConfigError, match="precision") as error:
        args_of(precision=precision)
    assert error.value.param == "MindserveConfig.precision"


@pytest.mark.parametrize("cache", [CachePrecision.U8, CachePrecision.F32])
def test_cache_precisions_that_vllm_does_not_have_are_refused_by_name(cache: CachePrecision) -> None:
    with pytest.raises(ConfigError, match="kv_cache_dtype") as error:
        args_of(cache_precision=cache)
    assert error.value.param == "MindserveConfig.cachePrecision"


def test_parallel_sizes() -> None:
    args = args_of(parallel=ParallelSettings(tensor=4, pipeline=2, data=3))
    assert [args[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data")] == [4, 2, 3]
    assert "distributed_executor_backend" not in args


def test_several_nodes_are_rays_business() -> None:
    args = args_of(parallel=ParallelSettings(tensor=2, spans_nodes=True))
    assert args["distributed_executor_backend"] == "ray"
    assert "data_parallel_backend" not in args
    assert args_of(parallel=ParallelSettings(data=2, spans_nodes=True))["data_parallel_backend"] == "ray"


@pytest.mark.parametrize(("ranks", "taken"), [((4,), 16), ((8, 17), 32), ((200,), 256), ((512, 1), 512), ((900,), 512)])
def test_adapters_get_room_for_the_largest(ranks: tuple[int, ...], taken: int) -> None:
    args = args_of(replace(FACTS, adapter_ranks=ranks))
    assert (args["enable_lora"], args["max_lora_rank"]) == (True, taken)
    assert args["max_loras"] == 4
    assert args["max_cpu_loras"] >= 16


@pytest.mark.parametrize(
    ("count", "rank", "ranks", "taken"),
    [(2, 0, (), (2, 16)), (4, 64, (8,), (4, 64)), (1, 8, (8, 8), (2, 8)), (0, 0, (8,), (3, 16))],
)
def test_the_file_says_how_many_adapters_and_how_large(
    count: int, rank: int, ranks: tuple[int, ...], taken: tuple[int, int]
) -> None:
    model = ModelSettings(name="m", path=Path("/models/m"), max_loras=count, max_lora_rank=rank)
    args = engine_args(Settings(model=model), replace(FACTS, adapter_ranks=ranks))
    assert args["enable_lora"] is True
    assert (args["max_loras"], args["max_lora_rank"]) == (taken[0] + 1, taken[1]), "one place stays empty"


def test_the_operators_own_arguments_win() -> None:
    args = args_of(vllm={"max_num_seqs": 7, "enforce_eager": True, "enable_lora": True})
    assert (args["max_num_seqs"], args["enforce_eager"], args["enable_lora"]) == (7, True, True)


@pytest.mark.parametrize("name", ["model", "logits_processors", "logprobs_mode"])
def test_what_the_server_depends_on_cannot_be_changed(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        args_of(vllm={name: "x"})
    assert error.value.param == f"MindserveConfig.vllm.{name}"


def test_an_unknown_name_is_refused() -> None:
    engine = EngineSettings(vllm={"max_num_seqs": 3, "max_num_sqs": 3})
    with pytest.raises(ConfigError) as error:
        check_names(engine, {"max_num_seqs", "model"})
    assert error.value.param == "MindserveConfig.vllm.max_num_sqs"
    check_names(EngineSettings(vllm={"model": 1}), {"model"})


def test_speculation_is_refused_by_the_key_that_asks_for_it() -> None:
    with pytest.raises(ConfigError) as error:
        args_of(scheduler=SchedulerSettings(max_ngram_draft=4))
    assert error.value.param == "MindserveConfig.maxDraftTokens"
    with pytest.raises(ConfigError) as error:
        args_of(vllm={"speculative_config": {"method": "ngram"}})
    assert error.value.param == "MindserveConfig.vllm.speculative_config"


def test_the_environment_is_completed_not_overruled() -> None:
    settings = Settings(model=ModelSettings(name="m", path=Path("m")), scheduler=SchedulerSettings(max_batch_size=300))
    environment = {"VLLM_NO_USAGE_STATS": "0"}
    prepare_environment(settings, environment)
    assert environment == {
        "VLLM_NO_USAGE_STATS": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "300",
    }


def test_facts_of_a_text_model() -> None:
    llama = GOLDENS / "llama"
    adapters = tuple(AdapterSettings(name=name, path=llama / name) for name in ("lora-r4", "lora-r8"))
    facts = read_facts(ModelSettings(name="m", path=llama / "model", adapters=adapters))
    assert facts.model_type == "llama"
    assert facts.eos_token_ids
    assert facts.adapter_ranks == (4, 8)
    assert not facts.media_token_ids


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen2.5-vl", {MediaKind.IMAGE, MediaKind.VIDEO}),
        ("qwen2-vl", {MediaKind.IMAGE, MediaKind.VIDEO}),
        ("qwen2-audio", {MediaKind.AUDIO}),
    ],
)
def test_facts_of_models_with_media(name: str, kinds: set[MediaKind]) -> None:
    facts = read_facts(ModelSettings(name="m", path=GOLDENS / name / "model"))
    assert set(facts.media_token_ids) == kinds
    assert len(set(facts.media_token_ids.values())) == len(kinds)


def test_gguf_files_are_not_for_vllm(tmp_path: Path) -> None:
    file = GOLDENS / "llama" / "llama.f16.gguf"
    with pytest.raises(ModelLoadError, match="native engine reads GGUF"):
        read_facts(ModelSettings(name="m", path=file))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelLoadError, match="native engine reads GGUF"):
        read_facts(ModelSettings(name="m", path=tmp_path))
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_facts(ModelSettings(name="m", path=tmp_path / "nothing"))


def test_an_adapters_rank_counts_its_exceptions(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4, "rank_pattern": {"q_proj": 24, "k_proj": 2}}')
    assert adapter_rank(tmp_path) == 24
