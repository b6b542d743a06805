"""OpenVINO GenAI's C++ continuous-batching pipeline as a contender without HTTP. Runs in the rivals' environment.

usage: .venv-rivals/bin/python -m bench.rivals.genai MODEL.gguf [PRECISION]

PRECISION is what it computes in (`f32`); without it, what the runtime prefers on the processor.
"""

import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

from bench.worker_loop import LoadTask, gguf_argument, serve_tasks, waves

CACHE_GB = 2


class Pipeline:
    """The pipeline and what its requests have in common."""

    def __init__(self) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        properties = {"INFERENCE_PRECISION_HINT": sys.argv[2]} if len(sys.argv) > 2 else {}
        self._pipeline = genai.ContinuousBatchingPipeline(str(gguf_argument()), scheduler, "CPU", properties)

    def measure(self, task: LoadTask) -> dict[str, float]:
        """Always in waves: that is how the pipeline's `generate` works."""
        settings = genai.GenerationConfig()
        settings.max_new_tokens = task.max_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        started = time.perf_counter()
        output_tokens = sum(self._wave(prompts, settings) for prompts in waves(task.prompts, task.concurrency))
        seconds = time.perf_counter() - started
        return {
            "seconds": round(seconds, 4),
            "requests": len(task.prompts),
            "output_tokens": output_tokens,
            "output_tokens_per_s": round(output_tokens / seconds, 2),
        }

    def _wave(self, prompts: list[list[int]], settings: genai.GenerationConfig) -> int:
        tensors = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [settings] * len(tensors))
        return sum(len(result.m_generation_ids[0]) for result in results)


if __name__ == "__main__":
    serve_tasks(Pipeline().measure)
