"""What an engine refuses, remembers and takes on."""

import asyncio
from pathlib import Path

import pytest
from tests.engine.contract.harness import Check, Running, Traits

from mindserve.engine.base import GenerateRequest
from mindserve.errors import InvalidRequest, ModelLoadError, PromptTooLong


async def what_cannot_be_answered_is_refused_at_once(its: Running) -> None:
    def ask(prompt: list[int], adapter: str | None = None) -> None:
        its.engine.submit(GenerateRequest(request_id="r", prompt_token_ids=prompt, adapter=adapter))

    token = its.traits.tokens[0]
    for prompt in ([], [-1], [its.engine.info.vocab_size], [token, 2**31]):
        with pytest.raises(InvalidRequest):
            ask(prompt)
    with pytest.raises(InvalidRequest, match="nobody"):
        ask([token], adapter="nobody")
    with pytest.raises(PromptTooLong, match=str(its.traits.longest_prompt + 1)):
        ask([token] * (its.traits.longest_prompt + 1))
    assert its.engine.is_healthy


async def a_long_prompt_is_found_again(its: Running) -> None:
    length = its.traits.cached_prompt or 0
    before = its.engine.stats()
    first = await its.answer(salt=1000, length=length)
    second = await its.answer(salt=1000, length=length)
    assert first.end().cached_tokens == 0
    assert length // 2 <= second.end().cached_tokens < length
    assert first.tokens() == second.tokens()
    await its.rests()
    after = its.engine.stats()
    assert after.prefix_hits - before.prefix_hits >= length // 2
    assert after.prefix_queries - before.prefix_queries >= after.prefix_hits - before.prefix_hits


async def adapters_come_and_go(its: Running) -> None:
    assert its.traits.adapter is not None
    await its.engine.load_adapter("poet", its.traits.adapter)
    base, poet = await asyncio.gather(its.answer(max_tokens=24), its.answer(max_tokens=24, adapter="poet"))
    assert base.tokens() != poet.tokens()
    assert (await its.answer(max_tokens=24)).tokens() == base.tokens()
    await its.engine.unload_adapter("poet")
    with pytest.raises(InvalidRequest, match="poet"):
        its.engine.submit(its.request(adapter="poet"))


async def an_adapter_that_is_none_hurts_nobody(its: Running) -> None:
    with pytest.raises((ModelLoadError, InvalidRequest)):
        await its.engine.load_adapter("empty", Path(__file__).parent)
    with pytest.raises(InvalidRequest, match="empty"):
        its.engine.submit(its.request(adapter="empty"))
    assert len((await its.answer()).tokens()) == 8


def checks(traits: Traits) -> list[Check]:
    """What an engine with these traits is put through."""
    cache = [] if traits.cached_prompt is None else [a_long_prompt_is_found_again]
    adapters = [] if traits.adapter is None else [adapters_come_and_go, an_adapter_that_is_none_hurts_nobody]
    return [what_cannot_be_answered_is_refused_at_once, *cache, *adapters]
