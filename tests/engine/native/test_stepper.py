"""Whole generations over the fake runner, without threads: whatever happens around a request, its tokens stay."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from fake_runner import FakeRunner, fake_info

from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from mindserve.engine.native.stepper import Stepper
from mindserve.settings.values import SchedulerSettings


class Bench:
    """A stepper with its fake runner, and everything that it said."""

    def __init__(
        self, runner: FakeRunner, settings: SchedulerSettings | None = None, *, eos: frozenset[int] = frozenset()
    ):
        self.runner = runner
        self.settings = settings or SchedulerSettings()
        info = fake_info(vocab_size=runner.vocab_size, eos=eos)
        context_len = min(4096, runner.block_count * 32)
        self.stepper = Stepper(runner, info, self.settings, context_len=context_len)
        self.events: dict[int, list[TokenEvent]] = defaultdict(list)

    def add(self, number: int, request: GenerateRequest) -> None:
        self.stepper.add(number, request, arrival_s=0.0)

    def step(self) -> None:
        self.stepper.step()
        self.collect()

    def collect(self) -> None:
        for number, events in self.stepper.take_events().items():
            self.events[number] += events

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.stepper.has_work:
                return
            self.step()
        pytest.fail("the engine does not come to an end")

    def tokens(self, number: int, index: int = 0) -> list[int]:
        return [t for event in self.events[number] if event.index == index for t in event.token_ids]

    def reasons(self, number: int, index: int = 0) -> list[FinishReason]:
        events = [event for event in self.events[number] if event.index == index]
        return [event.finish_reason for event in events if event.finish_reason is not None]

    def check_at_rest(self) -> None:
        """Nothing runs, and every block is free or cached."""
        stats = self.stepper.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


def request(prompt: list[int], *, n: int = 1, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"temperature": 0.0 if n == 1 else 1.0, "max_tokens": 8, **sampling})
    return GenerateRequest(request_id="r", prompt_token_ids=prompt, sampling=params, n=n)


def alone(asked: GenerateRequest, eos: frozenset[int] = frozenset()) -> list[list[int]]:
    """The tokens of the request's sequences when nothing else happens and nothing is shared or short."""
    bench = Bench(FakeRunner(block_count=1000), SchedulerSettings(prefix_cache=False), eos=eos)
    bench.add(0, asked)
    bench.run()
    return [bench.tokens(0, i) for i in range(asked.n)]


def greedy_by_hand(prompt: list[int], count: int) -> list[int]:
    runner, tokens = FakeRunner(), list(prompt)
    for _ in range(count):
        tokens.append(int(runner.logits_after(tuple(tokens)).argmax()))
    return tokens[len(prompt) :]


def test_greedy_tokens_are_those_of_the_model() -> None:
    prompt = list(range(40))
    assert alone(request(prompt)) == [greedy_by_hand(prompt, 8)]


def test_prompt_in_chunks_gives_the_same_tokens() -> None:
    prompt = [i % 200 for i in range(300)]
    bench = Bench(FakeRunner(), SchedulerSettings(step_token_budget=7, max_batch_size=4))
    bench.add(0, request(prompt))
    bench.run()
    assert bench.tokens(0) == greedy_by_hand(prompt, 8)
    assert max(bench.runner.token_counts) == 7
    assert len(bench.events[0]) == 8  # chunks make no events


def test_last_allowed_end_token_gives_length() -> None:
    prompt = [5, 6, 7]
    first, second = greedy_by_hand(prompt, 2)
    for max_tokens, reason in ((2, FinishReason.LENGTH), (3, FinishReason.STOP)):
        bench = Bench(FakeRunner(), eos=frozenset({second}))
        bench.add(0, request(prompt, max_tokens=max_tokens))
        bench.run()
        assert bench.tokens(0) == [first, second]
        assert bench.reasons(0) == [reason]


