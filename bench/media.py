"""What a picture costs the others: inter-token latency of 8 text streams while a large image is processed, and before.

usage: python -m bench.media [--tokens-per-side 36] [--trials 3] [--published]

The model has Qwen2-VL-2B's published widths and random weights; by default four layers of each, so that it is made in
seconds. The engine is asked directly, in its fast mode.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from bench.results import save, versions
from mindserve.engine.base import GenerateRequest, MediaInput, MediaKind, SamplingParams
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.settings.values import EngineSettings, ModelSettings, SchedulerSettings, Settings

HIDDEN, INNER, KV, VOCABULARY = 1536, 8960, 256, 151936
TOWER, TOWER_INNER, MERGED = 1280, 5120, 5120
IMAGE_TOKEN = 151655
STREAMS, PROMPT_TOKENS, STREAM_TOKENS = 8, 64, 8000
SETTLE_S, BEFORE_S = 2.0, 6.0


def config(layers: int, tower_layers: int) -> dict[str, Any]:
    """As config.json."""
    tower = {"depth": tower_layers, "embed_dim": TOWER, "num_heads": 16, "mlp_ratio": 4, "hidden_size": HIDDEN}
    return {
        "model_type": "qwen2_vl",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32768,
        "image_token_id": IMAGE_TOKEN,
        "video_token_id": IMAGE_TOKEN + 1,
        "vision_config": tower,
    }


class RandomWeights:
    """Tensors cut out of one block of noise: fast to make, and no two alike."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._noise = (self._rng.standard_normal(1 << 20) * 0.02).astype(np.float16)
        self.tensors: dict[str, NDArray[np.float16]] = {}

    def matrix(self, name: str, *shape: int) -> None:
        shifted = np.roll(self._noise, int(self._rng.integers(len(self._noise))))
        self.tensors[name] = np.resize(shifted, shape)

    def norm(self, name: str, size: int, *, has_bias: bool = False) -> None:
        self.tensors[name + ".weight"] = np.ones(size, np.float16)
        if has_bias:
            self.tensors[name + ".bias"] = np.zeros(size, np.float16)

    def linear(self, name: str, rows: int, columns: int) -> None:
        self.matrix(name + ".weight", rows, columns)
        self.tensors[name + ".bias"] = np.zeros(rows, np.float16)


