"""The embedded engine for the benchmarks that ask it directly, and what one request's events say."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from time import perf_counter

from mindserve.engine.base import GenerateRequest, SamplingParams, TokenLogprob
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.load import load_runner
from mindserve.settings.overrides import for_model
from mindserve.settings.values import CachePrecision, Precision

_numbers = count()


@dataclass(slots=True)
class Result:
    """One request, watched from outside."""

    sent_s: float
    arrivals_s: list[float] = field(default_factory=list[float])
    """When each event list came."""
    token_ids: list[int] = field(default_factory=list[int])
    """Of the first sequence."""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    cumulative_logprob: float = 0.0

    @property
    def first_s(self) -> float:
        """Time to the first tokens."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def rest_s(self) -> float:
        """Time from the first tokens to the last."""
        return self.arrivals_s[-1] - self.arrivals_s[0]


async def start(model: Path, *, precision: Precision = Precision.AUTO, **scheduler: float) -> NativeEngine:
    """An engine of its own; `scheduler` are fields of SchedulerSettings."""
    settings = for_model(model)
    settings = replace(
        settings,
        scheduler=replace(settings.scheduler, **scheduler),
        engine=replace(
            settings.engine,
            precision=precision,
            cache_precision=CachePrecision.F32 if precision is Precision.F32 else CachePrecision.AUTO,
        ),
    )
    engine = NativeEngine(settings, load=load_runner)
    await engine.start()
    return engine


async def ask(
    engine: NativeEngine, prompt: Sequence[int], sampling: SamplingParams, *, n: int = 1, use_beam_search: bool = False
) -> Result:
    """Send one request and watch it to its end."""
    result = Result(perf_counter())
    request = GenerateRequest(
        request_id=str(next(_numbers)), prompt_token_ids=prompt, sampling=sampling, n=n, use_beam_search=use_beam_search
    )
    async for events in engine.submit(request):
        result.arrivals_s.append(perf_counter())
        for event in events:
            if event.index == 0:
                result.token_ids += event.token_ids
                result.logprobs += event.logprobs or ()
                result.cumulative_logprob = event.cumulative_logprob
    return result


def greedy(max_tokens: int, *, logprobs: int | None = None, ignore_eos: bool = True) -> SamplingParams:
    """The best token, so many times."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos, logprobs=logprobs)