def test_stop_token_ids_stop_even_with_ignore_eos() -> None:
    prompt = [5, 6, 7]
    tokens = greedy_by_hand(prompt, 4)
    bench = Bench(FakeRunner(), eos=frozenset({tokens[1]}))
    bench.add(0, request(prompt, ignore_eos=True, stop_token_ids=frozenset({tokens[2]})))
    bench.run()
    assert bench.tokens(0) == tokens[:3]
    assert bench.reasons(0) == [FinishReason.STOP]


def test_siblings_differ_and_share_the_prompt() -> None:
    prompt = [i % 200 for i in range(70)]
    bench = Bench(FakeRunner())
    bench.add(0, request(prompt, n=3, seed=11))
    bench.step()
    assert bench.runner.token_counts == [70]
    bench.run()
    tokens = [bench.tokens(0, i) for i in range(3)]
    assert all(len(of_one) == 8 for of_one in tokens)
    assert len({tuple(of_one) for of_one in tokens}) == 3
    assert tokens[0] == alone(request(prompt, temperature=1.0, seed=11))[0]
    bench.check_at_rest()


def test_more_siblings_than_places_all_finish() -> None:
    asked = request(list(range(50)), n=128, seed=3, max_tokens=5)
    bench = Bench(FakeRunner(block_count=16), SchedulerSettings(max_batch_size=3))
    bench.add(0, asked)
    bench.run()
    assert [bench.tokens(0, i) for i in range(128)] == alone(asked)
    bench.check_at_rest()


def test_prefix_is_found_again_but_one_token_is_always_computed() -> None:
    prompt = [i % 200 for i in range(96)]
    bench = Bench(FakeRunner())
    for number in range(2):
        bench.add(number, request(prompt))
        bench.run()
    assert bench.events[0][0].cached_tokens == 0
    assert bench.events[1][0].cached_tokens == 64
    assert bench.tokens(1) == bench.tokens(0)
    assert bench.stepper.stats().prefix_hits == 64
    assert bench.stepper.stats().prefix_queries == 192


def test_prompts_that_arrive_together_share_their_beginning() -> None:
    prompt = [i % 200 for i in range(128)]
    bench = Bench(FakeRunner())
    bench.add(0, request([*prompt, 1]))
    bench.add(1, request([*prompt, 2]))
    bench.run()
    assert bench.events[1][0].cached_tokens == 128
    assert [bench.tokens(i) for i in (0, 1)] == [greedy_by_hand([*prompt, last], 8) for last in (1, 2)]


def test_cancelled_first_sequence_leaves_the_prompt_to_its_siblings() -> None:
    prompt = [i % 200 for i in range(100)]
    asked = request(prompt, n=3, seed=5)
    bench = Bench(FakeRunner(), SchedulerSettings(step_token_budget=30))
    bench.add(0, asked)
    bench.step()
    bench.stepper.cancel(0, 0)
    bench.stepper.cancel(0, 0)
    bench.run()
    assert bench.reasons(0, 0) == [FinishReason.CANCELLED]
    assert [bench.tokens(0, i) for i in range(3)] == [[], *alone(asked)[1:]]
    bench.check_at_rest()


def test_failed_step_ends_its_sequences_only() -> None:
    bench = Bench(FakeRunner(fails_at={3}), SchedulerSettings(max_batch_size=1))
    bench.add(0, request([1, 2, 3]))
    bench.add(1, request([4, 5, 6]))
    bench.run()
    assert bench.reasons(0) == [FinishReason.ERROR]
    assert bench.events[0][-1].error is not None
    assert bench.tokens(1) == greedy_by_hand([4, 5, 6], 8)
    assert bench.stepper.failed_steps == 0
    bench.check_at_rest()


def test_broken_logits_end_their_own_sequence() -> None:
    bench = Bench(FakeRunner(nan_after=(1, 2, 3)))
    bench.add(0, request([1, 2, 3]))
    bench.add(1, request([4, 5, 6]))
    bench.run()
    assert bench.reasons(0) == [FinishReason.ERROR]
    assert bench.tokens(1) == greedy_by_hand([4, 5, 6], 8)


