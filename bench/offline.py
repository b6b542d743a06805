"""Our engine as a contender without HTTP: token ids in, token events out, on an event loop as the server has one.

usage: python -m bench.offline MODEL [--replica]

With `--replica` the engine is a single replica on a Ray cluster.
"""

import asyncio
import sys
import time
from itertools import count

from bench.client import Answer, closed_loop
from bench.figures import Figures, load_figures
from bench.worker_loop import LoadTask, gguf_argument, serve_tasks, waves
from mindserve.cli.engines import make_engine
from mindserve.engine.base import Engine, GenerateRequest, SamplingParams
from mindserve.engine.replicas import ReplicaEngine
from mindserve.settings.overrides import for_model


class Offline:
    """The engine and the loop that it delivers to."""

    def __init__(self, engine: Engine) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = engine
        self._numbers = count()
        self._loop.run_until_complete(self._engine.start())

    def measure(self, task: LoadTask) -> Figures:
        """One task's figures."""
        return self._loop.run_until_complete(self._measure(task))

    async def _measure(self, task: LoadTask) -> Figures:
        async def ask(prompt: list[int]) -> Answer:
            return await self._ask(prompt, task.max_tokens)

        groups = waves(task.prompts, task.concurrency) if task.in_waves else [task.prompts]
        answers: list[Answer] = []
        seconds = 0.0
        for prompts in groups:
            of_group, group_seconds = await closed_loop(ask, prompts, concurrency=task.concurrency)
            answers += of_group
            seconds += group_seconds
        return load_figures(answers, seconds)

    async def _ask(self, prompt: list[int], max_tokens: int) -> Answer:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        answer = Answer(sent_s=time.perf_counter(), prompt_tokens=len(prompt))
        request = GenerateRequest(request_id=str(next(self._numbers)), prompt_token_ids=prompt, sampling=sampling)
        async for events in self._engine.submit(request):
            answer.arrivals_s.append(time.perf_counter())
            answer.output_tokens += sum(len(event.token_ids) for event in events)
        return answer

    def close(self) -> None:
        """End the engine."""
        self._loop.run_until_complete(self._engine.close())


def chosen_engine() -> Engine:
    """As the command line says."""
    settings = for_model(gguf_argument())
    return ReplicaEngine(settings, make=make_engine) if "--replica" in sys.argv else make_engine(settings)


if __name__ == "__main__":
    offline = Offline(chosen_engine())
    serve_tasks(offline.measure)
    offline.close()
