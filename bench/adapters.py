"""What LoRA adapters cost: throughput with none loaded, with two loaded that nobody uses, and with two in use.

usage: python -m bench.adapters [--rank 8] [--batch 16] [--tokens 48] [--rounds 5] [--model MODEL]

All in one process and in turns, so that what the machine does besides falls on all of them alike. Where it does much
besides, the throughput per second of processor time says more. Adapters are random, of all seven projections; half of
the requests of a batch in use take the one, half the other.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bench.compare import MODEL
from bench.results import save, versions
from mindserve.engine.base import GenerateRequest, SamplingParams
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.engine.native.models.loader import read_spec
from mindserve.settings.overrides import for_model

NAMES = ("first", "second")
PROMPT_TOKENS = 64


def write_adapter(folder: Path, model: Path, rank: int, seed: int) -> Path:
    """A random adapter of all projections, small enough to leave sensible hidden states."""
    config = read_spec(model)[0].config
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {f"self_attn.{role}_proj": (rows, hidden) for role, rows in (("q", queries), ("k", keys), ("v", keys))}
    sizes |= {"self_attn.o_proj": (hidden, queries), "mlp.down_proj": (hidden, wide)}
    sizes |= {"mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden)}
    rng, tensors = np.random.default_rng(seed), {}
    for layer in range(config.num_layers):
        for role, (rows, columns) in sizes.items():
            name = f"base_model.model.model.layers.{layer}.{role}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(scale=0.01, size=(rank, columns)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = rng.normal(scale=0.01, size=(rows, rank)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = [role.partition(".")[2] for role in sizes]
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets})
    )
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Output tokens."""

    per_s: float
    per_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Everything once."""

    none: Throughput
    unused: Throughput
    active: Throughput
    load_s: float
    """Of both adapters."""

    def cost_percent(self, kind: str, unit: str) -> float:
        """Share of the throughput without adapters that is lost."""
        return 100 * (1 - getattr(getattr(self, kind), unit) / getattr(self.none, unit))


class Load:
    """Batches of fresh random prompts, all of the same size."""

    def __init__(self, engine: NativeEngine, batch: int, tokens: int) -> None:
        self._engine, self._batch, self._tokens = engine, batch, tokens
        self._random = random.Random(1)

    async def throughput(self, adapters: Sequence[str | None]) -> Throughput:
        """Of one batch, whose requests take the adapters in turn."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*[self._ask(adapters[i % len(adapters)]) for i in range(self._batch)])
        tokens = self._batch * self._tokens
        return Throughput(
            per_s=tokens / (time.perf_counter() - start_s), per_cpu_s=tokens / (time.process_time() - start_cpu_s)
        )

    async def _ask(self, adapter: str | None) -> None:
        prompt = [self._random.randrange(1000, self._engine.info.vocab_size) for _ in range(PROMPT_TOKENS)]
        sampling = SamplingParams(temperature=0, max_tokens=self._tokens, ignore_eos=True)
        request = GenerateRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling, adapter=adapter)
        async for _ in self._engine.submit(request):
            pass


async def one_round(engine: NativeEngine, load: Load, folders: Sequence[Path]) -> Round:
    """Load, measure, unload."""
    none = await load.throughput([None])
    start = time.perf_counter()
    for name, folder in zip(NAMES, folders, strict=True):
        await engine.load_adapter(name, folder)
    load_s = time.perf_counter() - start
    await load.throughput(NAMES)  # the first steps of a graph are slower
    unused = await load.throughput([None])
    active = await load.throughput(NAMES)
    for name in NAMES:
        await engine.unload_adapter(name)
    return Round(none=none, unused=unused, active=active, load_s=load_s)


async def measure(arguments: argparse.Namespace) -> list[Round]:
    engine = NativeEngine(for_model(arguments.model), load=load_runner)
    await engine.start()
    try:
        load = Load(engine, arguments.batch, arguments.tokens)
        await load.throughput([None])
        with tempfile.TemporaryDirectory(prefix="mindserve-bench-") as base:
            folders = [
                write_adapter(Path(base) / name, arguments.model, arguments.rank, i) for i, name in enumerate(NAMES)
            ]
            return [await one_round(engine, load, folders) for _ in range(arguments.rounds)]
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    rounds = asyncio.run(measure(arguments))
    costs = {
        f"{kind}_{unit}": round(statistics.median(each.cost_percent(kind, unit) for each in rounds), 1)
        for kind in ("unused", "active")
        for unit in ("per_s", "per_cpu_s")
    }
    print(f"{arguments.batch} sequences, two adapters of rank {arguments.rank}, median of {arguments.rounds} rounds:")
    print("unused: {unused_per_s} % less per second, {unused_per_cpu_s} % per second of processor time".format(**costs))
    print("in use: {active_per_s} % less per second, {active_per_cpu_s} % per second of processor time".format(**costs))
    content = {"versions": versions("mindserve", "openvino"), "cost_percent": costs}
    print("written:", save("adapters", content | {"rounds": [asdict(each) for each in rounds]}))


if __name__ == "__main__":
    main()
