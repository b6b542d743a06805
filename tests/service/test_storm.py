"""Many requests that end in every way at once leave nothing behind."""

import asyncio
import random

import pytest

from mindserve.engine.scripted import Answer
from mindserve.errors import MindserveError
from mindserve.service import Outcome
from mindserve.settings.values import Limits

from .house import House, ends, house

ANSWERS = (
    Answer(match="fail", text="abcdef", fail_after=3),
    Answer(match="hang", text="abcdef", hang_after=2),
    Answer(match="no", refuse="no"),
    Answer(match="slow", text="a" * 40, first_delay_s=0.01),
    Answer(match="fast", sequences=("a#b", "cd", "efghij"), tokens_per_step=2),
    Answer(text="plain"),
)
TEXTS = ["fail", "hang", "no", "slow", "fast", "refuse", "hi", "x" * 3000]


async def _one(at: House, request_id: str, rng: random.Random) -> None:
    """Read all of it, or leave after some steps; either way each choice ends at most once."""
    n = rng.choice([1, 1, 3])
    patience = rng.choice([0, 1, 2, 1000])
    stream = await at.open(rng.choice(TEXTS), request_id=request_id, n=n, stop=rng.choice([(), ("#",)]), max_tokens=20)
    events = []
    try:
        async for step in stream:
            events += step
            patience -= 1
            if patience <= 0:
                break
        else:
            assert sorted(index for index, _ in ends(events)) == list(range(n))
    finally:
        stream.close()
    assert len({index for index, _ in ends(events)}) == len(ends(events))


async def _disturb(at: House, tasks: list[asyncio.Task[None]], rng: random.Random) -> None:
    while any(not task.done() for task in tasks):
        await asyncio.sleep(rng.random() / 500)
        victim = rng.randrange(len(tasks))
        if rng.random() < 0.5:
            tasks[victim].cancel()
        else:
            at.service.stop(str(victim))


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_left_after_a_storm(seed: int) -> None:
    rng = random.Random(seed)
    limits = Limits(max_link_num=8, token_timeout_s=0.05, e2e_timeout_s=0.5)
    async with house(*ANSWERS, limits=limits, step_interval_s=0.001) as at:
        tasks: list[asyncio.Task[None]] = []
        disturber: asyncio.Task[None] | None = None
        for i in range(120):
            tasks.append(asyncio.create_task(_one(at, str(i), rng)))
            if i % 12 == 0:
                disturber = disturber or asyncio.create_task(_disturb(at, tasks, rng))
                await asyncio.sleep(0.005)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert disturber is not None
        await disturber
        bugs = [
            result for result in results if isinstance(result, Exception) and not isinstance(result, MindserveError)
        ]
        assert bugs == []
        assert (at.service.admission.running, at.service.admission.waiting) == (0, 0)
        assert at.engine.stats().running == 0
        assert sorted(at.records.arrived) == sorted(timeline.request_id for timeline in at.records.finished)
        outcomes = {timeline.outcome for timeline in at.records.finished}
        assert None not in outcomes
        assert outcomes >= {Outcome.FINISHED, Outcome.REFUSED}
        async with asyncio.timeout(5):
            await at.service.close(drain_timeout_s=4)
