"""What a step costs on the host, beside the model's kernels: planning, arrays, sampling, events.

    python bench/host_step.py [--batch 32] [--vocab 151936] [--context 600] [--steps 300]

The runner answers at once with logits made beforehand: a bulk of improbable tokens and 200 likelier ones, from nearly
certain rows to flat ones, as a language model's are. Prints the mean microseconds of every stage for several ways of
sampling. A stage's time is what the engine's own thread spends in it.
"""

import argparse
import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import GenerateRequest, ModelInfo, SamplingParams
from mindserve.engine.native import stepper as stepper_module
from mindserve.engine.native.step import CANDIDATES, StepBatch
from mindserve.engine.native.stepper import Stepper
from mindserve.engine.native.stream import Stream
from mindserve.settings.values import SchedulerSettings

WAYS = {
    "greedy": SamplingParams(temperature=0, max_tokens=100_000),
    "greedy, logprobs": SamplingParams(temperature=0, max_tokens=100_000, logprobs=5),
    "greedy, repetition 1.1": SamplingParams(temperature=0, max_tokens=100_000, repetition_penalty=1.1),
    "default (top_k 1000)": SamplingParams(max_tokens=100_000, top_k=1000),
    "top_p 0.9": SamplingParams(max_tokens=100_000, top_p=0.9),
    "plain (no top_k)": SamplingParams(max_tokens=100_000),
    "top_k 1000, repetition 1.1": SamplingParams(max_tokens=100_000, top_k=1000, repetition_penalty=1.1),
    "top_k 1000, logprobs": SamplingParams(max_tokens=100_000, top_k=1000, logprobs=5),
}
VARIANTS = 4


@dataclass(frozen=True)
class Output:
    """A step's result, made beforehand."""

    best_ids: NDArray[np.int32]
    candidate_ids: NDArray[np.int32]
    candidate_logits: NDArray[np.float32]
    log_sum_exp: NDArray[np.float32]
    logits: NDArray[np.float32]


def make_output(rng: np.random.Generator, rows: int, vocab: int) -> Output:
    """Rows of different certainty."""
    logits = rng.standard_normal((rows, vocab), np.float32) * 2.2
    for row in logits:
        likely = rng.choice(vocab, 200, replace=False)
        row[likely] = 21 - rng.uniform(1.2, 4) * np.log(np.arange(1, 201)) + rng.normal(0, 0.3, 200)
    ids = np.argsort(-logits, axis=1)[:, :CANDIDATES].astype(np.int32)
    best = np.take_along_axis(logits, ids.astype(np.int64), axis=1)
    log_sum_exp = np.log(np.exp(logits - best[:, :1]).sum(axis=1)) + best[:, 0]
    return Output(ids[:, 0], ids, best, log_sum_exp, logits)


class InstantRunner:
    """Answers at once."""

    block_count = 1 << 14

    def __init__(self, outputs: list[Output]) -> None:
        self._outputs = outputs
        self._steps = 0
        self.vocab_size = outputs[0].logits.shape[1]

    def step(self, batch: StepBatch) -> Output:
        self._steps += 1
        full = self._outputs[self._steps % len(self._outputs)]
        rows = len(batch.sample_rows)
        return Output(
            full.best_ids[:rows],
            full.candidate_ids[:rows],
            full.candidate_logits[:rows],
            full.log_sum_exp[:rows],
            full.logits[:rows],
        )

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None: ...

    def close(self) -> None: ...


class Stopwatch:
    """Sums the time spent in wrapped functions."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def wrap(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object, **options: object) -> object:
            begin = perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[name] += perf_counter() - begin

        return timed


def instrument(stepper: Stepper, watch: Stopwatch, originals: dict[str, Callable[..., object]]) -> None:
    scheduler = stepper._scheduler
    scheduler.schedule = watch.wrap("schedule", scheduler.schedule)
    scheduler.commit = watch.wrap("commit", scheduler.commit)
    for name, function in originals.items():
        setattr(stepper_module, name, watch.wrap(name, function))


def measure(params: SamplingParams, runner: InstantRunner, args: argparse.Namespace) -> dict[str, float]:
    """Mean microseconds per stage, and altogether."""
    info = ModelInfo(model_type="none", vocab_size=runner.vocab_size, max_context_len=1 << 20)
    settings = SchedulerSettings(step_token_budget=1 << 20, max_prefill_tokens=1 << 20, max_iter_times=1 << 20)
    stepper = Stepper(runner, info, settings, context_len=1 << 20)
    rng = np.random.default_rng(0)
    for number in range(args.batch):
        prompt = rng.integers(0, runner.vocab_size, args.context).tolist()
        stepper.add(number, GenerateRequest(request_id="", prompt_token_ids=prompt, sampling=params), arrival_s=0)
    streams = [Stream(1, lambda index: None) for _ in range(args.batch)]
    for _ in range(20):
        stepper.step()
        stepper.take_events()
    watch, total = Stopwatch(), 0.0
    instrument(stepper, watch, ORIGINALS)
    gc.collect()
    for _ in range(args.steps):
        begin = perf_counter()
        stepper.step()
        events = stepper.take_events()
        total += perf_counter() - begin
        for number, of_request in events.items():
            streams[number].put(of_request)
    stages = {name: 1e6 * seconds / args.steps for name, seconds in watch.seconds.items()}
    return {**stages, "events": 1e6 * total / args.steps - sum(stages.values()), "all": 1e6 * total / args.steps}


ORIGINALS: dict[str, Callable[..., object]] = {
    "build_batch": stepper_module.build_batch,
    "sample": stepper_module.sample,
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--context", type=int, default=600)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    runner = InstantRunner([make_output(rng, args.batch, args.vocab) for _ in range(VARIANTS)])
    print(f"batch {args.batch}, vocabulary {args.vocab}, context {args.context}: microseconds per step")
    for name, params in WAYS.items():
        stages = measure(params, runner, args)
        print(f"{name:28}" + "  ".join(f"{stage} {us:7.0f}" for stage, us in stages.items()))


if __name__ == "__main__":
    asyncio.run(main())
