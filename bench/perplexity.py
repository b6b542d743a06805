"""What the precision of the weights and of the KV cache costs: the model's perplexity on data/text.txt.

usage: python -m bench.perplexity [--precisions auto,f16,int8,int4] [--model MODEL]

Every combination runs through the engine's own runner, in chunks as the server's prompts do. The first one, f32 with an
f32 cache, is the reference that the others are compared with.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.compare import MODEL
from bench.results import save, versions
from mindserve.engine.native.load import load_runner
from mindserve.engine.native.step import BLOCK_SIZE, Runner, StepBatch
from mindserve.settings.overrides import for_model
from mindserve.settings.values import CachePrecision, Precision
from mindserve.text.load import load_tokenizer

TEXT = Path(__file__).parent / "data" / "text.txt"
CONTEXT = 1024
"""Tokens of a window; each window begins with an empty context."""
CHUNK = 256
"""Tokens of a step."""
CACHE_BYTES = 256 * 2**20


def windows(token_ids: list[int]) -> Iterator[NDArray[np.int64]]:
    """The text in pieces of CONTEXT tokens; one last token alone has nothing to predict."""
    for start in range(0, len(token_ids), CONTEXT):
        window = np.array(token_ids[start : start + CONTEXT], np.int64)
        if len(window) > 1:
            yield window


def step_batch(window: NDArray[np.int64], start: int, stop: int) -> StepBatch:
    """Tokens `start` to `stop` of one sequence that owns the first blocks; every row's logits are wanted."""
    blocks = -(-stop // BLOCK_SIZE)
    return StepBatch(
        token_ids=window[start:stop],
        positions=np.arange(start, stop),
        past_lens=np.array([start], np.int32),
        subsequence_begins=np.array([0, stop - start], np.int32),
        block_indices=np.arange(1, blocks + 1, dtype=np.int32),
        block_indices_begins=np.array([0, blocks], np.int32),
        max_context_len=stop,
        sample_rows=np.arange(stop - start),
        inverse_temperature=np.ones(stop - start, np.float32),
    )


def window_loss(runner: Runner, window: NDArray[np.int64]) -> float:
    """Sum of the negative log-probabilities of tokens 1 to the last."""
    loss = 0.0
    for start in range(0, len(window), CHUNK):
        stop = min(start + CHUNK, len(window))
        logits = runner.step(step_batch(window, start, stop)).logits.astype(np.float64)
        targets = window[start + 1 : stop + 1]
        rows = logits[: len(targets)]
        peaks = rows.max(axis=1, keepdims=True)
        log_sums = peaks[:, 0] + np.log(np.exp(rows - peaks).sum(axis=1))
        loss += float((log_sums - rows[np.arange(len(targets)), targets]).sum())
    return loss


def perplexity(runner: Runner, token_ids: list[int]) -> float:
    """exp of the mean loss over the text."""
    pieces = list(windows(token_ids))
    predicted = sum(len(window) - 1 for window in pieces)
    return float(np.exp(sum(window_loss(runner, window) for window in pieces) / predicted))


def measure(model: Path, precision: Precision, cache: CachePrecision) -> float:
    """Load the model in one combination and measure."""
    settings = for_model(model)
    engine = replace(settings.engine, precision=precision, cache_precision=cache, cache_bytes=CACHE_BYTES)
    runner, _ = load_runner(replace(settings, engine=engine))
    try:
        return perplexity(runner, load_tokenizer(model).encode(TEXT.read_text()))
    finally:
        runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["auto", "f16", "int8", "int4"])
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    combinations = [(Precision.F32, CachePrecision.F32)]
    combinations += [(Precision(name), CachePrecision.AUTO) for name in arguments.precisions]
    found: dict[str, float] = {}
    for precision, cache in combinations:
        name = f"weights {precision}, cache {cache}"
        found[name] = measure(arguments.model, precision, cache)
        reference = next(iter(found.values()))
        print(f"{name:32}{found[name]:10.4f}{100 * (found[name] / reference - 1):+8.2f} %", flush=True)
    print("written:", save("perplexity", {"versions": versions("mindserve", "openvino"), "perplexity": found}))


if __name__ == "__main__":
    main()
