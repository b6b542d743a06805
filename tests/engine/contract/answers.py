"""How long answers are, and how they end."""

import pytest
from tests.engine.contract.harness import Check, Running, Traits

from mindserve.engine.base import FinishReason
from mindserve.errors import InvalidRequest


async def tells_of_its_model_and_is_healthy(its: Running) -> None:
    info = its.engine.info
    assert its.engine.is_healthy
    assert info.model_type
    assert info.max_context_len > its.traits.longest_prompt - 1
    assert its.traits.tokens.stop <= info.vocab_size
    assert not info.eos_token_ids & set(its.traits.tokens)


async def answers_have_the_length_that_was_asked_for(its: Running) -> None:
    for max_tokens in (1, 2, 9):
        reading = await its.answer(max_tokens=max_tokens)
        assert len(reading.tokens()) == max_tokens
        assert reading.reason() is FinishReason.LENGTH


async def the_context_ends_an_answer(its: Running) -> None:
    reading = await its.answer(length=its.traits.longest_prompt, max_tokens=100_000)
    assert reading.reason() is FinishReason.LENGTH
    assert 1 <= len(reading.tokens()) <= its.engine.info.max_context_len - its.traits.longest_prompt + 1


async def the_same_question_gets_the_same_greedy_answer(its: Running) -> None:
    first, second = await its.answer(salt=1), await its.answer(salt=1)
    assert first.tokens() == second.tokens()


async def a_stop_token_ends_an_answer_and_is_part_of_it(its: Running) -> None:
    tokens = (await its.answer(salt=2, max_tokens=12)).tokens()
    last = max(i for i, token in enumerate(tokens) if token not in tokens[:i])
    assert last > 0
    reading = await its.answer(salt=2, max_tokens=20, stop_token_ids=frozenset({tokens[last]}))
    assert reading.tokens() == tokens[: last + 1]
    assert reading.reason() is FinishReason.STOP


async def the_length_wins_over_a_stop_token(its: Running) -> None:
    (token,) = (await its.answer(salt=3, max_tokens=1)).tokens()
    reading = await its.answer(salt=3, max_tokens=1, stop_token_ids=frozenset({token}))
    assert reading.reason() is FinishReason.LENGTH


async def every_sequence_has_its_index(its: Running) -> None:
    reading = await its.answer(n=3, temperature=1.0, max_tokens=7)
    for index in range(3):
        assert len(reading.tokens(index)) == 7
        assert reading.reason(index) is FinishReason.LENGTH


async def hypotheses_come_whole_and_best_first(its: Running) -> None:
    reading = await its.answer(n=3, use_beam_search=True, max_tokens=6, temperature=1.0)
    assert [event.index for event in reading.events] == [0, 1, 2]
    means = [event.cumulative_logprob / len(event.token_ids) for event in reading.events]
    assert means == sorted(means, reverse=True)


async def beam_search_is_refused(its: Running) -> None:
    with pytest.raises(InvalidRequest):
        its.engine.submit(its.request(n=2, use_beam_search=True))


def checks(traits: Traits) -> list[Check]:
    """What an engine with these traits is put through."""
    return [
        tells_of_its_model_and_is_healthy,
        answers_have_the_length_that_was_asked_for,
        the_context_ends_an_answer,
        the_same_question_gets_the_same_greedy_answer,
        a_stop_token_ends_an_answer_and_is_part_of_it,
        the_length_wins_over_a_stop_token,
        every_sequence_has_its_index,
        hypotheses_come_whole_and_best_first if traits.has_beam_search else beam_search_is_refused,
    ]
