"""What the precision of the weights and of the KV cache costs: perplexity on data/text.txt, and on its first window how
far the next-token distributions are from those of f32 (mean Kullback-Leibler divergence, share of equal best tokens).

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


def log_probabilities(runner: Runner, window: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    """`[tokens, vocabulary]` for every token that has a next one, step by step."""
    for start in range(0, len(window), CHUNK):
        stop = min(start + CHUNK, len(window))
        rows = runner.step(step_batch(window, start, stop)).logits[: len(window) - 1 - start].astype(np.float32)
        rows -= rows.max(axis=1, keepdims=True)
        yield rows - np.log(np.exp(rows).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)


class Meter:
    """Adds up what one combination gives, compared with the reference's first window where there is one."""

    def __init__(self, reference: list[NDArray[np.float32]] | None) -> None:
        self.first_window: list[NDArray[np.float32]] = []
        self._reference = reference
        self._loss, self._tokens = 0.0, 0
        self._divergence, self._agreeing, self._compared = 0.0, 0, 0

    def read(self, runner: Runner, token_ids: list[int]) -> None:
        """The whole text."""
        for number, window in enumerate(windows(token_ids)):
            targets = window[1:]
            for part, rows in enumerate(log_probabilities(runner, window)):
                chosen = targets[part * CHUNK : part * CHUNK + len(rows)]
                self._loss -= float(rows[np.arange(len(chosen)), chosen].sum(dtype=np.float64))
                self._tokens += len(chosen)
                if number == 0:
                    self._compare(rows, part)

    def _compare(self, rows: NDArray[np.float32], part: int) -> None:
        if self._reference is None:
            self.first_window.append(rows)
            return
        expected = self._reference[part]
        self._divergence += float((np.exp(expected) * (expected - rows)).sum(dtype=np.float64))
        self._agreeing += int((expected.argmax(1) == rows.argmax(1)).sum())
        self._compared += len(rows)

    def result(self) -> dict[str, float]:
        """What is known."""
        found = {"perplexity": float(np.exp(self._loss / self._tokens))}
        if self._compared:
            found["divergence"] = self._divergence / self._compared
            found["agreement"] = self._agreeing / self._compared
        return found


def measure(model: Path, precision: Precision, cache: CachePrecision, meter: Meter) -> dict[str, float]:
    """Load the model in one combination and read the text with it."""
    settings = for_model(model)
    engine = replace(settings.engine, precision=precision, cache_precision=cache, cache_bytes=CACHE_BYTES)
    runner, _ = load_runner(replace(settings, engine=engine))
    try:
        meter.read(runner, load_tokenizer(model).encode(TEXT.read_text()))
        return meter.result()
    finally:
        runner.close()


def print_row(name: str, row: dict[str, float], reference: float) -> None:
    """One line."""
    line = f"{name:32}{row['perplexity']:10.4f}{100 * (row['perplexity'] / reference - 1):+8.2f} %"
    if "divergence" in row:
        line += f"   divergence {row['divergence']:.5f}   same best token {100 * row['agreement']:.1f} %"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["auto", "f16", "int8", "int4"])
    parser.add_argument("--model", type=Path, default=MODEL)
    arguments = parser.parse_args()
    combinations = [(Precision.F32, CachePrecision.F32)]
    combinations += [(Precision(name), CachePrecision.AUTO) for name in arguments.precisions]
    found: dict[str, dict[str, float]] = {}
    reference: list[NDArray[np.float32]] | None = None
    for precision, cache in combinations:
        name = f"weights {precision}, cache {cache}"
        meter = Meter(reference)
        found[name] = measure(arguments.model, precision, cache, meter)
        reference = reference or meter.first_window
        print_row(name, found[name], next(iter(found.values()))["perplexity"])
    print("written:", save("perplexity", {"versions": versions("mindserve", "openvino"), "perplexity": found}))


if __name__ == "__main__":
    main()
