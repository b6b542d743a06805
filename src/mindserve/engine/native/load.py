"""From settings to a model that runs: prepare the graph, choose kernels, size the KV memory."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mindserve.engine.base import ModelInfo
from mindserve.engine.native.adapters.loaded import BaseModel
from mindserve.engine.native.kernels import bound_shared_kernels, kernels_for
from mindserve.engine.native.memory import default_cache_bytes, usable_cores
from mindserve.engine.native.models.loader import LoadedModel, read_spec
from mindserve.engine.native.models.prepared import prepare_model
from mindserve.engine.native.runner import NativeRunner
from mindserve.engine.native.step import BLOCK_SIZE
from mindserve.engine.native.towers import NativeTowers
from mindserve.settings.values import Settings

Progress = Callable[[str, float], None]
"""Told what is being done, and the share of it that is done."""


def _silent(_what: str, _share: float) -> None:
    """Nobody watches."""


def load_runner(settings: Settings, *, progress: Progress = _silent) -> tuple[NativeRunner, ModelInfo]:
    """The configured model, ready to step. Raises ModelLoadError."""
    bound_shared_kernels()
    engine = settings.engine
    store = engine.prepared_dir or _default_store()
    longest = settings.model.max_seq_len
    prepare = partial(
        prepare_model, settings.model.path, engine.precision, cache_dir=store, progress=progress, max_context=longest
    )
    model = prepare()
    threads = engine.threads or usable_cores()
    kernels = kernels_for(engine.precision, engine.cache_precision)
    progress("compiling", 0.0)
    runner = NativeRunner(
        model.graph,
        kernels,
        threads=threads,
        count_blocks=_block_counter(settings, model),
        towers=None if model.towers is None else NativeTowers(model.towers, kernels, threads=threads),
        open_model=lambda: BaseModel(prepare().graph, *read_spec(settings.model.path)),
    )
    progress("compiling", 1.0)
    return runner, _info(settings, model)


def _default_store() -> Path:
    return Path.home() / ".cache" / "mindserve"


def _block_counter(settings: Settings, model: LoadedModel) -> Callable[[int], int]:
    """How many KV blocks to make, given the bytes of one."""
    per_sequence = -(-min(settings.model.max_seq_len, model.config.max_position) // BLOCK_SIZE)
    wanted = per_sequence * settings.scheduler.max_batch_size

    def count(block_bytes: int) -> int:
        memory = settings.engine.cache_bytes or default_cache_bytes(
            block_bytes=block_bytes, blocks_wanted=wanted, blocks_needed=per_sequence + 2
        )
        return max(2, memory // block_bytes)

    return count


def _info(settings: Settings, model: LoadedModel) -> ModelInfo:
    config = model.config
    return ModelInfo(
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        max_context_len=min(config.max_position, settings.model.max_seq_len),
        eos_token_ids=config.eos_token_ids,
        default_top_k=config.default_top_k,
        block_size=BLOCK_SIZE,
        media_token_ids={} if model.towers is None else model.towers.spec.placeholders,
    )