def test_waits_and_batch_sizes_are_told() -> None:
    now = iter(np.arange(1.0, 100.0))
    bench = Bench(FakeRunner())
    bench.stepper = Stepper(
        bench.runner, fake_info(), SchedulerSettings(), context_len=100, clock=lambda: float(next(now))
    )
    bench.add(0, request([1, 2], max_tokens=2))
    bench.add(1, request([3, 4], max_tokens=1))
    bench.run()
    first, second = bench.events[0]
    assert (first.step.batch_size, first.step.queue_wait_us, first.step.time_s) == (2, 1_000_000, 2.0)
    assert (second.step.batch_size, second.step.queue_wait_us, second.step.time_s) == (1, 1_000_000, 4.0)


class Chaos:
    """Random submissions and cancels against a small pool."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rng = self.rng
        self.settings = SchedulerSettings(
            max_batch_size=int(rng.integers(1, 9)),
            step_token_budget=int(rng.integers(4, 80)),
            max_prefill_tokens=int(rng.integers(8, 80)),
            max_prefill_batch_size=int(rng.integers(1, 5)),
            prefix_cache=bool(rng.random() < 0.8),
            max_ngram_draft=int(rng.choice([0, 4])),
        )
        self.bench = Bench(FakeRunner(block_count=int(rng.integers(7, 13))), self.settings, eos=EOS)
        self.prefixes = [rng.integers(0, 200, 120).tolist() for _ in range(3)]
        self.requests: list[GenerateRequest] = []
        self.cancelled: set[tuple[int, int]] = set()

    def submit(self) -> None:
        rng, prefix = self.rng, self.prefixes[self.rng.integers(3)]
        prompt = prefix[: rng.integers(1, 120)] + rng.integers(0, 200, rng.integers(0, 12)).tolist()
        n = int(rng.choice([1, 1, 1, 2, 5]))
        is_search = rng.random() < 0.15
        greedy = n == 1 and rng.random() < 0.5
        asked = request(
            prompt,
            n=n,
            temperature=0.0 if greedy else 0.8,
            top_k=int(rng.choice([0, 5, 100])),
            seed=int(rng.integers(1000)),
            repetition_penalty=float(rng.choice([1.0, 1.0, 1.3])),
            max_tokens=int(rng.integers(1, 70)),
        )
        asked = replace(asked, use_beam_search=is_search)
        self.bench.add(len(self.requests), asked)
        self.requests.append(asked)

    def cancel(self) -> None:
        number = int(self.rng.integers(len(self.requests)))
        index = int(self.rng.integers(self.requests[number].n))
        self.bench.stepper.cancel(number, index)
        self.cancelled.add((number, index))

    def run(self) -> None:
        for _ in range(60):
            if len(self.requests) < 14 and self.rng.random() < 0.4:
                self.submit()
            if self.requests and self.rng.random() < 0.1:
                self.cancel()
            self.bench.step()
        self.bench.run()


EOS = frozenset({7, 8})


@pytest.mark.parametrize("seed", range(25))
def test_every_sequence_ends_once_with_the_tokens_it_has_alone(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.run()
    bench = chaos.bench
    assert max(bench.runner.token_counts) <= chaos.settings.step_token_budget
    for number, asked in enumerate(chaos.requests):
        expected = alone(asked, EOS)
        for index in range(asked.n):
            reasons = bench.reasons(number, index)
            assert len(reasons) == 1
            tokens = bench.tokens(number, index)
            if reasons[0] is FinishReason.CANCELLED:
                assert (number, index) in chaos.cancelled
                assert tokens == expected[index][: len(tokens)]
            else:
                assert tokens == expected[index]
    bench.check_at_rest()


def test_chaos_does_preempt_share_and_cancel() -> None:
    runs = [Chaos(seed) for seed in range(8)]
    for chaos in runs:
        chaos.run()
    stats = [chaos.bench.stepper.stats() for chaos in runs]
    assert sum(s.preemptions for s in stats) > 10
    assert sum(s.prefix_hits for s in stats) > 100
    assert sum(len(chaos.cancelled) for chaos in runs) > 5