def write_model(folder: Path, layers: int, tower_layers: int) -> None:
    """A checkpoint of so many layers."""
    weights = RandomWeights()
    weights.matrix("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    weights.norm("model.norm", HIDDEN)
    for layer in range(layers):
        _text_layer(weights, f"model.layers.{layer}.")
    weights.matrix("visual.patch_embed.proj.weight", TOWER, 3, 2, 14, 14)
    for layer in range(tower_layers):
        _tower_layer(weights, f"visual.blocks.{layer}.")
    weights.norm("visual.merger.ln_q", TOWER, has_bias=True)
    weights.linear("visual.merger.mlp.0", MERGED, MERGED)
    weights.linear("visual.merger.mlp.2", HIDDEN, MERGED)
    (folder / "config.json").write_text(json.dumps(config(layers, tower_layers)))
    save_file(weights.tensors, folder / "model.safetensors")


def _text_layer(weights: RandomWeights, prefix: str) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights.norm(prefix + name, HIDDEN)
    for name, rows in (("q", HIDDEN), ("k", KV), ("v", KV)):
        weights.linear(f"{prefix}self_attn.{name}_proj", rows, HIDDEN)
    weights.matrix(prefix + "self_attn.o_proj.weight", HIDDEN, HIDDEN)
    for name in ("gate", "up"):
        weights.matrix(f"{prefix}mlp.{name}_proj.weight", INNER, HIDDEN)
    weights.matrix(prefix + "mlp.down_proj.weight", HIDDEN, INNER)


def _tower_layer(weights: RandomWeights, prefix: str) -> None:
    for name in ("norm1", "norm2"):
        weights.norm(prefix + name, TOWER, has_bias=True)
    weights.linear(prefix + "attn.qkv", 3 * TOWER, TOWER)
    weights.linear(prefix + "attn.proj", TOWER, TOWER)
    weights.linear(prefix + "mlp.fc1", TOWER_INNER, TOWER)
    weights.linear(prefix + "mlp.fc2", TOWER, TOWER_INNER)


@dataclass
class Stream:
    """When the events of one text stream came."""

    times: list[float] = field(default_factory=list[float])

    async def run(self, engine: NativeEngine, number: int) -> None:
        prompt = list(range(1000 * number, 1000 * number + PROMPT_TOKENS))
        sampling = SamplingParams(temperature=0, max_tokens=STREAM_TOKENS, ignore_eos=True)
        request = GenerateRequest(request_id=f"text-{number}", prompt_token_ids=prompt, sampling=sampling)
        async for events in engine.submit(request):
            if events[-1].error is not None:
                raise events[-1].error
            self.times.append(perf_counter())

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between events that lie within."""
        return np.diff([time for time in self.times if begin <= time <= end]).tolist()


async def image_s(engine: NativeEngine, side: int) -> tuple[float, float]:
    """Send an image that nobody has seen; when that was, and when its first token came."""
    tokens = side * side
    pixels = np.random.default_rng().standard_normal((4 * tokens, 1176), np.float32)
    features = {"pixel_values": pixels, "grid_thw": np.array([1, 2 * side, 2 * side])}
    image = MediaInput(kind=MediaKind.IMAGE, offset=8, length=tokens, features=features, digest=os.urandom(16))
    prompt = [7] * 8 + [IMAGE_TOKEN] * tokens + [8] * 8
    request = GenerateRequest(
        request_id="image", prompt_token_ids=prompt, media=(image,), sampling=SamplingParams(max_tokens=1)
    )
    begin = perf_counter()
    async for events in engine.submit(request):
        if events[-1].error is not None:
            raise events[-1].error
    return begin, perf_counter()


async def measure(engine: NativeEngine, side: int, trials: int) -> dict[str, Any]:
    """The image alone, then beside the streams."""
    alone_begin, alone_end = await image_s(engine, side)
    streams = [Stream() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(stream.run(engine, number)) for number, stream in enumerate(streams)]
    results = [await trial(engine, streams, side) for _ in range(trials)]
    for task in tasks:
        task.cancel()
    return {
        "median_ratio": round(statistics.median(each["itl_ratio"] for each in results), 2),
        "image_alone_s": round(alone_end - alone_begin, 2),
        "trials": results,
    }


async def trial(engine: NativeEngine, streams: list[Stream], side: int) -> dict[str, float]:
    """Median latencies before and while one image is processed."""
    await asyncio.sleep(SETTLE_S + BEFORE_S)
    begin, end = await image_s(engine, side)
    if any(not stream.times or stream.times[-1] < end - BEFORE_S for stream in streams):
        raise SystemExit("a stream ended before the image was read")
    before = [gap for stream in streams for gap in stream.gaps(begin - BEFORE_S, begin)]
    during = [gap for stream in streams for gap in stream.gaps(begin, end)]
    return {
        "itl_before_ms": round(1000 * statistics.median(before), 1),
        "itl_during_ms": round(1000 * statistics.median(during), 1),
        "itl_during_p95_ms": round(1000 * float(np.percentile(during, 95)), 1),
        "itl_ratio": round(statistics.median(during) / statistics.median(before), 2),
        "image_s": round(end - begin, 2),
    }


async def run(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(
        model=ModelSettings(name="random", path=folder, max_seq_len=9000, max_input_len=8000),
        scheduler=SchedulerSettings(max_iter_times=STREAM_TOKENS),
        engine=EngineSettings(prepared_dir=folder / "prepared", cache_bytes=1 << 30),
    )
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    try:
        return await measure(engine, arguments.tokens_per_side, arguments.trials)
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens-per-side", type=int, default=36, help="of the square image: 28 pixels each")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--published", action="store_true", help="all 28 and 32 layers")
    arguments = parser.parse_args()
    layers, tower_layers = (28, 32) if arguments.published else (4, 4)
    with tempfile.TemporaryDirectory(prefix="mindserve-bench-") as name:
        write_model(Path(name), layers, tower_layers)
        measured = asyncio.run(run(Path(name), arguments))
    print(f"inter-token latency with an image / without: {measured['median_ratio']} (median of {arguments.trials})")
    shape = {"layers": layers, "tower_layers": tower_layers, "image_tokens": arguments.tokens_per_side**2}
    print("written:", save("media", {"versions": versions("mindserve", "openvino"), "shape": shape} | measured))


if __name__ == "__main__":
    main()
