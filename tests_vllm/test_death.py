"""vLLM's processes die: callers hear of it, and another engine can take the place in the same process."""

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from mindserve.engine.base import FinishReason
from mindserve.engine.vllm.engine import VllmEngine
from mindserve.errors import EngineFailure, NotReady
from tests_vllm.engines import events_of, request, settings_for, started, tokens_of


def core_processes() -> list[int]:
    """Of all vLLMs that this process has started."""
    return [child.pid for child in multiprocessing.active_children() if child.pid and "EngineCore" in child.name]


async def test_a_killed_core_and_its_successor(tiny: Path) -> None:
    settings = settings_for(tiny / "model")
    engine = VllmEngine(settings)
    await engine.start()
    expected = tokens_of(await events_of(engine.submit(request([7] * 9, max_tokens=400))))
    streams = [engine.submit(request([40 + i] * 9, max_tokens=400, n=2, temperature=1.0)) for i in range(8)]
    streams.append(engine.submit(request([9] * 9, n=3, use_beam_search=True, max_tokens=400)))
    await anext(aiter(streams[0]))
    (victim,) = core_processes()
    os.kill(victim, signal.SIGKILL)
    async with asyncio.timeout(30):
        for stream in streams:
            ends = [event for event in await events_of(stream) if event.finish_reason]
            assert {end.finish_reason for end in ends} == {FinishReason.ERROR}
            assert len(ends) == len(stream.sequences)
            assert {str(end.error) for end in ends} == {"The engine stopped working."}
            assert all(isinstance(end.error, EngineFailure) for end in ends)
    assert not engine.is_healthy
    with pytest.raises(NotReady):
        engine.submit(request([1]))
    await engine.close()
    assert not core_processes()
    async with started(settings) as successor:
        assert tokens_of(await events_of(successor.submit(request([7] * 9, max_tokens=400)))) == expected
        assert successor.is_healthy
    assert not core_processes()


async def test_an_idle_engines_death_shows_in_its_health(tiny: Path) -> None:
    async with started(settings_for(tiny / "model")) as engine:
        (victim,) = core_processes()
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(30):
            while engine.is_healthy:  # noqa: ASYNC110 - nothing tells when it changes
                await asyncio.sleep(0.05)
