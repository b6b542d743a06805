"""Before the start, and the end."""

import pytest
from tests.engine.contract.harness import Factory, LifeCheck, Running, Traits, started
from tests.engine.contract.reading import Reading, read

from mindserve.engine.base import FinishReason
from mindserve.errors import NotReady


async def is_not_ready_before_it_has_started(make: Factory, traits: Traits) -> None:
    async with make() as engine:
        with pytest.raises(NotReady):
            engine.submit(Running(engine=engine, traits=traits).request())
        await engine.close()


async def close_ends_what_runs_and_refuses_the_rest(make: Factory, traits: Traits) -> None:
    async with started(make, traits) as its:
        requests = [its.request(n=2, salt=i, temperature=1.0, max_tokens=traits.long_answer) for i in range(3)]
        streams = [its.engine.submit(request) for request in requests]
        first = await anext(aiter(streams[0]))
        info = its.engine.info
        await its.engine.close()
        assert not its.engine.is_healthy
        readings = [
            await read(stream, request, info) for stream, request in zip(streams[1:], requests[1:], strict=True)
        ]
        readings.append(Reading(events=first + [event async for events in streams[0] for event in events]))
        for reading in readings:
            assert [reading.reason(index) for index in (0, 1)] == [FinishReason.CANCELLED] * 2
        with pytest.raises(NotReady):
            its.engine.submit(requests[0])
        streams[0].cancel()
        await its.engine.close()


def life_checks() -> list[LifeCheck]:
    """What fresh engines are put through."""
    return [is_not_ready_before_it_has_started, close_ends_what_runs_and_refuses_the_rest]
