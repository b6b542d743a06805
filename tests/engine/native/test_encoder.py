"""Requests with media: what waits for the towers, what goes on meanwhile, and how it ends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from fake_runner import FakeRunner, fake_info
from numpy.typing import NDArray

from mindserve.engine.base import (
    FinishReason,
    GenerateRequest,
    MediaInput,
    MediaKind,
    ModelInfo,
    SamplingParams,
    TokenEvent,
    TokenStream,
)
from mindserve.engine.native import encoder
from mindserve.engine.native.encoder import EmbeddingCache
from mindserve.engine.native.engine import NativeEngine
from mindserve.engine.native.media import RequestMedia
from mindserve.errors import EngineFailure, Overloaded
from mindserve.settings.values import ModelSettings, Settings

SETTINGS = Settings(model=ModelSettings(name="fake", path=Path("fake"), max_seq_len=1000, max_input_len=900))
PAD = 199


@dataclass
class FakeTowers:
    """Embeds a picture as its first pixel plus the place of each token; waits while `gate` is closed."""

    gate: Event = field(default_factory=Event)
    started: Event = field(default_factory=Event)
    interrupted: Event = field(default_factory=Event)
    interrupts: int = 0
    read: list[bytes] = field(default_factory=list[bytes])

    def encode(self, media: MediaInput) -> NDArray[np.float32]:
        self.started.set()
        is_open = False
        while not is_open:
            is_open = self.gate.wait(0.01)
            if self.interrupted.is_set():
                self.interrupted.clear()
                raise EngineFailure("interrupted")
        if media.digest == b"broken":
            raise EngineFailure("The model could not read the image.")
        self.read.append(media.digest)
        first = float(media.features["pixel_values"][0])
        return (first + np.arange(media.length, dtype=np.float32))[:, None].repeat(4, 1)

    def positions(self, length: int, media: Sequence[MediaInput]) -> None:
        return None

    def interrupt(self) -> None:
        self.interrupts += 1
        self.interrupted.set()


def picture(digest: bytes = b"a", *, offset: int = 2, length: int = 40, pixel: int = 7) -> MediaInput:
    features = {"pixel_values": np.full(8, pixel, np.float32)}
    return MediaInput(kind=MediaKind.IMAGE, offset=offset, length=length, features=features, digest=digest)


def ask(*media: MediaInput, n: int = 1, max_tokens: int = 6) -> GenerateRequest:
    prompt = [1, 2]
    for item in media:
        prompt += [PAD] * item.length
    sampling = SamplingParams(temperature=0.0 if n == 1 else 1.0, seed=1, max_tokens=max_tokens)
    return GenerateRequest(request_id="r", prompt_token_ids=[*prompt, 3], media=media, sampling=sampling, n=n)


def plain(prompt: list[int], max_tokens: int = 6) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return GenerateRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling)


@asynccontextmanager
async def running(towers: FakeTowers) -> AsyncIterator[NativeEngine]:
    def load(_settings: Settings) -> tuple[FakeRunner, ModelInfo]:
        info = replace(fake_info(), media_token_ids={MediaKind.IMAGE: PAD})
        return FakeRunner(towers=towers), info

    engine = NativeEngine(SETTINGS, load=load)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def read(stream: TokenStream) -> list[TokenEvent]:
    return [event async for events in stream for event in events]


def tokens(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


async def until(event: Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


async def test_media_are_what_the_prompt_says() -> None:
    """The fake's logits follow from the history that its blocks hold, embeddings included."""
    towers = FakeTowers()
    towers.gate.set()
    async with running(towers) as engine:
        seen = tokens(await read(engine.submit(ask(picture(pixel=7)))))
        other = tokens(await read(engine.submit(ask(picture(b"b", pixel=70)))))
        as_text = tokens(await read(engine.submit(plain([1, 2, *range(7, 47), 3]))))
    assert seen == as_text
    assert seen != other


async def test_running_streams_go_on_while_a_tower_works() -> None:
    towers = FakeTowers()
    async with running(towers) as engine:
        waiting = engine.submit(ask(picture()))
        await until(towers.started)
        events = await read(engine.submit(plain([1, 2, 3], max_tokens=200)))
        assert len(tokens(events)) == 200
        assert engine.stats().waiting == 1
        towers.gate.set()
        assert len(tokens(await read(waiting))) == 6


async def test_the_engine_sleeps_while_only_towers_work() -> None:
    towers = FakeTowers()
    runner = FakeRunner(towers=towers)
    info = replace(fake_info(), media_token_ids={MediaKind.IMAGE: PAD})
    engine = NativeEngine(SETTINGS, load=lambda _settings: (runner, info))
    await engine.start()
    stream = engine.submit(ask(picture()))
    await until(towers.started)
    stepper_steps = runner.steps
    towers.gate.set()
    await read(stream)
    await engine.close()
    assert stepper_steps == 0
    assert runner.steps == 6


