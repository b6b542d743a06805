"""Masks: obeyed, ended by, and broken."""

import asyncio

from tests.engine.contract.harness import Check, Running, Traits
from tests.engine.contract.masks import BrokenMask, OnlyTokens

from mindserve.engine.base import FinishReason, TokenMask
from mindserve.errors import EngineFailure

DIGITS = frozenset(range(48, 58))
"""Ten tokens, whatever they mean to the model."""


async def a_mask_is_obeyed_by_every_sequence(its: Running) -> None:
    reading = await its.answer(n=2, temperature=1.0, max_tokens=12, mask=OnlyTokens(DIGITS))
    for index in (0, 1):
        assert set(reading.tokens(index)) <= DIGITS
        assert len(reading.tokens(index)) == 12


async def a_mask_can_lead_to_an_end(its: Running) -> None:
    end = its.traits.tokens[-1]
    mask: TokenMask = OnlyTokens(DIGITS, count=3, end=end)
    reading = await its.answer(max_tokens=12, mask=mask, stop_token_ids=frozenset({end}))
    assert len(reading.tokens()) == 4
    assert reading.tokens()[-1] == end
    assert reading.reason() is FinishReason.STOP
    assert len((await its.answer(max_tokens=12, mask=mask, stop_token_ids=frozenset({end}))).tokens()) == 4


async def a_broken_mask_fails_its_own_request(its: Running) -> None:
    broken, fine = await asyncio.gather(its.answer(mask=BrokenMask(DIGITS)), its.answer(salt=9))
    assert broken.reason() is FinishReason.ERROR
    assert isinstance(broken.end().error, EngineFailure)
    assert len(fine.tokens()) == 8


def checks(traits: Traits) -> list[Check]:
    """What an engine with these traits is put through."""
    broken = [a_broken_mask_fails_its_own_request] if traits.isolates_broken_masks else []
    return [a_mask_is_obeyed_by_every_sequence, a_mask_can_lead_to_an_end, *broken]
