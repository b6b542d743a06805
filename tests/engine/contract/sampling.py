"""How tokens are chosen: seeds, penalties, log-probabilities."""

import pytest
from tests.engine.contract.harness import Check, Running, Traits

from mindserve.engine.base import LOGPROB_OF_EXCLUDED


async def a_seed_decides_the_tokens(its: Running) -> None:
    async def tokens(seed: int) -> tuple[int, ...]:
        return tuple((await its.answer(salt=4, temperature=1.0, seed=seed, max_tokens=16)).tokens())

    assert await tokens(7) == await tokens(7)
    assert len({await tokens(seed) for seed in (7, 8, 2**64 - 1)}) > 1


async def sequences_of_one_seed_differ(its: Running) -> None:
    first, second = [await its.answer(n=3, temperature=1.0, seed=11, max_tokens=16) for _ in range(2)]
    assert [first.tokens(i) for i in range(3)] == [second.tokens(i) for i in range(3)]
    assert len({tuple(first.tokens(i)) for i in range(3)}) > 1


async def one_candidate_is_greedy(its: Running) -> None:
    greedy = (await its.answer(salt=5)).tokens()
    assert (await its.answer(salt=5, temperature=1.0, top_k=1)).tokens() == greedy
    assert (await its.answer(salt=5, temperature=1.0, top_p=1e-6)).tokens() == greedy


async def a_repetition_penalty_changes_the_answer(its: Running) -> None:
    tokens = (await its.answer(salt=6, max_tokens=16, repetition_penalty=2.0)).tokens()
    assert len(set(tokens)) > 8


async def logprobs_are_counted_and_ordered(its: Running) -> None:
    for wanted in (0, its.traits.max_logprobs):
        entries = (reading := await its.answer(salt=7, logprobs=wanted)).logprobs()
        for token, entry in zip(reading.tokens(), entries, strict=True):
            values = [value for _, value in entry.top]
            assert len(values) == wanted
            assert values == sorted(values, reverse=True)
            assert entry.logprob <= 0
            if wanted:
                assert entry.top[0] == (token, pytest.approx(entry.logprob))
        total = sum(entry.logprob for entry in entries)
        assert reading.end().cumulative_logprob == pytest.approx(total, abs=1e-2)


async def logprobs_say_which_candidates_had_no_chance(its: Running) -> None:
    reading = await its.answer(salt=8, temperature=1.0, top_k=2, logprobs=its.traits.max_logprobs, seed=1)
    for token, entry in zip(reading.tokens(), reading.logprobs(), strict=True):
        assert token in [candidate for candidate, _ in entry.top[:2]]
        assert all(value == LOGPROB_OF_EXCLUDED for _, value in entry.top[2:])


def checks(traits: Traits) -> list[Check]:
    """What an engine with these traits is put through."""
    draws = [
        a_seed_decides_the_tokens,
        sequences_of_one_seed_differ,
        one_candidate_is_greedy,
        a_repetition_penalty_changes_the_answer,
    ]
    if not traits.max_logprobs:
        return draws if traits.samples else []
    if not traits.samples:
        return [logprobs_are_counted_and_ordered]
    return [*draws, logprobs_are_counted_and_ordered, logprobs_say_which_candidates_had_no_chance]