async def test_known_media_are_not_read_again() -> None:
    towers = FakeTowers()
    towers.gate.set()
    async with running(towers) as engine:
        for request in (ask(picture()), ask(picture(b"b"), picture(b"a", offset=42)), ask(picture(b"b"))):
            await read(engine.submit(request))
    assert towers.read == [b"a", b"b"]


async def test_a_failing_tower_ends_its_own_request_only() -> None:
    towers = FakeTowers()
    towers.gate.set()
    async with running(towers) as engine:
        broken, whole = (engine.submit(ask(picture(digest), n=2)) for digest in (b"broken", b"whole"))
        ends = [event for event in await read(broken) if event.finish_reason]
        assert [(event.index, event.finish_reason) for event in ends] == [
            (0, FinishReason.ERROR),
            (1, FinishReason.ERROR),
        ]
        assert all(isinstance(event.error, EngineFailure) for event in ends)
        assert len(tokens(await read(whole))) == 12
        assert engine.is_healthy
        assert engine.stats().waiting == engine.stats().running == 0


async def test_cancelling_while_a_tower_works() -> None:
    towers = FakeTowers()
    async with running(towers) as engine:
        first, second = engine.submit(ask(picture(), n=2)), engine.submit(ask(picture(b"b")))
        await until(towers.started)
        second.cancel()
        assert towers.interrupts == 0
        first.cancel()
        assert towers.interrupts == 1
        for stream, count in ((first, 2), (second, 1)):
            assert [event.finish_reason for event in await read(stream)] == [FinishReason.CANCELLED] * count
        towers.gate.set()
        assert len(tokens(await read(engine.submit(ask(picture(b"c")))))) == 6
    assert towers.read == [b"c"]


async def test_one_sequence_cancelled_while_a_tower_works() -> None:
    towers = FakeTowers()
    async with running(towers) as engine:
        stream = engine.submit(ask(picture(), n=3))
        await until(towers.started)
        stream.cancel(0)
        towers.gate.set()
        events = await read(stream)
    assert [event.finish_reason for event in events if event.index == 0] == [FinishReason.CANCELLED]
    assert [len(tokens([event for event in events if event.index == index])) for index in (1, 2)] == [6, 6]


async def test_closing_while_a_tower_works() -> None:
    towers = FakeTowers()
    async with running(towers) as engine:
        streams = [engine.submit(ask(picture(digest))) for digest in (b"a", b"b")]
        await until(towers.started)
    for stream in streams:
        assert [event.finish_reason for event in await read(stream)] == [FinishReason.CANCELLED]


async def test_features_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    towers = FakeTowers()
    monkeypatch.setattr(encoder, "MAX_WAITING_BYTES", 3 * 32)
    async with running(towers) as engine:
        streams = [engine.submit(ask(picture(bytes([i])))) for i in range(3)]
        with pytest.raises(Overloaded):
            engine.submit(ask(picture(b"one too many")))
        towers.gate.set()
        for stream in streams:
            assert len(tokens(await read(stream))) == 6
        assert len(tokens(await read(engine.submit(ask(picture(b"now there is room")))))) == 6
        assert engine.stats().waiting == 0


def test_the_cache_keeps_what_was_used_last_within_its_budget() -> None:
    cache = EmbeddingCache(3 * 40)
    rows = {digest: np.full((10, 1), digest[0], np.float32) for digest in (b"a", b"b", b"c", b"d")}
    for digest in (b"a", b"b", b"c"):
        cache.keep(digest, rows[digest])
    assert cache.find(b"a") is rows[b"a"]
    cache.keep(b"d", rows[b"d"])
    cache.keep(b"huge", np.zeros((100, 1), np.float32))
    found = [cache.find(digest) is not None for digest in (b"a", b"b", b"c", b"d", b"huge")]
    assert found == [True, False, True, True, False]


def test_places_and_positions_of_a_request() -> None:
    rows = np.arange(5, dtype=np.float32)[:, None]
    grid = np.array([[0, 1, 2, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 3, 4], [0, 1, 2, 3, 2, 3, 3, 4]])
    media = RequestMedia([picture(offset=2, length=5)], [rows], grid)
    assert media.positions(6, 5).tolist() == [[2, 4, 5, 6, 7], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7]]
    assert [(offset, part[:, 0].tolist()) for offset, part in media.embeddings(0, 4)] == [(2, [0, 1])]
    assert [(offset, part[:, 0].tolist()) for offset, part in media.embeddings(4, 9)] == [(0, [2, 3, 4])]
    assert list(media.embeddings(7, 9)) == []
    plain_media = RequestMedia([], [], None)
    assert plain_media.positions(3, 2).tolist() == [[3, 4]] * 3
