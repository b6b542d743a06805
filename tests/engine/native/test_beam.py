"""Beam search over the fake runner, against the rule written out without any engine."""

import numpy as np
import pytest
from fake_runner import FakeRunner
from test_stepper import Bench, greedy_by_hand, request

from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams
from mindserve.settings.values import SchedulerSettings

PROMPT = [i % 200 for i in range(45)]


def beams(*, width: int, max_tokens: int = 12, prompt: list[int] = PROMPT, **sampling: object) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return GenerateRequest(request_id="r", prompt_token_ids=prompt, sampling=params, n=width, use_beam_search=True)


def by_hand(asked: GenerateRequest, eos: frozenset[int] = frozenset()) -> list[tuple[list[int], float]]:
    """(tokens, sum of log-probabilities), best first."""
    runner, width, prompt = FakeRunner(), asked.n, list(asked.prompt_token_ids)
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for step in range(asked.sampling.max_tokens):
        found: list[tuple[float, list[int]]] = []
        for score, tokens in running:
            logits = runner.logits_after((*prompt, *tokens)).astype(np.float64)
            for token in {*prompt, *tokens} if asked.sampling.repetition_penalty != 1 else ():
                r = asked.sampling.repetition_penalty
                logits[token] = logits[token] / r if logits[token] > 0 else logits[token] * r
            logprobs = logits - np.log(np.exp(logits).sum())
            found += [(score + logprobs[i], [*tokens, i]) for i in range(len(logits))]
        found.sort(key=lambda one: -one[0])
        is_last = step == asked.sampling.max_tokens - 1
        done += [one for one in found[:width] if is_last or one[1][-1] in eos]
        done = sorted(done, key=lambda one: -one[0] / len(one[1]))[:width]
        running = [one for one in found if one[1][-1] not in eos][:width]
        worst = done[-1] if len(done) == width else None
        if worst and running[0][0] / len(running[0][1]) <= worst[0] / len(worst[1]):
            break
    return [(tokens, score) for score, tokens in done]


def check(bench: Bench, number: int, expected: list[tuple[list[int], float]]) -> None:
    events = bench.events[number]
    assert [event.index for event in events] == list(range(len(expected)))
    for event, (tokens, score) in zip(events, expected, strict=True):
        assert list(event.token_ids) == tokens
        assert event.cumulative_logprob == pytest.approx(score, abs=1e-3)
        assert event.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


@pytest.mark.parametrize("width", [1, 3, 8, 40])
def test_follows_the_rule_without_end_tokens(width: int) -> None:
    asked = beams(width=width)
    bench = Bench(FakeRunner(block_count=200))
    bench.add(0, asked)
    bench.run()
    check(bench, 0, by_hand(asked))
    assert {event.finish_reason for event in bench.events[0]} == {FinishReason.LENGTH}
    bench.check_at_rest()


def test_follows_the_rule_with_end_tokens() -> None:
    early: list[int] = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        asked = beams(width=4, prompt=rng.integers(0, 200, 40).tolist())
        free = [tokens for tokens, _ in by_hand(asked)]
        eos = frozenset({free[0][5], free[1][8], free[2][3]})
        bench = Bench(FakeRunner(), eos=eos)
        bench.add(0, asked)
        bench.run()
        expected = by_hand(asked, eos)
        check(bench, 0, expected)
        early += [len(tokens) for tokens, _ in expected if len(tokens) < 12]
    assert len(early) > 8
    assert len(set(early)) > 3


def test_penalties_apply_and_sampling_fields_do_not() -> None:
    asked = beams(width=3, repetition_penalty=1.5, temperature=0.1, top_k=7, top_p=0.2, seed=1)
    bench = Bench(FakeRunner())
    bench.add(0, asked)
    bench.run()
    check(bench, 0, by_hand(asked))
    assert by_hand(asked) != by_hand(beams(width=3))


def test_logprobs_come_with_the_hypotheses() -> None:
    bench = Bench(FakeRunner())
    bench.add(0, beams(width=3, logprobs=2))
    bench.add(1, beams(width=3))
    bench.run()
    for event in bench.events[0]:
        assert event.logprobs is not None
        assert len(event.logprobs) == len(event.token_ids) == 12
        assert sum(entry.logprob for entry in event.logprobs) == pytest.approx(event.cumulative_logprob)
        assert all(len(entry.top) == 2 for entry in event.logprobs)
        assert all(entry.top[0][1] >= entry.logprob for entry in event.logprobs)
    assert all(event.logprobs is None for event in bench.events[1])


@pytest.mark.parametrize(("places", "blocks"), [(2, 40), (8, 4), (3, 4), (1, 3)])
def test_fewer_places_or_blocks_than_beams(places: int, blocks: int) -> None:
    asked = beams(width=5)
    bench = Bench(FakeRunner(block_count=blocks), SchedulerSettings(max_batch_size=places))
    bench.add(0, asked)
    bench.run()
    check(bench, 0, by_hand(asked))
    bench.check_at_rest()


def test_beside_others() -> None:
    asked = beams(width=4)
    bench = Bench(FakeRunner(block_count=9), SchedulerSettings(max_batch_size=5, step_token_budget=30))
    bench.add(0, request([1, 2, 3], max_tokens=60))
    bench.add(1, asked)
    bench.add(2, request([4, 5, 6], max_tokens=40))
    bench.add(3, asked)
    bench.run()
    assert bench.tokens(0) == greedy_by_hand([1, 2, 3], 60)
    assert bench.tokens(2) == greedy_by_hand([4, 5, 6], 40)
    for number in (1, 3):
        check(bench, number, by_hand(asked))
    bench.check_at_rest()


def test_blocks_are_shared() -> None:
    bench = Bench(FakeRunner())
    bench.add(0, beams(width=8, prompt=[i % 200 for i in range(320)]))
    for _ in range(4):
        bench.step()
    stats = bench.stepper.stats()
    assert stats.running == 8
    assert stats.total_blocks - stats.free_blocks - stats.cached_blocks <= 10 + 8


def test_cancel_one_hypothesis_or_all() -> None:
    asked = beams(width=3)
    bench = Bench(FakeRunner())
    for number in (0, 1):
        bench.add(number, asked)
    for _ in range(3):
        bench.step()
    bench.stepper.cancel(0, 1)
    bench.stepper.cancel(1)
    bench.run()
    expected = by_hand(asked)
    assert [(event.index, event.finish_reason) for event in bench.events[0]] == [
        (1, FinishReason.CANCELLED),
        (0, FinishReason.LENGTH),
        (2, FinishReason.LENGTH),
    ]
    assert [bench.tokens(0, i) for i in range(3)] == [expected[0][0], [], expected[2][0]]
    assert [bench.reasons(1, i) for i in range(3)] == [[FinishReason.CANCELLED]] * 3
    bench.check_at_rest()


def test_failures_end_every_hypothesis_once() -> None:
    for runner in (FakeRunner(fails_at={4}), FakeRunner(nan_after=(*PROMPT, *by_hand(beams(width=3))[0][0][:3]))):
        bench = Bench(runner)
        bench.add(0, beams(width=3))
        bench.run()
        assert [bench.reasons(0, i) for i in range(3)] == [[FinishReason.ERROR]] * 3
        bench.check_at_rest()
